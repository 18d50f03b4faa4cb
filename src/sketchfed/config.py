"""The configuration of a run: frozen structs from one TOML file. Settings that cannot work are refused before round 1."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

import tomli_w
from torch import nn

from sketchfed.algorithms import (
    ALGORITHMS,
    Algorithm,
    CodecSettings,
    CombineSettings,
    FedAvg,
    ServerSettings,
    SketchSettings,
    SubspaceSettings,
)
from sketchfed.algorithms.beside import extended
from sketchfed.algorithms.chosen import ChosenPart
from sketchfed.algorithms.settings import decoding_on
from sketchfed.data import DATA_SETS, PARTITIONS
from sketchfed.devices import check_name, device_named
from sketchfed.errors import FaultyPartError, InputError, UnknownNameError
from sketchfed.models import MODELS
from sketchfed.nn.sharing import shared
from sketchfed.parts import Registry, short
from sketchfed.protection import PrivacySettings, Protection, SecureSettings, completed_work, make_protection
from sketchfed.rounds import AsynchronousSettings, Participant
from sketchfed.seeds import PublicSeed
from sketchfed.tables import (
    Table,
    change,
    check_keys,
    check_type,
    chosen_of,
    copied,
    flat,
    keys_of,
    options_of,
    read_toml,
    takes_any,
    to_struct,
    with_options,
    writable,
)
from sketchfed.training import LOSSES, METRICS, Trainer, TrainingSettings

__all__ = [
    "ENGINES",
    "Config",
    "DataSettings",
    "EngineSettings",
    "ModelSettings",
    "load_config",
]

TABLES = (
    "data",
    "model",
    "training",
    "algorithm",
    "sketch",
    "codec",
    "subspace",
    "combine",
    "server",
    "privacy",
    "secure",
    "asynchronous",
    "engine",
)
_INNER: dict[str, type] = {"sketch": SketchSettings, "codec": CodecSettings, "subspace": SubspaceSettings}
_CHOSEN: dict[str, tuple[str, type[ChosenPart]]] = {
    kind.key: (name, kind) for name, kind in (("combine", CombineSettings), ("server_optimiser", ServerSettings))
}
"""The keys of [algorithm] that name a part whose options are in a table of that key: the field, and the settings."""
_GIVEN_TO_PARTITIONS = ("data", "clients", "seed")
_GIVEN_TO_MODELS = ("shape", "outputs")
_GIVEN_TO_ENGINES = ("config", "workload", "folder")
GIVEN = "given"
"""The name of a model or of data that were passed as Python objects. Only a Python program can run them again."""


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The table [data]: the data set, the number of clients, and how the data is split among them."""

    name: str = "digits"
    clients: int | None = None
    """The number of clients. If absent, 20, or the number of owners for the partition 'natural'."""
    partition: str = "iid"
    validation: float = 0.0
    """The share of the training examples that is held out and scored instead of the test set, for tuning."""
    client_validation: float | None = None
    """With `training.evaluate_clients`, the share of each client's examples that is held out to evaluate the client. If absent,
    a client is evaluated on what it trains on."""
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.clients is not None and self.clients < 1:
            raise InputError(f"data.clients must be at least 1, got {self.clients}.")
        if not 0 <= self.validation < 1:
            raise InputError(
                f"data.validation is a share of the training examples, so it must be from 0 to below 1, got {self.validation}."
            )
        if self.client_validation is not None and not 0 < self.client_validation < 1:
            raise InputError(
                f"data.client_validation is a share of each client's examples, so it must be above 0 and below 1, got "
                f"{self.client_validation}. Leave it out to evaluate clients on what they train on."
            )
        self.split_options()

    def split_options(self) -> tuple[Table, Table]:
        """Split the options into those of the data set and those of the partition."""
        loader = _part(self.name, DATA_SETS)
        of_partition = options_of(PARTITIONS[self.partition], besides=_GIVEN_TO_PARTITIONS)
        of_loader = options_of(loader)
        if takes_any(loader):
            of_loader |= {key: None for key in self.options if key not in of_partition}
        check_keys("data", self.options, [*keys_of(DataSettings), *of_loader, *of_partition])
        return chosen_of(self.options, of_loader), chosen_of(self.options, of_partition)

    def completed(self, clients: int) -> "DataSettings":
        """Return these settings with the number of clients and the default of every option filled in."""
        of_loader = options_of(_part(self.name, DATA_SETS))
        of_partition = options_of(PARTITIONS[self.partition], besides=_GIVEN_TO_PARTITIONS)
        return replace(self, clients=clients, options=writable(of_loader | of_partition) | self.options)


SHARING: dict[str, Any] = {"buffers": None, "running": None, "personal": None}
"""The settings of [model] that apply to a module of the user's own, and their defaults."""


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The table [model]: the name of a model, its loss and metric, and its options."""

    name: str = "mlp"
    loss: str | None = None
    """The loss that training minimises. If absent, 'cross_entropy' for classes and 'squares' for numbers."""
    metric: str | list[str] | None = None
    """Additional metrics for the held-out data, each in its own column: `top5` (or `top2` and so on), `f1`, `auroc` and
    `perplexity` for classes, `mse`, `mae` and `r2` for numbers, or your own. The loss, and for classes the accuracy, are always
    reported."""
    buffers: Literal["average", "local"] | None = None
    """What happens to [running statistics](training.md#batchnorm-and-other-buffers), such as those of BatchNorm: `average`
    sends them beside the update, as they are, and `local` leaves them with each client. If absent, a model that has some is
    refused."""
    running: list[str] | None = None
    """Patterns of names of further buffers to which `buffers` applies."""
    personal: list[str] | None = None
    """Patterns of names of [parameters that never leave the client](training.md#personal-layers), such as `["head.*"]`."""
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.running and self.buffers is None:
            raise InputError(
                "model.running names buffers, and nothing says what happens to them. Set model.buffers = 'average'."
            )
        metrics = [self.metric] if isinstance(self.metric, str) else self.metric or []
        for metric in metrics:
            METRICS[metric]  # raises an error for an unknown name
        if self.loss is not None:
            LOSSES[self.loss]
        builder = _part(self.name, MODELS)
        if not takes_any(builder):
            check_keys("model", self.options, [*keys_of(ModelSettings), *options_of(builder, besides=_GIVEN_TO_MODELS)])
        for option in self.options if self.name in MODELS.built_in else ():
            check_type(self.options[option], get_type_hints(builder)[option], f"model.{option}")

    def completed(self) -> "ModelSettings":
        """Return these settings with the default of every option filled in."""
        defaults = writable(options_of(_part(self.name, MODELS), besides=_GIVEN_TO_MODELS))
        return replace(self, options=defaults | self.options)

    def shared(self, module: nn.Module) -> nn.Module:
        """The module that knows which of its parts are shared."""
        return shared(module, buffers=self.buffers, running=self.running or (), personal=self.personal or ())


ENGINES: Registry[Callable[..., Any]] = Registry(
    "engine",
    {"local": "sketchfed.runs.hosts:LocalHost", "flower": "sketchfed.flower.federation:Federation"},
    group="sketchfed.engines",
)
"""The places where clients can run, by name: subclasses of `sketchfed.runs.hosts.Host`."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """The table [engine]: where the clients run, and what is scored, saved and recorded during the run."""

    name: str = "local"
    """Where clients run: `local` is this process, and `flower` means the SuperNodes of a Flower federation.
    `package.module:Host` names your own."""
    workers: int = 0
    """The number of threads. 0 uses one thread per core. Results do not depend on it."""
    device: str = "cpu"
    """[Where training, encoding and decoding run](training.md#devices): `cpu`, `cuda`, `cuda:1`, `mps`, or `auto`, which is a
    GPU if there is one. For flower, each node says it for itself."""
    evaluate_every: int = 1
    """The model is scored every `evaluate_every` rounds, and after the last round."""
    checkpoint_seconds: float = 2.0
    """A run with a folder is saved after the first round that ends at least this many seconds after the last save. 0
    saves every round."""
    target_accuracy: float | None = None
    """The run stops after the first round whose accuracy reaches this value."""
    record: bool = False
    """Whether every request and reply of training is kept in the run's folder (wire.bin), for `sketchfed audit`."""
    address: str = ""
    """For flower: the address of the SuperLink, as host:port."""
    root_certificates: str = ""
    """For flower: the certificate file of the authority that signed the SuperLink's certificate. If absent, the system's
    certificates are used."""
    insecure: bool = False
    """For flower: connect without TLS. Use it only in a network that nobody else can access."""
    secret: str = ""
    """For flower: the file of the SuperExec secret, if the SuperLink was started with one."""
    deadline: float = 60.0
    """For flower: the seconds that a client has to answer. A client that takes longer has dropped out of the round."""
    wait: float = 120.0
    """For flower: the seconds to wait for the SuperLink, and for `data.clients` nodes to join before round 1."""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def threads(self) -> int:
        """The number of threads, with 0 resolved to the number of cores."""
        return self.workers or os.cpu_count() or 1

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise UnknownNameError(ENGINES.kind, self.name, ENGINES.choices())
        own = () if self.name in ENGINES.built_in else options_of(ENGINES[self.name], besides=_GIVEN_TO_ENGINES)
        check_keys("engine", self.options, [*keys_of(EngineSettings), *own])
        if not (0 < self.deadline < float("inf") and 0 < self.wait < float("inf")):
            raise InputError(
                f"engine.deadline and engine.wait are numbers of seconds above 0, got {self.deadline} and {self.wait}."
            )
        check_name(self.device)
        if not self.checkpoint_seconds >= 0:
            raise InputError(f"engine.checkpoint_seconds must not be negative, got {self.checkpoint_seconds}.")
        if self.target_accuracy is not None and not 0 < self.target_accuracy <= 1:
            raise InputError(f"engine.target_accuracy must be above 0 and at most 1, got {self.target_accuracy}.")
        if self.workers < 0 or self.evaluate_every < 1:
            raise InputError(
                f"engine.workers must not be negative, and engine.evaluate_every must be at least 1, got {self.workers} and "
                f"{self.evaluate_every}."
            )


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a run."""

    name: str = ""
    seed: int = 0
    joint: str = ""
    """32 hexadecimal digits: randomness that the server and the clients of a federation drew together. Cohorts, groups, batches
    and sketches follow from it, so that no server can choose them. If absent, they follow from `seed`."""
    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    algorithm: Algorithm = field(default_factory=FedAvg)
    privacy: PrivacySettings | None = None
    secure: SecureSettings | None = None
    asynchronous: AsynchronousSettings | None = None
    engine: EngineSettings = field(default_factory=EngineSettings)

    def __post_init__(self) -> None:
        if self.name and (not self.name.isprintable() or set(self.name) & set('/\\:*?"<>|') or self.name.startswith(".")):
            raise InputError(
                "name becomes the name of a folder, so it must not begin with a dot or contain slashes or other special "
                f"characters; got {self.name!r}."
            )
        if not 0 <= self.seed < 2**64:
            raise InputError(f"seed must be from 0 to 2^64 - 1, got {self.seed}.")
        if self.joint and not re.fullmatch("[0-9a-f]{32}", self.joint):
            raise InputError(f"joint must be 32 hexadecimal digits, got {self.joint!r}. Leave it out; a federation draws it.")
        self._check_personal()
        self._check_evaluation()

    def _check_personal(self) -> None:
        """Refuse personal layers with privacy for examples: trained without noise, they would carry one example to others."""
        if self.model.personal and self.privacy is not None and self.privacy.unit == "example":
            raise InputError(
                "model.personal does not go with privacy.unit = 'example': the gradient of every example depends on the "
                "personal layers, so they would have to be trained with noise, and only what is shared is trained with noise. "
                "Use privacy.unit = 'client', or remove personal."
            )

    def _check_evaluation(self) -> None:
        """Refuse to evaluate on clients where their metrics would tell what the run hides, or clients lack the model."""
        if not self.training.evaluate_clients:
            if self.data.client_validation is not None:
                raise InputError(
                    f"data.client_validation = {self.data.client_validation} holds out examples that nothing evaluates. Set "
                    "training.evaluate_clients = true, or remove it."
                )
            return
        if self.privacy is not None or self.secure is not None:
            table = "privacy" if self.privacy is not None else "secure"
            raise InputError(
                f"training.evaluate_clients = true shows single clients' metrics, and [{table}] hides single clients: no noise "
                "covers their metrics, and no secure sum adds them up. Remove evaluate_clients, and evaluate on the server's "
                f"test data. Or remove [{table}] in a simulation, to see how clients differ."
            )
        if not self.algorithm.shows_weights:
            raise InputError(
                f"training.evaluate_clients = true needs clients that hold the model, and clients of '{self.algorithm.name}' "
                "see sketched layers only. Remove evaluate_clients."
            )

    @property
    def shared_seed(self) -> PublicSeed:
        """The seed of everything that all parties of a round share."""
        return PublicSeed.from_bytes(bytes.fromhex(self.joint)) if self.joint else PublicSeed(self.seed)

    @property
    def label(self) -> str:
        """A short description of the algorithm and what it sends."""
        words = [self.algorithm.label]
        if self.training.proximal:
            words.append(f"proximal {self.training.proximal:g}")
        if self.privacy is not None:
            words.append(short(self.privacy.name).replace("_", " "))
        if self.secure is not None and self.secure.aggregation:
            words.append("secure sums")
        if self.asynchronous is not None:
            words.append(self.asynchronous.label)
        return " ".join(words)

    def completed(self, *, dim: int, sizes: Sequence[int], module: nn.Module | None = None) -> "Config":
        """Return this configuration with every default filled in.

        Some defaults depend on the model's size `dim` and on `sizes`, the number of examples of each client. Algorithms that
        treat layers differently need the `module`.
        """
        clients = len(sizes)
        algorithm = completed_work(self._resolved(dim, clients, module), self.privacy)
        if algorithm.global_rate is None:
            raise FaultyPartError(algorithm, "algorithm", "leaves global_rate open. Its `resolved` must choose a number")
        if algorithm.local_steps is None:
            algorithm = replace(algorithm, local_epochs=algorithm.work.epochs)
        algorithm = replace(algorithm, **{name: getattr(algorithm, name).completed() for name, _ in _CHOSEN.values()})
        data, model = self.data.completed(clients), self.model.completed()
        full = replace(self, data=data, model=model, algorithm=algorithm, asynchronous=self._buffered(algorithm, clients))
        budget = full.protection(dim=dim, sizes=sizes, module=module).budget
        return full if budget is None else replace(full, privacy=budget.settings)

    def _buffered(self, algorithm: Algorithm, clients: int) -> AsynchronousSettings | None:
        if self.asynchronous is None:
            return None
        secure = self.secure is not None and self.secure.aggregation
        protected = "secure" if secure else "privacy" if self.privacy is not None else ""
        self.asynchronous.check(algorithm, protected=protected, engine=self.engine.name, recorded=self.engine.record)
        return self.asynchronous.completed(clients)

    def protection(self, *, dim: int, sizes: Sequence[int], module: nn.Module | None = None) -> Protection:
        """Make the protection of the updates between encoding and sending."""
        seed, algorithm = self.shared_seed, self._resolved(dim, len(sizes), module)
        return make_protection(algorithm, privacy=self.privacy, secure=self.secure, dim=dim, sizes=sizes, seed=seed)

    def _resolved(self, dim: int, clients: int, module: nn.Module | None) -> Algorithm:
        if self.algorithm.alone:
            self.algorithm.segmented(dim, clients, module)  # refuses what its steps would not move
        return self.algorithm.resolved(dim, clients, module)

    def participant(self, trainer: Trainer, sizes: Sequence[int], module: nn.Module | None = None) -> Participant:
        """Make the participant of a completed configuration. `sizes` is the number of examples of each client.

        Sketches are undone on `engine.device`. Where `trainer` trains is its own matter.
        """
        there = replace(self, algorithm=decoding_on(self.algorithm, device_named(self.engine.device)))
        protection = there.protection(dim=trainer.dim, sizes=sizes, module=module)
        trainer = extended(trainer, protection.algorithm, sizes, self.shared_seed)
        proximal = self.training.proximal
        return Participant(trainer=trainer, seed=self.shared_seed, protection=protection, proximal=proximal)

    def to_tables(self) -> Table:
        """Convert to plain tables, from which `load_config` makes the same configuration."""
        keys = {"name": self.name, "seed": self.seed} | ({"joint": self.joint} if self.joint else {})
        tables: Table = {**keys, "data": flat(self.data), "model": flat(self.model)}
        if not self.training.usual:
            tables["training"] = self.training.table()
        tables["algorithm"] = {"name": ALGORITHMS.name_of(type(self.algorithm))} | flat(self.algorithm)
        for inner, settings in self.algorithm.tables.items():
            del tables["algorithm"][inner]
            if not isinstance(settings, ChosenPart):
                tables[inner] = flat(settings)
            elif not settings.usual:  # the default is left out, so that older versions can read the file
                tables["algorithm"][settings.key] = settings.name
                tables |= {settings.key: dict(settings.options)} if settings.options else {}
        beside = (("privacy", self.privacy), ("secure", self.secure), ("asynchronous", self.asynchronous))
        for name, settings in beside:
            if settings is not None:
                tables[name] = flat(settings)
        tables["engine"] = flat(self.engine)
        return tables

    def to_toml(self) -> str:
        """Convert to the text of a TOML file."""
        return tomli_w.dumps(self.to_tables())


_KEYS: dict[str, type] = {"name": str, "seed": int, "joint": str}
"""The keys outside of all tables."""


def load_config(source: "Config | Mapping[str, Any] | str | Path", changes: Sequence[str] = ()) -> Config:
    """Load a configuration from a TOML file or from plain tables, and apply changes such as `algorithm.rounds=20`.

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
        if key not in (*_KEYS, *TABLES):
            raise UnknownNameError("table or key", key, [*_KEYS, *TABLES])
    for key in TABLES:
        if not isinstance(tables.get(key, {}), dict):
            raise InputError(f"[{key}] must be a table, got {key} = {tables[key]!r}. Write it as [{key}] with its keys below.")
    for key, kind in _KEYS.items():
        if type(tables.get(key, kind())) is not kind:
            raise InputError(f"{key} must be {'text' if kind is str else 'an integer'}, got {tables[key]!r}.")
    plain: dict[str, type] = {"privacy": PrivacySettings, "secure": SecureSettings, "asynchronous": AsynchronousSettings}
    for key, settings in plain.items():
        check_keys(key, tables.get(key, {}), keys_of(settings))
    algorithm, asynchronous = _algorithm(tables), tables.get("asynchronous")
    return Config(
        **{key: tables[key] for key in _KEYS if key in tables},
        data=to_struct(with_options(tables.get("data", {}), DataSettings), DataSettings, "data"),
        model=to_struct(with_options(tables.get("model", {}), ModelSettings), ModelSettings, "model"),
        training=to_struct(with_options(tables.get("training", {}), TrainingSettings), TrainingSettings, "training"),
        algorithm=algorithm,
        privacy=_privacy(tables, algorithm),
        secure=to_struct(tables["secure"], SecureSettings, "secure") if "secure" in tables else None,
        asynchronous=None if asynchronous is None else to_struct(asynchronous, AsynchronousSettings, "asynchronous"),
        engine=to_struct(with_options(tables.get("engine", {}), EngineSettings), EngineSettings, "engine"),
    )


def _algorithm(tables: Table) -> Algorithm:
    table = dict(tables.get("algorithm", {}))
    name = table.pop("name", FedAvg.name)
    kind = ALGORITHMS[name]
    for inner in _INNER:
        if inner in table:
            raise InputError(f"write [{inner}] as a table of its own, not inside [algorithm].")
        if inner in tables and inner not in keys_of(kind):
            raise InputError(f"algorithm '{name}' does not use [{inner}]. Remove that table, or choose another algorithm.")
    renamed = {name: key for key, (name, _) in _CHOSEN.items()}
    check_keys("algorithm", table, ["name", *(renamed.get(key, key) for key in keys_of(kind) if key not in _INNER)])
    given = {inner: tables[inner] for inner in _INNER if inner in tables}
    for inner, own in given.items():
        default = _usual(kind, inner)
        usual = {} if {"ratio", "size"} & own.keys() or default.ratio is None else {"ratio": default.ratio}
        table[inner] = with_options({"name": default.name} | usual | own, _INNER[inner])
    for key, (name, settings) in _CHOSEN.items():
        table[name] = _chosen_part(settings, table.pop(key, settings.default), tables.get(key, {}))
    return to_struct(table, kind, "algorithm")


def _usual(kind: type[Algorithm], inner: str) -> Any:
    """The settings of a table that an algorithm uses if the table is absent. The algorithm's other fields may be required."""
    (setting,) = (each for each in fields(kind) if each.name == inner)
    if setting.default_factory is not MISSING:
        return setting.default_factory()
    return _INNER[inner]() if setting.default in (MISSING, None) else setting.default


def _chosen_part(kind: type[ChosenPart], name: Any, options: Table) -> Table:
    """The part that [algorithm] names, with its options from the table of the same key."""
    key, what = kind.key, kind.registry.kind
    if not isinstance(name, str):
        raise InputError(f"algorithm.{key} must be the name of a {what} in quotes, got {name!r}. Its options go to [{key}].")
    if "name" in options:
        raise InputError(f"[{key}] holds options only. Name the {what} in [algorithm]: {key} = {options['name']!r}.")
    return {"name": name, "options": options}


def _privacy(tables: Table, algorithm: Algorithm) -> PrivacySettings | None:
    """Read the table [privacy]. By default, a private algorithm adds noise as its paper does."""
    if "privacy" not in tables:
        if algorithm.noise_defaults is not None:
            raise InputError(
                f"algorithm '{algorithm.name}' runs only with noise. Add [privacy] with epsilon, or choose 'iterative'."
            )
        return None
    private = to_struct(tables["privacy"], PrivacySettings, "privacy")
    own = (algorithm.noise_defaults or {}).get("discrete_gaussian" if private.discrete else "gaussian", {})
    return replace(private, **{key: value for key, value in own.items() if key not in tables["privacy"]})


def _part(name: str, registry: Registry[Callable[..., Any]]) -> Callable[..., Any] | None:
    """The function that makes what a table names. None if Python objects were passed instead."""
    return None if name == GIVEN else registry[name]
