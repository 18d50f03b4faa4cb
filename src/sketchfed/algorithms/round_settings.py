"""The settings that all algorithms share: rounds, local work and the server's step."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from sketchfed.algorithms.chosen import CombineSettings, ServerSettings
from sketchfed.algorithms.segments import Segments
from sketchfed.errors import InputError
from sketchfed.nn.sharing import variances
from sketchfed.parts import short
from sketchfed.training import LocalWork
from sketchfed.vectors import Layout

DRIFT = "drift"
"""The name of FedDyn's vector −h/α among the moments of a replica."""


@runtime_checkable
class Labelled(Protocol):
    """Settings with a short label. The label is empty if there is nothing to mention."""

    @property
    def label(self) -> str: ...


def told_as(words: str, *, default: Any) -> Any:
    """A setting that a run's label mentions by these words when it differs from its default. Braces stand for its value."""
    return field(default=default, metadata={"label": words})


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """The keys of [algorithm] that all algorithms share."""

    rounds: int = 100
    participation: float = 1.0
    """The share of the clients that take part in a round. They are drawn uniformly."""
    local_steps: int | None = None
    local_epochs: int | None = None
    """The number of passes over the client's data in a round. One pass if neither this nor `local_steps` is given."""
    batch: int | None = None
    """Examples per step. If absent, all of the client's examples (local GD)."""
    local_rate: float = 0.1
    local_momentum: float = told_as("local momentum {:g}", default=0.0)
    weight_decay: float = 0.0
    global_rate: float | None = None
    """The server's step size. If absent, a default that suits the compression."""
    final_rate: float = 1.0
    """The server's step in the last round, as a share of the first. The step shrinks linearly from round to round."""
    global_momentum: float = told_as("server momentum {:g}", default=0.0)
    screening: float = 1_000.0
    """The server refuses replies whose norm exceeds this many times the round's median norm. 0 accepts all finite replies."""
    public_start: bool = True
    """Whether the first weights come from the public seed. If so, clients can rebuild them, and runs can be repeated."""
    combine: CombineSettings = field(default_factory=CombineSettings)
    """How the server makes one vector of a round's packets. A configuration names the rule here, and its options in
    [combine]."""

    weighting: Literal["equal", "examples"] = told_as("weighted", default="equal")
    """`examples` [weights clients](algorithms.md#weights) by their number of examples. `equal` gives all the same weight."""
    most_examples: int | None = None
    """With `weighting = "examples"`, clients with more examples than this count as if they had this many. If absent, the
    largest number of examples of any client."""
    scaffold: bool = told_as("scaffold", default=False)
    """Whether local steps are corrected by [control variates](algorithms.md#scaffold) (SCAFFOLD)."""
    feddyn: float = told_as("feddyn", default=0.0)
    """The α of [dynamic regularisation](algorithms.md#feddyn) (FedDyn). 0 leaves it out."""
    server_optimiser: ServerSettings = field(default_factory=ServerSettings)
    """The [server optimiser](algorithms.md#server-optimisers), which makes the global step of a round's mean change. A
    configuration names it here, and its options in [server]."""
    _segments: Segments | None = field(default=None, repr=False)
    """The parts of the vector that travels. None if it has parameters only, or before `resolved`."""

    name: ClassVar[str]
    own_step: ClassVar[str] = "it may take global steps of its own."
    """Why no server optimiser works with the algorithm. It is empty if `stepped` takes all global steps and `begin` and `given`
    keep the replica's moments."""
    alone: ClassVar[str] = "it moves parameters in its own way, and nothing that travels beside them."
    """Why weights, control variates and averaged buffers do not work with the algorithm. It is empty if `resolved` asks
    `segmented` for the parts of the vector, sends all of them, and `stepped` takes all global steps."""
    same_start: ClassVar[str] = (
        "what its clients send may mean nothing to a server that has moved on. Use algorithm 'fedavg' with codec 'sketched'."
    )
    """Why all clients of a server's step must start from the same model. It is empty if `decoded_alone` returns a change of the
    weights `(dim,)` for a packet of any round, and `server` takes the mean of such changes as a combined packet."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def label(self) -> str:
        """A short description of the algorithm and what it sends."""
        rule = [] if self.combine.averages else [short(self.combine.name).replace("_", " ")]
        server = [] if self.server_optimiser.usual else ["server", short(self.server_optimiser.name)]
        return " ".join([self.name, *self._words(), *rule, *server])

    @property
    def tables(self) -> dict[str, Any]:
        """The settings that a configuration keeps in tables of their own, such as [sketch], by the name of the table."""
        held = {setting.name: getattr(self, setting.name) for setting in fields(self)}
        return {name: value for name, value in held.items() if is_dataclass(value) and not name.startswith("_")}

    @property
    def moves_by_mean(self) -> bool:
        """Whether a global step is the rate times the round's mean change, which two models in a row then reveal."""
        return not self.global_momentum and self.server_optimiser.usual and not self.feddyn

    @property
    def segments(self) -> Segments | None:
        """The parts of the vector that travels. None if it has parameters only."""
        return self._segments

    @property
    def carried(self) -> tuple[str, ...]:
        """What global steps need of a replica besides the weights, by the names that `replicas.to_tensors` gives."""
        return (*(("velocity",) if self.global_momentum else ()), *(f"moments.{name}" for name in self.moments(0)))

    @property
    def correction(self) -> str:
        """The setting that corrects clients' steps by what each of them keeps, as a user writes it. Empty if there is none."""
        return "algorithm.scaffold = true" if self.scaffold else f"algorithm.feddyn = {self.feddyn:g}" if self.feddyn else ""

    def moments(self, dim: int) -> dict[str, Tensor]:
        """The vectors `(dim,)` that global steps depend on, before the first round."""
        return {DRIFT: torch.zeros(dim)} if self.feddyn else self.server_optimiser.optimiser().begin(dim)

    @property
    def refused_placements(self) -> Mapping[str, str]:
        """The noise placements (`privacy.placement`) that these settings exclude, each with the reason and the remedy."""
        return {}

    @property
    def work(self) -> LocalWork:
        """The local work of a client in one round."""
        return LocalWork(
            rate=self.local_rate,
            steps=self.local_steps,
            epochs=self.local_epochs or 1,
            batch=self.batch,
            momentum=self.local_momentum,
            decay=self.weight_decay,
        )

    def segmented(self, dim: int, clients: int | None, module: nn.Module | None) -> Segments | None:
        """The parts of the vector that travels for a model that shares `dim` numbers. None if they are all parameters."""
        if module is None and self._segments is not None:
            return self._segments
        buffers = 0 if module is None else (layout := Layout.of(module)).dim - layout.trained
        if buffers and self.alone:
            raise InputError(
                f"model.buffers = 'average' does not go with algorithm '{self.name}': {self.alone} Use model.buffers = "
                "'local', or algorithm 'fedavg' or 'iterative'."
            )
        control = dim - buffers if self.scaffold else 0
        weight = int(self.weighting == "examples")
        if not (buffers or control or weight or self.feddyn):
            return None
        return Segments(
            parameters=dim - buffers,
            buffers=buffers,
            control=control,
            weight=weight,
            variances=variances(module) if module is not None and buffers else (),
            population=clients,
        )

    def planned(self, clients: int) -> int:
        """The number of clients that take part in a round, out of this many."""
        return max(1, round(self.participation * clients))

    def rate_at(self, index: int) -> float:
        """The server's step size in a round. Rounds are counted from 0."""
        if self.global_rate is None:
            raise InputError("algorithm.global_rate has no value yet. Set it, or call resolved(dim) first.")
        return self.global_rate * (1 - (1 - self.final_rate) * min(1.0, index / max(1, self.rounds - 1)))

    def resolved_rate(self, plain: float) -> float:
        """The rate that is set, or that of the server optimiser, or else `plain`, as suits a step without momentum."""
        usual = self.server_optimiser.optimiser().default_rate
        return self.global_rate or usual or plain * (1 - self.global_momentum)

    def _words(self) -> Iterator[str]:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if isinstance(value, Labelled):
                yield from filter(None, [value.label])
            elif "label" in setting.metadata and setting.default is not MISSING and value != setting.default:
                yield setting.metadata["label"].format(value)


def _check(a: RoundSettings) -> None:
    """Raise `InputError` for settings that cannot work. The message says what to change."""
    for name in ("rounds", "local_steps", "local_epochs", "batch"):
        value = getattr(a, name)
        if value is not None and value < 1:
            raise InputError(f"algorithm.{name} must be at least 1, got {value}.")
    if a.local_steps is not None and a.local_epochs is not None:
        raise InputError(
            f"algorithm.local_steps = {a.local_steps} and algorithm.local_epochs = {a.local_epochs} contradict each "
            "other: both say how long a client works in a round. Remove one."
        )
    if not 0 < a.participation <= 1:
        raise InputError(
            f"algorithm.participation is a share of the clients, so it must be above 0 and at most 1, got {a.participation}."
        )
    for name in ("local_rate", "global_rate"):
        value = getattr(a, name)
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"algorithm.{name} must be a positive number, got {value}.")
    if not 0 < a.final_rate <= 1:
        raise InputError(
            f"algorithm.final_rate is a share of the first step, so it must be above 0 and at most 1, got {a.final_rate}."
        )
    for name in ("local_momentum", "global_momentum"):
        if not 0 <= getattr(a, name) < 1:
            raise InputError(f"algorithm.{name} must be from 0 to below 1, got {getattr(a, name)}.")
    if not a.server_optimiser.usual:
        _check_optimiser(a)
    _check_weighting(a)
    if not (a.screening == 0 or 1 <= a.screening < float("inf")):
        raise InputError(
            f"algorithm.screening is a multiple of the median norm. It must be at least 1, or 0 for no screening, got "
            f"{a.screening}."
        )
    if not 0 <= a.weight_decay < float("inf"):
        raise InputError(f"algorithm.weight_decay must not be negative, got {a.weight_decay}.")


def _check_optimiser(a: RoundSettings) -> None:
    named = f"algorithm.server = '{a.server_optimiser.name}'"
    if a.own_step:
        raise InputError(
            f"{named} does not go with algorithm '{a.name}': {a.own_step} Remove server, or choose algorithm 'fedavg' or "
            "'iterative'."
        )
    if a.global_momentum:
        raise InputError(
            f"algorithm.global_momentum = {a.global_momentum} and {named} exclude each other: such an optimiser has a momentum "
            "of its own (server.beta1 of adam, yogi and adagrad). Remove global_momentum."
        )


def _check_weighting(a: RoundSettings) -> None:
    if a.weighting not in ("equal", "examples"):
        raise InputError(f"algorithm.weighting must be 'equal' or 'examples', got {a.weighting!r}.")
    if a.most_examples is not None and (a.weighting == "equal" or a.most_examples < 1):
        raise InputError(
            f"algorithm.most_examples = {a.most_examples} bounds the weights of weighting = 'examples'. It must be at least 1, "
            f"and weighting is '{a.weighting}'."
        )
    if not 0 <= a.feddyn < float("inf"):
        raise InputError(f"algorithm.feddyn is the α of FedDyn. It must be finite and must not be negative, got {a.feddyn}.")
    given = "algorithm.weighting = 'examples'" if a.weighting == "examples" else a.correction
    if given and a.alone:
        raise InputError(
            f"{given} does not go with algorithm '{a.name}': {a.alone} Remove it, or choose algorithm 'fedavg' or 'iterative'."
        )
    if given and not a.combine.averages:
        raise InputError(
            f"{given} and algorithm.combine = '{a.combine.name}' exclude each other: the rule would combine updates "
            "and what travels beside them as if both were of one kind. Remove one."
        )
    if a.scaffold and a.feddyn:
        raise InputError(
            f"algorithm.scaffold = true and algorithm.feddyn = {a.feddyn:g} exclude each other: both correct the same drift of "
            "clients, each in its own way. Remove one."
        )
    if a.correction and a.weighting == "examples":
        raise InputError(
            f"{a.correction} and weighting = 'examples' exclude each other: what the server keeps is the mean of what all "
            "clients keep, with equal weights. Remove one."
        )
    if a.feddyn and (a.global_momentum or not a.server_optimiser.usual):
        raise InputError(
            f"algorithm.feddyn = {a.feddyn:g} has a server step of its own, which adds up changes as momentum does. Remove "
            "global_momentum and server."
        )
    if a.scaffold and (a.local_momentum or a.global_momentum or not a.server_optimiser.usual):
        raise InputError(
            "algorithm.scaffold = true computes a client's mean gradient from its change, which only plain SGD steps allow, "
            "and its server step is plain as well. Remove local_momentum, global_momentum and server."
        )
