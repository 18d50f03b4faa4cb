"""A run's configuration: frozen structs from one TOML file; what cannot work is refused before round 1."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

import tomli_w
from torch import nn

from sketchfed.algorithms import ALGORITHMS, Algorithm, FedAvg, Iterative
from sketchfed.algorithms.settings import CodecSettings, SketchSettings, SubspaceSettings
from sketchfed.data import DATA_SETS, PARTITIONS
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.models import MODELS
from sketchfed.plugins import resolve
from sketchfed.protection import PrivacySettings, Protection, SecureSettings, make_protection
from sketchfed.protection.resolve import completed_work
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import SKETCHES
from sketchfed.tables import Table, change, check_keys, check_type, copied, flat, keys_of, read_toml, to_struct, with_options

TABLES = ("data", "model", "algorithm", "sketch", "codec", "subspace", "privacy", "secure", "engine")
_INNER: dict[str, type] = {"sketch": SketchSettings, "codec": CodecSettings, "subspace": SubspaceSettings}
_GIVEN_TO_PARTITIONS = ("data", "clients", "seed")
_GIVEN_TO_MODELS = ("shape", "outputs")
GIVEN = "given"
"""The name of a model or of data that came as Python objects: only a Python program can run it again."""


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The table [data]: which data set, over how many clients, spread how."""

    name: str = "digits"
    clients: int | None = None
    """Twenty if absent, or as many as there are owners for the partition 'natural'."""
    partition: str = "iid"
    validation: float = 0.0
    """The share of the training examples that is held out and scored in place of the test set: for tuning."""
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.partition not in PARTITIONS:
            raise UnknownNameError("partition", self.partition, PARTITIONS)
        if self.name not in DATA_SETS and ":" not in self.name and self.name != GIVEN:
            raise UnknownNameError("data set", self.name, [*DATA_SETS, "package.module:function"])
        if self.clients is not None and self.clients < 1:
            raise InputError(f"data.clients must be at least 1, got {self.clients}.")
        if not 0 <= self.validation < 1:
            raise InputError(f"data.validation is a share of the training examples, from 0 to below 1, got {self.validation}.")
        self.split_options()

    def split_options(self) -> tuple[Table, Table]:
        """The options of the data set, and those of the partition."""
        loader = _part("data set", self.name, DATA_SETS)
        of_partition = _options(PARTITIONS[self.partition], besides=_GIVEN_TO_PARTITIONS)
        of_loader = _options(loader)
        if _takes_any(loader):
            of_loader |= {key: None for key in self.options if key not in of_partition}
        check_keys("data", self.options, [*keys_of(DataSettings), *of_loader, *of_partition])
        return _chosen(self.options, of_loader), _chosen(self.options, of_partition)

    def completed(self, clients: int) -> "DataSettings":
        """The same with every option that has a default, and the number of clients."""
        of_loader = _options(_part("data set", self.name, DATA_SETS))
        of_partition = _options(PARTITIONS[self.partition], besides=_GIVEN_TO_PARTITIONS)
        return replace(self, clients=clients, options=_known(of_loader | of_partition) | self.options)


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The table [model]: a name, and the options of that model."""

    name: str = "mlp"
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in MODELS and ":" not in self.name and self.name != GIVEN:
            raise UnknownNameError("model", self.name, [*MODELS, "package.module:function"])
        builder = _part("model", self.name, MODELS)
        if not _takes_any(builder):
            check_keys("model", self.options, ["name", *_options(builder, besides=_GIVEN_TO_MODELS)])
        for option in self.options if self.name in MODELS else ():
            check_type(self.options[option], get_type_hints(builder)[option], f"model.{option}")

    def completed(self) -> "ModelSettings":
        """The same with every option that has a default."""
        defaults = _known(_options(_part("model", self.name, MODELS), besides=_GIVEN_TO_MODELS))
        return replace(self, options=defaults | self.options)


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """The table [engine]: where the clients run, and what is looked at on the way."""

    name: Literal["local", "flower"] = "local"
    """In this process, or on the SuperNodes of a Flower federation."""
    workers: int = 0
    """Threads; 0 takes as many as there are cores. Results do not depend on it."""
    evaluate_every: int = 1
    """Score the model each so many rounds, and after the last."""
    checkpoint_seconds: float = 2.0
    """A run that is kept in a folder is saved after the first round that ends so much later; 0 saves every round."""
    target_accuracy: float | None = None
    """Stop after the first round whose score reaches it."""
    record: bool = False
    """Keep every request and reply in the run's folder (wire.bin), for `sketchfed audit`."""
    address: str = ""
    """For flower: the SuperLink, as host:port."""
    root_certificates: str = ""
    """For flower: the file of the certificate authority that vouches for the SuperLink; the system's if absent."""
    insecure: bool = False
    """For flower: no TLS. For a network that nobody else is on."""
    secret: str = ""
    """For flower: the file of the SuperExec secret, if the SuperLink was started with one."""
    deadline: float = 60.0
    """For flower: seconds that a client has for an answer; who takes longer has dropped out of that round."""
    wait: float = 120.0
    """For flower: seconds to wait for the SuperLink, and for `data.clients` nodes to join before round 1."""

    def __post_init__(self) -> None:
        if not (0 < self.deadline < float("inf") and 0 < self.wait < float("inf")):
            raise InputError(f"engine.deadline and engine.wait are seconds, above 0, got {self.deadline} and {self.wait}.")
        if not self.checkpoint_seconds >= 0:
            raise InputError(f"engine.checkpoint_seconds must not be negative, got {self.checkpoint_seconds}.")
        if self.target_accuracy is not None and not 0 < self.target_accuracy <= 1:
            raise InputError(f"engine.target_accuracy is a share, above 0 and at most 1, got {self.target_accuracy}.")
        if self.workers < 0 or self.evaluate_every < 1:
            raise InputError(
                f"engine.workers must not be negative and engine.evaluate_every at least 1, got {self.workers} and "
                f"{self.evaluate_every}."
            )


@dataclass(frozen=True, kw_only=True)
class Config:
    """All of a run's settings."""

    name: str = ""
    seed: int = 0
    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    algorithm: Algorithm = field(default_factory=FedAvg)
    privacy: PrivacySettings | None = None
    secure: SecureSettings | None = None
    engine: EngineSettings = field(default_factory=EngineSettings)

    def __post_init__(self) -> None:
        if self.name and (not self.name.isprintable() or set(self.name) & set('/\\:*?"<>|') or self.name.startswith(".")):
            raise InputError(f"name becomes a folder, so it has no slashes or other special signs; got {self.name!r}.")
        if not 0 <= self.seed < 2**64:
            raise InputError(f"seed must be from 0 to 2^64 - 1, got {self.seed}.")

    @property
    def label(self) -> str:
        """The algorithm and what it sends, in a few words."""
        sketch: SketchSettings | None = getattr(self.algorithm, "sketch", None)
        codec: CodecSettings | None = getattr(self.algorithm, "codec", None)
        words = [self.algorithm.name]
        if codec is not None and codec.label:
            words.append(codec.label)
        subspace: SubspaceSettings | None = getattr(self.algorithm, "subspace", None)
        if sketch is not None:
            words.append(sketch.label)
        if subspace is not None and subspace.label:
            words.append(subspace.label)
        for setting, chosen, word in (
            ("form", "projection", "projection"),
            ("error_feedback", True, "error feedback"),
            ("prediction", True, "prediction"),
            ("paper", True, "as printed"),
        ):
            if getattr(self.algorithm, setting, None) == chosen:
                words.append(word)
        if self.privacy is not None:
            words.append(self.privacy.name.replace("_", " "))
        if self.secure is not None and self.secure.aggregation:
            words.append("secure sums")
        return " ".join(words)

    def completed(self, *, dim: int, sizes: Sequence[int], module: nn.Module | None = None) -> "Config":
        """The same with every default spelled out, also those that hang on the model's size and the clients' examples.

        `sizes` says how many examples each client has. Algorithms that look at layers need the `module`.
        """
        clients = len(sizes)
        algorithm = completed_work(self.algorithm.resolved(dim, clients), self.privacy)
        if algorithm.local_steps is None:
            algorithm = replace(algorithm, local_epochs=algorithm.work.epochs)
        sketch: SketchSettings | None = getattr(algorithm, "sketch", None)
        if sketch is not None and sketch.ratio is None and sketch.size is None:
            ratio = sketch.size_for(1_000) / 1_000
            algorithm = replace(algorithm, sketch=replace(sketch, ratio=ratio))  # type: ignore[call-arg]
        data, model = self.data.completed(clients), self.model.completed()
        full = replace(self, data=data, model=model, algorithm=algorithm)
        protection = full.protection(dim=dim, sizes=sizes, module=module)
        return full if protection is None else replace(full, privacy=protection.privacy)

    def protection(self, *, dim: int, sizes: Sequence[int], module: nn.Module | None = None) -> Protection | None:
        """How updates are protected between encoding and the wire."""
        seed, algorithm = PublicSeed(self.seed), self.algorithm if module is None else self.algorithm.fitted(module)
        return make_protection(algorithm, privacy=self.privacy, secure=self.secure, dim=dim, sizes=sizes, seed=seed)

    def to_tables(self) -> Table:
        """Plain tables from which `load_config` makes the same configuration."""
        tables: Table = {"name": self.name, "seed": self.seed, "data": flat(self.data), "model": flat(self.model)}
        tables["algorithm"] = {"name": self.algorithm.name} | flat(self.algorithm)
        for inner in _INNER:
            settings = getattr(self.algorithm, inner, None)
            tables["algorithm"].pop(inner, None)
            if settings is not None:
                tables[inner] = flat(settings)
        for name, settings in (("privacy", self.privacy), ("secure", self.secure)):
            if settings is not None:
                tables[name] = flat(settings)
        tables["engine"] = flat(self.engine)
        return tables

    def to_toml(self) -> str:
        """The configuration as a file."""
        return tomli_w.dumps(self.to_tables())


def load_config(source: "Config | Mapping[str, Any] | str | Path", changes: Sequence[str] = ()) -> Config:
    """A configuration from a TOML file or from plain tables, with changes such as `algorithm.rounds=20`.

    >>> config = load_config({"algorithm": {"name": "iterative", "rounds": 5}, "sketch": {"ratio": 0.01}}, ["sketch.bits=4"])
    >>> config.label
    'iterative srht 1/100 4 bits'
    """
    if isinstance(source, Config):
        source = source.to_tables()
    tables: Table = read_toml(source) if isinstance(source, str | Path) else copied(source)
    for text in changes:
        change(tables, text)
    for key in tables:
        if key not in ("name", "seed", *TABLES):
            raise UnknownNameError("table or key", key, ["name", "seed", *TABLES])
    for key in TABLES:
        if not isinstance(tables.get(key, {}), dict):
            raise InputError(f"[{key}] must be a table, got {key} = {tables[key]!r}. Write it as [{key}] with its keys below.")
    for key, kind in (("name", str), ("seed", int)):
        if type(tables.get(key, kind())) is not kind:
            raise InputError(f"{key} must be {'text' if kind is str else 'an integer'}, got {tables[key]!r}.")
    plain: dict[str, type] = {"engine": EngineSettings, "privacy": PrivacySettings, "secure": SecureSettings}
    for key, settings in plain.items():
        check_keys(key, tables.get(key, {}), keys_of(settings))
    algorithm = _algorithm(tables)
    return Config(
        **{key: tables[key] for key in ("name", "seed") if key in tables},
        data=to_struct(with_options(tables.get("data", {}), DataSettings), DataSettings, "data"),
        model=to_struct(with_options(tables.get("model", {}), ModelSettings), ModelSettings, "model"),
        algorithm=algorithm,
        privacy=_privacy(tables, algorithm),
        secure=to_struct(tables["secure"], SecureSettings, "secure") if "secure" in tables else None,
        engine=to_struct(tables.get("engine", {}), EngineSettings, "engine"),
    )


def _algorithm(tables: Table) -> Algorithm:
    table = dict(tables.get("algorithm", {}))
    name = table.pop("name", FedAvg.name)
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise UnknownNameError("algorithm", name, ALGORITHMS)
    kind = ALGORITHMS[name]
    for inner in _INNER:
        if inner in table:
            raise InputError(f"write [{inner}] as a table of its own, not inside [algorithm].")
        if inner in tables and inner not in keys_of(kind):
            raise InputError(f"algorithm '{name}' has no use for [{inner}]. Remove that table, or choose another algorithm.")
    sketched = kind is FedAvg and tables.get("codec", {}).get("name") == "sketched"
    if kind is FedAvg and "sketch" in tables and not sketched:
        raise InputError(
            "[sketch] is not used by algorithm 'fedavg' unless its codec is 'sketched'. Add [codec] with name = \"sketched\", "
            "choose algorithm 'iterative', or remove [sketch]."
        )
    check_keys("algorithm", table, ["name", *(key for key in keys_of(kind) if key not in _INNER)])
    given = {inner: tables[inner] for inner in _INNER if inner in tables}
    if sketched:
        given.setdefault("sketch", {})
    for inner, own in given.items():
        default = getattr(kind(), inner) or _INNER[inner]()
        usual = {} if {"ratio", "size"} & own.keys() or default.ratio is None else {"ratio": default.ratio}
        table[inner] = with_options({"name": default.name} | usual | own, _INNER[inner])
    algorithm = to_struct(table, kind, "algorithm")
    sketch: SketchSettings | None = getattr(algorithm, "sketch", None)
    if sketch is not None:
        _check_sketch(sketch, algorithm)
    return algorithm


def _privacy(tables: Table, algorithm: Algorithm) -> PrivacySettings | None:
    """The table [privacy]; a private algorithm adds noise as its paper does, unless something else is said."""
    if "privacy" not in tables:
        if algorithm.private:
            raise InputError(
                f"algorithm '{algorithm.name}' runs with noise only. Add [privacy] with epsilon, or choose 'iterative'."
            )
        return None
    own = {"unit": "example"} if algorithm.private else {}
    if algorithm.private and tables["privacy"].get("name", "gaussian") == "gaussian":
        own["placement"] = "steps"
    return to_struct(own | tables["privacy"], PrivacySettings, "privacy")


def _check_sketch(sketch: SketchSettings, algorithm: Algorithm) -> None:
    """Refuse in [sketch] what its family or the algorithm has no use for."""
    options = [option.name for option in fields(SKETCHES[sketch.name]) if option.name not in ("dim", "size", "seed")]
    check_keys("sketch", sketch.options, [*keys_of(SketchSettings), *options])
    if sketch.bits_down is not None and not isinstance(algorithm, Iterative):
        raise InputError(
            f"sketch.bits_down = {sketch.bits_down} has no effect: with algorithm '{algorithm.name}' no sketch travels down. "
            "Remove it, or choose algorithm 'iterative'."
        )


def _part(kind: str, name: str, registry: Mapping[str, Callable[..., Any]]) -> Callable[..., Any] | None:
    """The function that makes what a table names; None where Python objects were given."""
    return registry.get(name) or (resolve(name, kind) if ":" in name else None)


def _parameters(function: Callable[..., Any] | None) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values()) if function else []
    except ValueError:  # some functions written in C do not tell
        return []


def _options(function: Callable[..., Any] | None, besides: Iterable[str] = ()) -> Table:
    """What a function can be told, with its defaults; None where it has none."""
    named = [p for p in _parameters(function) if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return {p.name: None if p.default is p.empty else p.default for p in named if p.name not in besides}


def _takes_any(function: Callable[..., Any] | None) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in _parameters(function))


def _known(options: Table) -> Table:
    """The options that have a default which a file can hold."""
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    return {name: value for name, value in plain.items() if isinstance(value, bool | int | float | str | list)}


def _chosen(options: Table, known: Iterable[str]) -> Table:
    return {key: value for key, value in options.items() if key in known}
