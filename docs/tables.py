"""Writes the tables, lists and numbers of these pages from the registries, the configuration's structs and recorded results.

`python docs/tables.py` renews them in place. With `--check` it changes nothing, names what is stale and exits with status 1.
"""

import argparse
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import combined
import costs
from marked import EXPERIMENTS, PAGES, ROOT, MarkerError, filled, markdown_table, shown
from sphinx.pycode import ModuleAnalyzer

from sketchfed import PublicSeed
from sketchfed.algorithms import ALGORITHMS, Algorithm
from sketchfed.algorithms.chosen import ChosenPart, CombineSettings, ServerSettings
from sketchfed.algorithms.settings import CodecSettings, SketchSettings, SubspaceSettings, default_global_rate
from sketchfed.attacks import ATTACKS
from sketchfed.attacks.knowledge import ANNOUNCED
from sketchfed.codecs import CODECS, Codec, make_codec
from sketchfed.codecs.ensembles import ENSEMBLES
from sketchfed.codecs.rounding import WIDTHS
from sketchfed.combining import COMBINE_RULES
from sketchfed.config import ENGINES, Config, DataSettings, EngineSettings, ModelSettings
from sketchfed.data import DATA_SETS, PARTITIONS
from sketchfed.graphs import GRAPHS, GraphSettings
from sketchfed.graphs.settings import GIVEN_TO_GRAPHS
from sketchfed.models import MODELS
from sketchfed.parts import Registry
from sketchfed.privacy import MECHANISMS
from sketchfed.protection import PrivacySettings, SecureSettings
from sketchfed.rounds import AsynchronousSettings
from sketchfed.server_optimisers import SERVER_OPTIMISERS
from sketchfed.sketches import SKETCHES
from sketchfed.subspaces import UPDATES
from sketchfed.testing import AlgorithmConformance, CodecConformance, CombineRuleConformance, SketchConformance, demands
from sketchfed.testing.suite import Suite
from sketchfed.training import BATCH_LOSSES, LOOPS, LOSSES, METRICS, OPTIMISERS, SCHEDULES, TrainingSettings

STRUCTS: dict[str, type] = {
    "data": DataSettings,
    "model": ModelSettings,
    "training": TrainingSettings,
    "algorithm": Algorithm,
    "sketch": SketchSettings,
    "codec": CodecSettings,
    "subspace": SubspaceSettings,
    "privacy": PrivacySettings,
    "secure": SecureSettings,
    "asynchronous": AsynchronousSettings,
    "graph": GraphSettings,
    "engine": EngineSettings,
}
_TABLES = {*STRUCTS, "options"}  # fields that are tables of their own, or stand for the options of what `name` names

MEANINGS = {
    "name": "The name of the run and of its folder. If absent, the name of the configuration file.",
    "seed": "The seed of everything random: the partition, the first weights, cohorts, batches, sketches, rounding.",
    "data.name": "A [data set](data.md#data-sets), or `package.module:function` for [your own](data.md#your-own-data).",
    "data.partition": "How examples are spread over clients: a [partition](data.md#partitions), or [your own](plugins.md).",
    "model.name": "One of the [models](#models), or `package.module:function` for [your own](#from-python).",
    "algorithm.rounds": "The number of rounds.",
    "algorithm.local_steps": "The number of gradient steps of a client in a round. Cannot be combined with `local_epochs`.",
    "algorithm.local_rate": "The step size of local training, η_local.",
    "algorithm.local_momentum": "The momentum of local training. It starts from zero each round.",
    "algorithm.weight_decay": "Adds (weight_decay/2)·‖w‖² to the loss of local training.",
    "algorithm.global_momentum": "The momentum of the server's step: v ← global_momentum·v + mean change.",
    "fedavg.error_feedback": "Each client keeps the error of its codec and adds it to its next update.",
    "fedavg.prediction": "Clients send the difference from a [prediction](algorithms.md#error-feedback-and-prediction).",
    "iterative.form": "De-sketch by Rᵀ, or by (size/dim)·Rᵀ with [error feedback](algorithms.md#the-projection-form).",
    "dbcl.output": "How the output layer is sent. If it is withheld, it is [fixed](dbcl.md#choices).",
    "dbcl.biases": "How the biases of sketched layers are sent. If they are withheld, they are zero.",
    "dbcl.public_start": "As above, but with another default: here the first weights are secret.",
    "fetchsgd.rows": "The number of independent count sketches in the table, which must be odd. An estimate is their median.",
    "fetchsgd.masking": "Set the fetched cells to zero, as the authors do. If false, subtract the fetched values, as printed.",
    "fetchsgd.global_momentum": "As above, but with another default: here the momentum is kept inside the sketch.",
    "sketch.name": "One of the [families](sketches.md#the-families), or [your own](plugins.md).",
    "sketch.ratio": "Coefficients per parameter; 0.1 without `size`. For `dbcl`: per [input of a layer](dbcl.md#choices); 0.5.",
    "sketch.size": "The number of coefficients. Cannot be combined with `ratio`.",
    "sketch.bits": f"Bits per coefficient up: {', '.join(map(str, WIDTHS))}. Below 32, [rounded](codecs.md#dithered-rounding).",
    "codec.name": "One of the [codecs](codecs.md), or [your own](plugins.md).",
    "codec.ratio": "Values in an update per parameter. If `size` is absent too: 0.1, or 1 if the codec can send all values.",
    "codec.size": "The number of values in an update. Cannot be combined with `ratio`.",
    "dome.beta1": "Adam's β₁: the decay rate of the running mean of changes.",
    "dome.beta2": "Adam's β₂: the decay rate of the running mean of their squares.",
    "subspace.ratio": "Directions per parameter. Cannot be combined with `size`.",
    "engine.name": "Where the clients run; `local` is this process.",
}
"""Meanings of keys that have no docstring of their own in the code."""


# The configuration ----------------------------------------------------------------------------------------------------


def settings(where: str) -> str:
    """Every key of a table of the configuration; "" is what stands above all tables."""
    kind = STRUCTS[where] if where else Config
    rows = [_row(where, kind, field) for field in fields(kind) if _is_setting(field.name)]
    return markdown_table(["key", "value", "default", "meaning"], rows)


def algorithm_settings() -> str:
    """The keys that single algorithms add to [algorithm], or give another default."""
    rows = []
    for name, kind in ALGORITHMS.built_in.items():
        own = [field for field in fields(kind) if field.name in kind.__annotations__ and _is_setting(field.name)]
        rows += [[f"`{name}`", *_row(name, kind, field)] for field in own]
    return markdown_table(["algorithm", "key", "value", "default", "meaning"], rows)


def _is_setting(name: str) -> bool:
    return name not in _TABLES and not name.startswith("_")


def _row(where: str, kind: type, field: "Field[Any]") -> list[str]:
    made = field.default_factory() if field.default_factory is not MISSING else None
    default = field.default if field.default is not MISSING else made
    name, default = (default.key, default.name) if isinstance(default, ChosenPart) else (field.name, default)
    return [f"`{name}`", _kind(get_type_hints(kind)[field.name]), _literal(default), _meaning(where, kind, field.name)]


def _meaning(where: str, kind: type, key: str) -> str:
    """The docstring below the field, in this class or one that it inherits the field from, or what is written above."""
    place = f"{where}.{key}" if where else key
    for base in kind.__mro__:
        if key in inspect.get_annotations(base):
            documented = ModuleAnalyzer.for_module(base.__module__).find_attr_docs().get((base.__qualname__, key))
            if documented:
                return " ".join(filter(None, map(str.strip, documented)))
            if place in MEANINGS:
                break
    if place not in MEANINGS:
        raise LookupError(f"the setting {place} is not explained: write a docstring below it, or a line in docs/tables.py.")
    return MEANINGS[place]


_KINDS = {
    int: "integer",
    float: "number",
    str: "text",
    bool: "`true`, `false`",
    CombineSettings: "text",
    ServerSettings: "text",
}


def _kind(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_kind(part) for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is list:
        return f"list of {_kind(get_args(hint)[0])}"
    if get_origin(hint) is dict:
        return f"table of {_kind(get_args(hint)[1])}"
    if get_origin(hint) is Literal:
        return ", ".join(_literal(choice) for choice in get_args(hint))
    return _KINDS[hint]


def _literal(value: Any) -> str:
    """A value as TOML writes it; nothing for what is absent."""
    if value is None or value is inspect.Parameter.empty:
        return ""
    if isinstance(value, tuple | list):
        return f"`[{', '.join(map(str, value))}]`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


# What the configuration can name --------------------------------------------------------------------------------------


def models() -> str:
    rows = [
        [f"`{name}`", _summary(model), _options(model, besides=("shape", "outputs"))] for name, model in MODELS.built_in.items()
    ]
    return markdown_table(["name", "what it is", "options"], rows)


def data_options() -> str:
    """Data sets and partitions that take options, all of which stand in [data]."""
    made = [(f"data set `{name}`", _options(loader)) for name, loader in DATA_SETS.built_in.items()]
    made += [
        (f"partition `{name}`", _options(part, besides=("data", "clients", "seed")))
        for name, part in PARTITIONS.built_in.items()
    ]
    return markdown_table(["of", "options"], [line for line in made if line[1]])


def graphs() -> str:
    rows = [[f"`{name}`", _summary(graph), _options(graph, besides=GIVEN_TO_GRAPHS)] for name, graph in GRAPHS.built_in.items()]
    return markdown_table(["name", "what it is", "options"], rows)


def sketch_options() -> str:
    made = [[f"`{name}`", _fields(family, besides=("dim", "size", "seed"))] for name, family in SKETCHES.built_in.items()]
    return markdown_table(["family", "options"], [line for line in made if line[1]])


def subspace_options() -> str:
    made = [[f"`{name}`", rule.summary, _fields(rule, besides=()), rule.source] for name, rule in UPDATES.items()]
    return markdown_table(["rule", "what it does", "options", "from"], made)


def combine_rules() -> str:
    rows = [
        [f"`{name}`", rule.summary, rule.breakdown, rule.cost, rule.source] for name, rule in COMBINE_RULES.built_in.items()
    ]
    return markdown_table(["rule", "what it takes", "attackers it stands", "cost", "from"], rows)


def combine_options() -> str:
    """The options of every combine rule, with their meaning."""
    rows = [
        [f"`{name}`", *_row("combine", rule, option)]
        for name, rule in COMBINE_RULES.built_in.items()
        for option in fields(rule)
    ]
    return markdown_table(["rule", "key", "value", "default", "meaning"], rows)


def server_optimisers() -> str:
    rows = [
        [f"`{name}`", kind.summary, _literal(kind.default_rate) or "the algorithm's", kind.source]
        for name, kind in SERVER_OPTIMISERS.built_in.items()
    ]
    return markdown_table(["optimiser", "what it is", "default `global_rate`", "from"], rows)


def server_options() -> str:
    """The options of every server optimiser, with their meaning."""
    rows = [
        [f"`{name}`", *_row("server", kind, option)]
        for name, kind in SERVER_OPTIMISERS.built_in.items()
        for option in fields(kind)
    ]
    return markdown_table(["optimiser", "key", "value", "default", "meaning"], rows)


def dome_findings() -> str:
    """Points against the random sketch of the same size, from the record of `dome-accuracy`: a column a size."""
    lines = (EXPERIMENTS / "dome-accuracy" / "findings.md").read_text().splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    sizes = list(dict.fromkeys(size for size, *_ in cells))
    found = {(method, size): points for size, method, *_, points in cells}
    methods = dict.fromkeys(method for _, method, *_ in cells)
    rows = [[method, *(found.get((method, size), "–") for size in sizes)] for method in methods]
    return markdown_table(["", *(f"{size} numbers" for size in sizes)], rows)


def codec_options() -> str:
    """The options of every codec in [codec]; those of 'sketched' are in [sketch]."""
    given = ("dim", "size", "clients", "norm_bound")
    made = [[f"`{name}`", _fields(kind, besides=given)] for name, kind in CODECS.built_in.items() if name != "sketched"]
    return markdown_table(["codec", "options"], [line for line in made if line[1]])


def algorithms() -> str:
    rows = [
        [f"`{name}`", a.summary, "updates" if a.incremental else "models", a.source] for name, a in ALGORITHMS.built_in.items()
    ]
    return markdown_table(["name", "what it does", "the server sends", "from"], rows)


def attacks() -> str:
    rows = [[attack.goal, f"`{name}`", attack.summary, attack.source] for name, attack in ATTACKS.built_in.items()]
    return markdown_table(["after", "name", "what it does", "from"], rows)


def codecs() -> str:
    made = {name: make_codec(name, dim=1_000, size=100, clients=10) for name in CODECS.built_in}
    rows = [[f"`{name}`", c.summary, _yes(c.unbiased), _sums(c), c.source] for name, c in made.items()]
    return markdown_table(["name", "what it sends", "unbiased", "sums decode", "from"], rows)


def _sums(codec: Codec) -> str:
    """Whether sums of packets decode, which may depend on the number of bits."""
    code = codec.linear(PublicSeed(0))
    additive = code is not None and code.additive
    return "at 32 bits" if additive and getattr(codec, "bits", None) == 32 else _yes(additive)


def ensembles() -> str:
    rows = [[f"`{name}`", kind.summary, _yes(kind.orthonormal)] for name, kind in ENSEMBLES.items()]
    return markdown_table(["name", "maps", "orthonormal rows"], rows)


def families() -> str:
    rows = [[f"`{name}`", f.summary, f.alpha_formula, f.cost, f.source] for name, f in SKETCHES.built_in.items()]
    return markdown_table(["name", "what it is", "α", "cost", "definition"], rows)


def alphas(dim: int, size: int) -> str:
    made = {name: family(dim=dim, size=size, seed=PublicSeed(0)) for name, family in SKETCHES.built_in.items()}
    rows = [[f"`{name}`", f"{s.alpha:,.2f}", f"{s.exact_alpha:,.2f}"] for name, s in made.items()]
    return markdown_table(["name", f"`alpha` at dim {dim:,}, size {size:,}", "`exact_alpha`"], rows)


def classes(registry: Mapping[str, type]) -> str:
    """Directives that document every class of a registry."""
    lines = [f".. autoclass:: {kind.__module__}.{kind.__qualname__}" for kind in registry.values()]
    return "\n".join(["```{eval-rst}", *lines, "```"])


def functions(registry: Mapping[str, Callable[..., Any]]) -> str:
    """Directives that document every function of a registry."""
    lines = [f".. autofunction:: {function.__module__}.{function.__qualname__}" for function in registry.values()]
    return "\n".join(["```{eval-rst}", *lines, "```"])


# The tutorial on plug-ins ---------------------------------------------------------------------------------------------

_EXAMPLE = ROOT / "examples" / "plugin"


def parts() -> str:
    """Every kind of part, where a configuration names it, its entry points, and what a part of this kind is."""
    rows = []
    for registry, where, contract in (
        (SKETCHES, "`[sketch] name`", "a subclass of `sketchfed.sketches.Sketch`"),
        (CODECS, "`[codec] name`", "a subclass of `sketchfed.codecs.Codec`"),
        (
            ALGORITHMS,
            "`[algorithm] name`",
            "a subclass of `sketchfed.algorithms.Algorithm`; its fields are keys of `[algorithm]`",
        ),
        (
            COMBINE_RULES,
            "`[algorithm] combine`",
            "a subclass of `sketchfed.combining.CombineRule`; its fields are keys of `[combine]`",
        ),
        (
            SERVER_OPTIMISERS,
            "`[algorithm] server`",
            "a subclass of `sketchfed.server_optimisers.ServerOptimiser`; its fields are keys of `[server]`",
        ),
        (MECHANISMS, "`[privacy] name`", "a subclass of `sketchfed.privacy.GaussianNoise`"),
        (MODELS, "`[model] name`", "a function of `shape` and `outputs` that returns a `torch.nn.Module`"),
        (LOOPS, "`[training] train`, `evaluate`", "a [function of a model, data and a context](training.md)"),
        (LOSSES, "`[model] loss`", "a function of outputs and targets that returns the mean loss, a scalar tensor"),
        (
            BATCH_LOSSES,
            "`[training] batch_loss`",
            "a [function of a model and a batch](training.md#a-loss-is-enough) that returns the mean loss, a scalar tensor",
        ),
        (OPTIMISERS, "`[training] optimiser`", "a subclass of `torch.optim.Optimizer`; its arguments are keys of `[training]`"),
        (
            SCHEDULES,
            "`[training] round_schedule`, `step_schedule`",
            "a function from the progress, 0 to 1, to a factor of the rate",
        ),
        (METRICS, "`[model] metric`", "a function of all outputs and all targets of the test set that returns a number"),
        (DATA_SETS, "`[data] name`", "a function that returns a `sketchfed.data.DataSet`"),
        (PARTITIONS, "`[data] partition`", "a function of `data`, `clients` and `seed` that returns each example's client"),
        (
            GRAPHS,
            "`[graph] name`",
            "a function of `nodes`, and of `seed` if it is random, that returns a `sketchfed.graphs.Graph`",
        ),
        (ATTACKS, "`sketchfed audit --attack`", f"a subclass of {_bases(ATTACKS)} in `sketchfed.attacks`"),
        (ANNOUNCED, "the name of its algorithm", "a subclass of `sketchfed.attacks.knowledge.Knowledge`, for audits"),
        (ENGINES, "`[engine] name`", "a subclass of `sketchfed.runs.Host`"),
    ):
        rows.append([registry.kind, where, f"`{registry.group}`", contract])
    return markdown_table(["kind", "named in", "entry points", "what it is"], rows)


def _bases(registry: Registry[Any]) -> str:
    *first, last = (f"`{base.__qualname__}`" for base in registry.bases)
    return f"{', '.join(first)} or {last}" if first else last


def file_of_plugin(path: str) -> str:
    """A file of the example, as a code block. Blocks of `python` are run on the page, where the package is not installed."""
    language = "toml" if path.endswith(".toml") else "py" if path.startswith("tests/") else "python"
    return f"```{language}\n{(_EXAMPLE / path).read_text()}```"


def _summary(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n\n")[0].replace("\n", " ")


def _options(function: Callable[..., Any], besides: Iterable[str] = ()) -> str:
    named = [p for p in inspect.signature(function).parameters.values() if p.name not in besides]
    return ", ".join(_assigned(p.name, p.default) for p in named)


def _fields(kind: type, besides: Iterable[str]) -> str:
    return ", ".join(
        _assigned(f.name, None if f.default is MISSING else f.default) for f in fields(kind) if f.name not in besides
    )


def _assigned(name: str, default: Any) -> str:
    written = _literal(default).strip("`")
    return f"`{name} = {written}`" if written else f"`{name}`"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _check_meanings() -> None:
    """Refuse entries of `MEANINGS` that no setting has any more."""
    known = {field.name for field in fields(Config)}
    known |= {f"{where}.{field.name}" for where, kind in (STRUCTS | ALGORITHMS.built_in).items() for field in fields(kind)}
    for place in MEANINGS:
        if place not in known:
            raise LookupError(f"docs/tables.py explains {place}, which is no setting. Remove that line.")


_check_meanings()


# The command ----------------------------------------------------------------------------------------------------------


def demands_of(suite: type[Suite]) -> str:
    """What a conformance suite demands, and the check that looks at it."""
    return markdown_table(["demand", "check"], [[text, f"`{name}`"] for name, text in demands(suite).items()])


MADE: dict[str, Callable[[], str]] = {
    "families": families,
    "family_classes": lambda: classes(SKETCHES.built_in),
    "alphas": lambda: alphas(1024, 64),
    "algorithms": algorithms,
    "global_rate_constant": lambda: f"{1e3 * default_global_rate(1e-6):g}",
    "attacks": attacks,
    "codecs": codecs,
    "ensembles": ensembles,
    "models": models,
    "model_functions": lambda: functions(MODELS.built_in),
    "data_set_functions": lambda: functions(DATA_SETS.built_in),
    "partition_functions": lambda: functions(PARTITIONS.built_in),
    "data_options": data_options,
    "graphs": graphs,
    "graph_functions": lambda: functions(GRAPHS.built_in),
    "sketch_options": sketch_options,
    "subspace_options": subspace_options,
    "combine_rules": combine_rules,
    "combine_options": combine_options,
    "server_optimisers": server_optimisers,
    "server_options": server_options,
    "dome_findings": dome_findings,
    "codec_options": codec_options,
    "settings_top": lambda: settings(""),
    **{f"settings_{where}": partial(settings, where) for where in STRUCTS},
    "settings_of_algorithms": algorithm_settings,
    "parts": parts,
    "plugin_project": lambda: file_of_plugin("pyproject.toml"),
    "plugin_sketch": lambda: file_of_plugin("src/sketchfed_example/sketch.py"),
    "plugin_codec": lambda: file_of_plugin("src/sketchfed_example/codec.py"),
    "plugin_algorithm": lambda: file_of_plugin("src/sketchfed_example/algorithm.py"),
    "plugin_rule": lambda: file_of_plugin("src/sketchfed_example/rule.py"),
    "plugin_data": lambda: file_of_plugin("src/sketchfed_example/data.py"),
    "plugin_tests": lambda: file_of_plugin("tests/test_parts.py"),
    "plugin_run": lambda: file_of_plugin("rings.toml"),
    "plugin_stripes": lambda: file_of_plugin("stripes.toml"),
    "sketch_demands": lambda: demands_of(SketchConformance),
    "codec_demands": lambda: demands_of(CodecConformance),
    "algorithm_demands": lambda: demands_of(AlgorithmConformance),
    "combine_rule_demands": lambda: demands_of(CombineRuleConformance),
    **costs.MADE,
    **combined.MADE,
}
"""What stands between the markers of each name."""
MEASURED = {"slowest_tests"}
"""Tables that depend on the machine. Other commands write them, and they are never called stale."""
REMEDY = "Run `make tables` (python docs/tables.py) and commit what it writes."


@cache
def made(name: str) -> str | None:
    if name in MEASURED:
        return None
    if name not in MADE:
        raise MarkerError(f"nothing makes '{name}'. Names are {', '.join(sorted(MADE))}; docs/tables.py adds others.")
    return MADE[name]()


def main(arguments: Sequence[str] | None = None, pages: Iterable[Path] = PAGES) -> int:
    parser = argparse.ArgumentParser(description="Write the tables, lists and numbers of the pages anew.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with status 1 if something is stale")
    check: bool = parser.parse_args(arguments).check
    found = False
    for page in pages:
        text = page.read_text()
        try:
            renewed, stale = filled(text, made)
        except MarkerError as error:
            print(f"{shown(page)}: {error}", file=sys.stderr)
            return 1
        for name in stale:
            print(f"{shown(page)}: '{name}' is stale. {REMEDY}" if check else f"{shown(page)}: wrote '{name}'.")
        if stale and not check:
            page.write_text(renewed)
        found = found or bool(stale)
    if not found:
        print("All tables, lists and numbers are up to date.")
    return int(found and check)


if __name__ == "__main__":
    sys.exit(main())
