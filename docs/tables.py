"""Tables of these pages, made from the registries and from the configuration's structs, so that they cannot go stale."""

import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from sphinx.pycode import ModuleAnalyzer

from sketchfed import PublicSeed
from sketchfed.algorithms import ALGORITHMS, Algorithm
from sketchfed.algorithms.settings import CodecSettings, SketchSettings, SubspaceSettings
from sketchfed.attacks import ATTACKS
from sketchfed.codecs import CODECS, Codec, make_codec
from sketchfed.codecs.ensembles import ENSEMBLES
from sketchfed.codecs.rounding import WIDTHS
from sketchfed.config import Config, DataSettings, EngineSettings, ModelSettings
from sketchfed.data import DATA_SETS, PARTITIONS
from sketchfed.models import MODELS
from sketchfed.protection import PrivacySettings, SecureSettings
from sketchfed.sketches import SKETCHES
from sketchfed.subspaces import UPDATES

STRUCTS: dict[str, type] = {
    "data": DataSettings,
    "model": ModelSettings,
    "algorithm": Algorithm,
    "sketch": SketchSettings,
    "codec": CodecSettings,
    "subspace": SubspaceSettings,
    "privacy": PrivacySettings,
    "secure": SecureSettings,
    "engine": EngineSettings,
}
_TABLES = {*STRUCTS, "options"}  # fields that are tables of their own, or stand for the options of what `name` names

MEANINGS = {
    "name": "What the run and its folder are called; the configuration's file name if absent.",
    "seed": "Everything random comes from it: the partition, the first weights, cohorts, batches, sketches, rounding.",
    "data.name": "A [data set](data.md#data-sets), or `package.module:function` for [your own](data.md#your-own-data).",
    "data.partition": "How the examples are spread over the clients, one of the [partitions](data.md#partitions).",
    "model.name": "One of the [models](#models), or `package.module:function` for [your own](#from-python).",
    "algorithm.rounds": "After so many rounds the run ends.",
    "algorithm.local_steps": "Gradient steps of a client in a round. Excludes `local_epochs`.",
    "algorithm.local_rate": "The step of local training, η_local.",
    "algorithm.local_momentum": "Momentum of local training. It starts from zero each round.",
    "algorithm.weight_decay": "Adds (weight_decay/2)·‖w‖² to the loss of local training.",
    "algorithm.global_momentum": "Momentum of the server's step: v ← global_momentum·v + mean change.",
    "fedavg.error_feedback": "Each client keeps what its codec lost and adds it to its next update.",
    "fedavg.prediction": "Clients send what differs from [what is expected](algorithms.md#error-feedback-and-prediction).",
    "iterative.form": "De-sketch by Rᵀ, or by (size/dim)·Rᵀ with [error feedback](algorithms.md#the-projection-form).",
    "dbcl.output": "How the output layer travels; withheld, it is [fixed](dbcl.md#choices).",
    "dbcl.biases": "How biases of sketched layers travel; withheld, they are zero.",
    "fetchsgd.rows": "Independent count sketches in the table, an odd number; an estimate is the median over them.",
    "fetchsgd.masking": "Set the cells that were fetched from to zero, as the authors do, or subtract it, as printed.",
    "fetchsgd.global_momentum": "The key above with another default; here momentum lives inside the sketch.",
    "sketch.name": "One of the [families](sketches.md#the-families).",
    "sketch.ratio": "Coefficients / parameters, 0.1 without `size`; for `dbcl` / [a layer's inputs](dbcl.md#choices), 0.5.",
    "sketch.size": "The number of coefficients itself. Excludes `ratio`.",
    "sketch.bits": f"Bits a coefficient up: {', '.join(map(str, WIDTHS))}; [rounded](codecs.md#dithered-rounding) below 32.",
    "codec.name": "One of the [codecs](codecs.md).",
    "codec.ratio": "Numbers of an update divided by parameters. Without `size` too: 0.1, or all if the codec can.",
    "codec.size": "The number of numbers itself. Excludes `ratio`.",
    "dome.beta1": "How much of the running mean of changes a round leaves, Adam's β₁.",
    "dome.beta2": "Likewise for their squares, β₂.",
    "subspace.ratio": "Directions / parameters. Excludes `size`.",
    "engine.name": "Where the clients run; `local` is this process.",
}
"""Meanings of keys that have no docstring of their own in the code."""


def markdown_table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(headings), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


# The configuration ----------------------------------------------------------------------------------------------------


def settings(where: str) -> str:
    """Every key of a table of the configuration; "" is what stands above all tables."""
    kind = STRUCTS[where] if where else Config
    rows = [_row(where, kind, field) for field in fields(kind) if _is_setting(field.name)]
    return markdown_table(["key", "value", "default", "meaning"], rows)


def algorithm_settings() -> str:
    """The keys that single algorithms add to [algorithm], or give another default."""
    rows = []
    for name, kind in ALGORITHMS.items():
        own = [field for field in fields(kind) if field.name in kind.__annotations__ and _is_setting(field.name)]
        rows += [[f"`{name}`", *_row(name, kind, field)] for field in own]
    return markdown_table(["algorithm", "key", "value", "default", "meaning"], rows)


def _is_setting(name: str) -> bool:
    return name not in _TABLES and not name.startswith("_")


def _row(where: str, kind: type, field: "Field[Any]") -> list[str]:
    made = field.default_factory() if field.default_factory is not MISSING else None
    default = field.default if field.default is not MISSING else made
    return [f"`{field.name}`", _kind(get_type_hints(kind)[field.name]), _literal(default), _meaning(where, kind, field.name)]


def _meaning(where: str, kind: type, key: str) -> str:
    """The docstring below the field, in this class or the one that it inherits the field from, or what is written above."""
    for base in kind.__mro__:
        if key in inspect.get_annotations(base):
            documented = ModuleAnalyzer.for_module(base.__module__).find_attr_docs().get((base.__qualname__, key))
            if documented:
                return " ".join(filter(None, map(str.strip, documented)))
            break
    place = f"{where}.{key}" if where else key
    if place not in MEANINGS:
        raise LookupError(f"the setting {place} is not explained: write a docstring below it, or a line in docs/tables.py.")
    return MEANINGS[place]


_KINDS = {int: "integer", float: "number", str: "text", bool: "`true`, `false`"}


def _kind(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_kind(part) for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is list:
        return f"list of {_kind(get_args(hint)[0])}"
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
    rows = [[f"`{name}`", _summary(model), _options(model, besides=("shape", "outputs"))] for name, model in MODELS.items()]
    return markdown_table(["name", "what it is", "options"], rows)


def data_options() -> str:
    """Data sets and partitions that take options, all of which stand in [data]."""
    made = [(f"data set `{name}`", _options(loader)) for name, loader in DATA_SETS.items()]
    made += [(f"partition `{name}`", _options(part, besides=("data", "clients", "seed"))) for name, part in PARTITIONS.items()]
    return markdown_table(["of", "options"], [line for line in made if line[1]])


def sketch_options() -> str:
    made = [[f"`{name}`", _fields(family, besides=("dim", "size", "seed"))] for name, family in SKETCHES.items()]
    return markdown_table(["family", "options"], [line for line in made if line[1]])


def subspace_options() -> str:
    made = [[f"`{name}`", rule.summary, _fields(rule, besides=()), rule.source] for name, rule in UPDATES.items()]
    return markdown_table(["rule", "what it does", "options", "from"], made)


def dome_findings() -> str:
    """Points against the random sketch of the same size, from what `experiments/dome-accuracy` recorded: a column a size."""
    lines = (Path(__file__).parents[1] / "experiments" / "dome-accuracy" / "findings.md").read_text().splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    sizes = list(dict.fromkeys(size for size, *_ in cells))
    found = {(method, size): points for size, method, *_, points in cells}
    methods = dict.fromkeys(method for _, method, *_ in cells)
    rows = [[method, *(found.get((method, size), "–") for size in sizes)] for method in methods]
    return markdown_table(["", *(f"{size} numbers" for size in sizes)], rows)


def codec_options() -> str:
    """The options of every codec in [codec]; those of 'sketched' are in [sketch]."""
    given = ("dim", "size", "clients", "norm_bound")
    made = [[f"`{name}`", _fields(kind, besides=given)] for name, kind in CODECS.items() if name != "sketched"]
    return markdown_table(["codec", "options"], [line for line in made if line[1]])


def algorithms() -> str:
    rows = [[f"`{name}`", a.summary, "updates" if a.incremental else "models", a.source] for name, a in ALGORITHMS.items()]
    return markdown_table(["name", "what it does", "the server sends", "from"], rows)


def attacks() -> str:
    rows = [[attack.goal, f"`{name}`", attack.summary, attack.source] for name, attack in ATTACKS.items()]
    return markdown_table(["after", "name", "what it does", "from"], rows)


def codecs() -> str:
    made = {name: make_codec(name, dim=1_000, size=100, clients=10) for name in CODECS}
    rows = [[f"`{name}`", c.summary, _yes(c.unbiased), _sums(c), c.source] for name, c in made.items()]
    return markdown_table(["name", "what it sends", "unbiased", "sums decode", "from"], rows)


def _sums(codec: Codec) -> str:
    """Whether sums of packets decode, which may hang on the number of bits."""
    return "at 32 bits" if codec.additive and getattr(codec, "bits", None) == 32 else _yes(codec.additive)


def ensembles() -> str:
    rows = [[f"`{name}`", kind.summary, _yes(kind.orthonormal)] for name, kind in ENSEMBLES.items()]
    return markdown_table(["name", "maps", "orthonormal rows"], rows)


def families() -> str:
    rows = [[f"`{name}`", f.summary, f.alpha_formula, f.cost, f.source] for name, f in SKETCHES.items()]
    return markdown_table(["name", "what it is", "α", "cost", "definition"], rows)


def alphas(dim: int, size: int) -> str:
    made = {name: family(dim=dim, size=size, seed=PublicSeed(0)) for name, family in SKETCHES.items()}
    rows = [[f"`{name}`", f"{s.alpha:,.2f}", f"{s.exact_alpha:,.2f}"] for name, s in made.items()]
    return markdown_table(["name", f"`alpha` at dim {dim:,}, size {size:,}", "`exact_alpha`"], rows)


def classes(registry: Mapping[str, type], *options: str) -> str:
    """Directives that document every class of a registry."""
    lines = [line for kind in registry.values() for line in (f".. autoclass:: {kind.__module__}.{kind.__qualname__}", *options)]
    return "\n".join(["```{eval-rst}", *lines, "```"])


def functions(registry: Mapping[str, Callable[..., Any]]) -> str:
    """Directives that document every function of a registry."""
    lines = [f".. autofunction:: {function.__module__}.{function.__qualname__}" for function in registry.values()]
    return "\n".join(["```{eval-rst}", *lines, "```"])


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
    known |= {f"{where}.{field.name}" for where, kind in (STRUCTS | ALGORITHMS).items() for field in fields(kind)}
    for place in MEANINGS:
        if place not in known:
            raise LookupError(f"docs/tables.py explains {place}, which is no setting. Remove that line.")


_check_meanings()
