"""What every algorithm is: pure functions over explicit state, with its settings as fields."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from sketchfed.algorithms.linear import Heard, LinearCode
from sketchfed.errors import InputError, WireError
from sketchfed.kernels.draws import subset
from sketchfed.nn.model_sketch import ModelSketch
from sketchfed.seeds import PublicSeed
from sketchfed.subspaces import Subspace
from sketchfed.training import LocalWork, Trainer
from sketchfed.wire import Packet, expect_kind, number_named, tensor_named


@dataclass(frozen=True, kw_only=True)
class Replica:
    """What a client must hold to take part in a round: the same numbers everywhere, bit for bit."""

    round: int
    """How many rounds are behind it."""
    weights: Tensor
    velocity: Tensor | None = None
    """The global momentum, where there is one."""
    prediction: Tensor | None = None
    """What the next mean change is expected to be, where clients send how theirs differs from it."""
    moments: Mapping[str, Tensor] = field(default_factory=dict)
    """Running means of changes and of their squares, where steps depend on them."""
    subspace: Subspace | None = None
    """In which changes are sent, where it follows from what was sent before; None until something was."""


@dataclass(frozen=True, kw_only=True)
class State:
    """What the server holds between rounds: a replica, and what the algorithm keeps for itself."""

    replica: Replica
    own: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RoundContext:
    """Where a client's work belongs: the round, counted from 0, the run's seed, and who works."""

    round: int
    seed: PublicSeed
    client: int
    replica: Replica | None = None
    """The one from which the client started; None where nothing depends on it."""
    population: int | None = None
    """How many clients there are in all, where that is known: then everyone can tell who takes part."""

    @property
    def shared(self) -> PublicSeed:
        """The seed that all parties of this round share."""
        return round_seed(self.seed, self.round)

    @property
    def own(self) -> PublicSeed:
        """The seed of this client in this round: batches."""
        return self.shared.child("local", self.client)


def round_seed(seed: PublicSeed, index: int) -> PublicSeed:
    """The shared seed of a round: sketches of different rounds are independent (Song et al. 2023, Thm 4.2, property 1)."""
    return seed.child("round", index)


def cohort(seed: PublicSeed, index: int, *, population: int, count: int) -> list[int]:
    """The clients of a round, `count` of all, uniform without replacement, ascending."""
    return [int(client) for client in subset(round_seed(seed, index).child("cohort").stream, dim=population, size=count)]


def most_participations(seed: PublicSeed, *, rounds: int, population: int, count: int) -> int:
    """In how many of the first rounds the client takes part that takes part most often."""
    counts: Counter[int] = Counter()
    for index in range(rounds):
        counts.update(cohort(seed, index, population=population, count=count))
    return max(counts.values())


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """Settings, and the three functions of a round: `client`, `server`, and `follow` for everyone who was told.

    A round is `client` for each participant, `server` on what arrived, and `follow` wherever the update is received. Server
    and clients advance by the same function on the same bytes, so their replicas stay equal.
    """

    rounds: int = 100
    participation: float = 1.0
    """Share of the clients that take part in a round, drawn uniformly."""
    local_steps: int | None = None
    local_epochs: int | None = None
    """Local work: so many steps, or so many passes over the client's data; one pass if neither is given."""
    batch: int | None = None
    """Examples a step; all of them if absent (local GD)."""
    local_rate: float = 0.1
    local_momentum: float = 0.0
    weight_decay: float = 0.0
    global_rate: float | None = None
    """The step of the server; if absent, a default that fits the compression."""
    final_rate: float = 1.0
    """What is left of the server's step in the last round, as a share: it shrinks from round to round by the same amount."""
    global_momentum: float = 0.0
    screening: float = 1_000.0
    """A reply whose norm is more than so many times the median norm of its round is refused; 0 takes all that are finite."""

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    incremental: ClassVar[bool]
    """Whether the server broadcasts updates, which absent clients can replay, or whole models."""
    shows_weights: ClassVar[bool] = True
    """Whether clients hold the weights; some are given only sketches of them."""
    adaptive: ClassVar[bool] = False
    """Whether what a round's packets can carry follows from rounds before (`captured`)."""
    private: ClassVar[bool] = False
    """Whether it runs with calibrated noise only."""

    def __post_init__(self) -> None:
        _check_settings(self)

    @property
    def work(self) -> LocalWork:
        return LocalWork(
            rate=self.local_rate,
            steps=self.local_steps,
            epochs=self.local_epochs or 1,
            batch=self.batch,
            momentum=self.local_momentum,
            decay=self.weight_decay,
        )

    def rate_at(self, index: int) -> float:
        """The server's step in a round, counted from 0."""
        assert self.global_rate is not None
        return self.global_rate * (1 - (1 - self.final_rate) * min(1.0, index / max(1, self.rounds - 1)))

    @property
    def replicated(self) -> tuple[str, ...]:
        """What clients need beside weights to take part: 'velocity' to follow with momentum, or 'prediction'."""
        return ()

    def planned(self, clients: int) -> int:
        """How many of so many clients take part in a round."""
        return max(1, round(self.participation * clients))

    @abstractmethod
    def resolved(self, dim: int, clients: int | None = None) -> "Algorithm":
        """The same algorithm with every default filled in that depends on the model's size or the number of clients."""

    def fitted(self, module: nn.Module) -> "Algorithm":
        """The same algorithm for a model, where it treats the layers of one differently."""
        return self

    @property
    def warm_up(self) -> int:
        """How many rounds ask for something else before training begins."""
        return 0

    @property
    def secret_start(self) -> bool:
        """Whether the first weights are the server's secret, instead of following from the public seed."""
        return False

    def begin(self, weights: Tensor) -> State:
        """The server's state before round 0."""
        velocity = torch.zeros_like(weights) if self.global_momentum else None
        return State(replica=Replica(round=0, weights=weights, velocity=velocity))

    def snapshot(self, replica: Replica, seed: PublicSeed) -> Packet:
        """All that a client needs to take part in a round."""
        return to_snapshot(replica, self.replicated)

    def received(self, packet: Packet, dim: int, seed: PublicSeed) -> Replica:
        """The replica that a client holds after a snapshot of a model of `dim` parameters."""
        return from_snapshot(packet, dim=dim, extras=self.replicated)

    def form_at(self, seed: PublicSeed, index: int) -> ModelSketch | None:
        """The form of the model that clients are given in a round; None where it is the model itself."""
        return None

    def local(self, trainer: Trainer, context: RoundContext) -> Trainer:
        """What a client trains in a round: the model, or the form of it that clients are given."""
        form = self.form_at(context.seed, context.round)
        return trainer if form is None else trainer.sketched(form)

    @abstractmethod
    def client(self, change: Tensor, memory: Tensor | None, context: RoundContext) -> tuple[Packet, Tensor | None]:
        """What a client sends for the change that its local work made, and what it keeps until it takes part again."""

    def code(self, dim: int, context: RoundContext) -> LinearCode | None:
        """How the packets of a round depend on the change, where they do so linearly and nothing else enters."""
        return None

    def heard(self, packet: Packet, dim: int, context: RoundContext) -> Heard | None:
        """What a reply, or a sum of replies, tells of the mean change behind it; None where that is no linear function."""
        code = self.code(dim, context)
        return None if code is None else code.heard(packet)

    def told(self, update: Packet, replica: Replica, seed: PublicSeed) -> Heard | None:
        """What a broadcast update tells of the round's mean change to who had this replica before; None where too little."""
        return None

    def between(self, before: Replica, after: Replica, seed: PublicSeed) -> Heard | None:
        """What the models that clients are given in two rounds, one after the other, tell of the mean change between them."""
        if after.round != before.round + 1 or self.global_momentum:
            return None
        return Heard((after.weights - before.weights) / self.rate_at(before.round), None)

    @property
    def sends(self) -> str:
        """What travels up, in words for errors."""
        return f"algorithm '{self.name}'"

    @abstractmethod
    def check(self, packet: Packet, dim: int, context: RoundContext) -> float | None:
        """Raise `WireError` unless `server` can use this packet of a client; the norm behind it, by which it is screened."""

    @abstractmethod
    def server(
        self, state: State, packets: Sequence[Packet], seed: PublicSeed, *, noise: float = 0.0
    ) -> tuple[State, Packet | None]:
        """The state after a round, and the update that everyone can follow by, if the algorithm has one.

        `noise` is the variance that privacy added to each number of the packets' mean, for who corrects for it.
        """

    def follow(self, replica: Replica, update: Packet, seed: PublicSeed) -> Replica:
        """The replica one round later, from the update of that round; algorithms that broadcast whole models have none."""
        raise WireError(f"algorithm '{self.name}' broadcasts whole models, but a packet of kind '{update.kind}' arrived.")

    def captured(self, replica: Replica, gradient: Tensor, seed: PublicSeed) -> float | None:
        """Which share of a gradient's energy the next round's packets carry, where that depends on rounds before."""
        return None

    def moved(self, replica: Replica, direction: Tensor) -> Replica:
        """One global step: v ← momentum·v + direction, w ← w + rate·v."""
        velocity = None
        if replica.velocity is not None:
            direction = velocity = self.global_momentum * replica.velocity + direction
        weights = replica.weights + direction * self.rate_at(replica.round)  # not fused: the same bits on every processor
        return replace(replica, round=replica.round + 1, weights=weights, velocity=velocity)


def to_snapshot(replica: Replica, extras: tuple[str, ...] = ()) -> Packet:
    """What of a replica clients need, as a packet; `extras` are the `replicated` tensors of the algorithm."""
    arrays = {name: getattr(replica, name) for name in ("weights", *extras)}
    return Packet(kind="snapshot", arrays=arrays, scalars={"round": replica.round})


def from_snapshot(packet: Packet, *, dim: int, extras: tuple[str, ...] = ()) -> Replica:
    """The replica of a packet."""
    expect_kind(packet, "snapshot")
    tensors = {name: tensor_named(packet, name, shape=(dim,)) for name in ("weights", *extras)}
    index = int(number_named(packet, "round", least=0, most=2**63))
    velocity, prediction = tensors.get("velocity"), tensors.get("prediction")
    return Replica(round=index, weights=tensors["weights"], velocity=velocity, prediction=prediction)


def _check_settings(algorithm: Algorithm) -> None:
    """Refuse settings that cannot work, each with what to change."""
    a = algorithm
    at_least_one = ("rounds", "local_steps", "local_epochs", "batch")
    for name in at_least_one:
        value = getattr(a, name)
        if value is not None and value < 1:
            raise InputError(f"algorithm.{name} must be at least 1, got {value}.")
    if a.local_steps is not None and a.local_epochs is not None:
        raise InputError(
            f"algorithm.local_steps = {a.local_steps} and algorithm.local_epochs = {a.local_epochs} contradict each "
            "other: both say how long a client works in a round. Remove one."
        )
    if not 0 < a.participation <= 1:
        raise InputError(f"algorithm.participation is a share of the clients, above 0 and at most 1, got {a.participation}.")
    for name in ("local_rate", "global_rate"):
        value = getattr(a, name)
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"algorithm.{name} must be a positive number, got {value}.")
    if not 0 < a.final_rate <= 1:
        raise InputError(
            f"algorithm.final_rate is a share of the first round's step, above 0 and at most 1, got {a.final_rate}."
        )
    for name in ("local_momentum", "global_momentum"):
        if not 0 <= getattr(a, name) < 1:
            raise InputError(f"algorithm.{name} must be from 0 to below 1, got {getattr(a, name)}.")
    if not (a.screening == 0 or 1 <= a.screening < float("inf")):
        raise InputError(
            f"algorithm.screening is a multiple of the median norm, at least 1, or 0 for no screening, got {a.screening}."
        )
    if not 0 <= a.weight_decay < float("inf"):
        raise InputError(f"algorithm.weight_decay must not be negative, got {a.weight_decay}.")
