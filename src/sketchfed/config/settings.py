"""The tables [data], [model] and [engine]."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_type_hints

from torch import nn

from sketchfed.data import DATA_SETS, PARTITIONS
from sketchfed.devices import check_name
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.models import MODELS
from sketchfed.nn.sharing import shared
from sketchfed.parts import Registry
from sketchfed.tables import (
    Table,
    check_keys,
    check_type,
    chosen_of,
    keys_of,
    options_of,
    takes_any,
    writable,
)
from sketchfed.training import LOSSES, METRICS

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

    @property
    def words(self) -> list[str]:
        """What the label of a run says of these settings: which parts of the model are not shared as parameters are."""
        buffers = {None: [], "average": ["averaged buffers"], "local": ["local buffers"]}[self.buffers]
        return buffers + (["personal layers"] if self.personal else [])

    def completed(self) -> "ModelSettings":
        """Return these settings with the default of every option filled in."""
        defaults = writable(options_of(_part(self.name, MODELS), besides=_GIVEN_TO_MODELS))
        return replace(self, options=defaults | self.options)

    def shared(self, module: nn.Module) -> nn.Module:
        """The module that knows which of its parts are shared."""
        return shared(module, buffers=self.buffers, running=self.running or (), personal=self.personal or ())


ENGINES: Registry[Callable[..., Any]] = Registry(
    "engine",
    {
        "local": "sketchfed.runs.hosts:LocalHost",
        "ranks": "sketchfed.runs.rank_host:RankHost",
        "flower": "sketchfed.flower.federation:Federation",
    },
    group="sketchfed.engines",
)
"""The places where clients can run, by name: subclasses of `sketchfed.runs.hosts.Host`."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """The table [engine]: where the clients run, and what is scored, saved and recorded during the run."""

    name: str = "local"
    """Where clients run: `local` is this process, `ranks` are [the processes of a launch by torchrun](ranks.md), and `flower`
    means the SuperNodes of a Flower federation. `package.module:Host` names your own."""
    workers: int = 0
    """The number of threads. 0 uses one thread per core. With `ranks`, these are the threads of each rank, and 0 divides the
    cores of a machine between its ranks. Results do not depend on it."""
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
    """For flower: the seconds that a client has to answer. A client that takes longer has dropped out of the round. For ranks:
    the seconds without a sign of life after which a rank counts as lost, and the run ends. Without a server, the seconds that
    a node waits for what its neighbours say, and [the others go on](ranks.md#without-a-server) after that."""
    wait: float = 120.0
    """For flower: the seconds to wait for the SuperLink, and for `data.clients` nodes to join before round 1. For ranks: the
    seconds to wait for all ranks."""
    listen: str = ""
    """For ranks with [graph]: the address, as host:port, at which this rank listens for its neighbours, such as that of a local
    [tunnel](ranks.md#tunnels-with-mutual-tls). If absent, a free port. This key and the next four may differ between ranks."""
    routes: dict[str, str] = field(default_factory=dict)
    """For ranks with [graph]: the addresses at which this rank finds others, by their numbers, if they are not those that the
    others tell."""
    certificate: str = ""
    """For ranks with [graph]: the file of this rank's certificate, in PEM format. With it, links between nodes use mutual
    TLS."""
    key: str = ""
    """For ranks with [graph]: the file of the certificate's key."""
    authority: str = ""
    """For ranks with [graph]: the file of the authority's certificate. Only ranks whose certificate it signed may connect."""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def threads(self) -> int:
        """The number of threads, with 0 resolved to the number of cores, or to this rank's share of them."""
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1) if self.name == "ranks" else 1
        return self.workers or max(1, (os.cpu_count() or 1) // max(1, ranks))

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise UnknownNameError(ENGINES.kind, self.name, ENGINES.choices())
        own = () if self.name in ENGINES.built_in else options_of(ENGINES[self.name], besides=_GIVEN_TO_ENGINES)
        check_keys("engine", self.options, [*keys_of(EngineSettings), *own])
        if not (0 < self.deadline < float("inf") and 0 < self.wait < float("inf")):
            raise InputError(
                f"engine.deadline and engine.wait are numbers of seconds above 0, got {self.deadline} and {self.wait}."
            )
        self._check_links()
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

    def _check_links(self) -> None:
        """Refuse settings of links between ranks that contradict each other."""
        files = {"certificate": self.certificate, "key": self.key, "authority": self.authority}
        missing = [name for name, file in files.items() if not file]
        if missing and len(missing) < len(files):
            raise InputError(
                f"mutual TLS needs engine.certificate, engine.key and engine.authority, and engine.{missing[0]} is missing. "
                "Name all three files, or none."
            )
        given = [name for name in ("listen", "routes", "certificate") if getattr(self, name)]
        if given and self.name != "ranks":
            raise InputError(
                f"engine.{given[0]} is about the links between ranks, and engine.name = '{self.name}'. Use engine.name = "
                "'ranks' with [graph], or remove it."
            )
        for rank in self.routes:
            if not rank.isdecimal():
                raise InputError(
                    f'engine.routes names an address for each rank by its number, got {rank!r}. Write 1 = "host:port".'
                )


def _part(name: str, registry: Registry[Callable[..., Any]]) -> Callable[..., Any] | None:
    """The function that makes what a table names. None if Python objects were passed instead."""
    return None if name == GIVEN else registry[name]
