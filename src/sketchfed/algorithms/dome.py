"""DOME: changes are sent in a subspace that follows them, and everyone takes the same Adam steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor, nn

from sketchfed.algorithms.adam import Adam
from sketchfed.algorithms.base import Algorithm, Replica, RoundContext, State
from sketchfed.algorithms.linear import Heard, LinearCode, LinearMap
from sketchfed.algorithms.settings import SubspaceSettings
from sketchfed.errors import InputError, SketchfedError, WireError
from sketchfed.kernels.finite import all_finite
from sketchfed.seeds import PublicSeed
from sketchfed.subspaces import Frame, MeanImage, Subspace, UpdateRule, damped
from sketchfed.subspaces.subspace import STATE
from sketchfed.training import Trainer
from sketchfed.training.inputs import InputTrainer
from sketchfed.vectors import Layout
from sketchfed.wire import Packet, expect_kind, number_named, tensor_named

DEFAULT_RATE = 0.05


@dataclass(frozen=True, kw_only=True)
class Dome(Algorithm):
    """Clients send Sᵀ(change) in an orthonormal S of `size` directions that everyone rebuilds from what was broadcast.

    Paper: Nicolas et al. 2025, Alg. 1 and 2, which has neither code nor experiments. A round: each client sends the
    coordinates of its change in S_t, less those of the mean m̂ of earlier changes where `remove_mean` says so; the server
    broadcasts their mean, `size` numbers; everyone adds m̂ back, takes an Adam step whose second moment is freed from the
    noise (`debias`, Lemma 3.2), and updates S_t by the rule of [subspace]. Both directions carry `size` numbers. Clipping,
    noise and secure sums are those of [privacy] and [secure], on the numbers that are sent.

    What is corrected of the printed form (`paper = true` keeps it, with the rule 'history_pca'): the running mean is not
    overwritten by the corrected one (line 18), by which all that a round does not see grows without end; the noise that is
    taken off squares is that of the mean, diag(SSᵀ) times, not that of one client times Diag(SᵀS), which has the wrong length
    (line 19); and noise is calibrated by the accountant instead of Thm 3.3.

    Three departures that help. `[subspace] image` confines the first layer to smooth images: then S_t, moments and steps are
    in the frame's coordinates (`subspaces.Frame`). With `centre` the first round asks for the mean image in place of a
    gradient, and the first layer moves less along it (`subspaces.damped`). And means of gradients are not removed unless asked
    for: what S_t does not see of m̂ stays in it for ever, which costs more than is gained. `[subspace] name = "whole"` sends
    all coordinates: DP-Adam, with `debias` as in Tang et al. 2024.
    """

    subspace: SubspaceSettings = field(default_factory=SubspaceSettings)
    remove_mean: bool | None = None
    """Whether clients send how their change differs from the mean of earlier ones; if absent, only in the printed form."""
    beta1: float = 0.9
    beta2: float = 0.99
    debias: bool = True
    """Whether the variance of the noise is taken off second moments."""
    floor: float = 0.3
    """The least second moment, γ'; as a multiple of the mean one, or of the variance that noise gives a coordinate if more."""
    paper: bool = False
    """The form as printed, where that is defined."""
    _frame: Frame | None = None

    name = "dome"
    summary = "coordinates in a subspace that follows the changes, Adam steps"
    source = "Nicolas et al. 2025"
    incremental = True
    adaptive = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting in ("beta1", "beta2"):
            if not 0 <= getattr(self, setting) < 1:
                raise InputError(f"algorithm.{setting} must be from 0 to below 1, got {getattr(self, setting)}.")
        if not 0 <= self.floor < float("inf"):
            raise InputError(f"algorithm.floor must not be negative, got {self.floor}.")
        if self.global_momentum:
            raise InputError(
                f"algorithm.global_momentum = {self.global_momentum}: algorithm 'dome' has Adam's, which is algorithm.beta1. "
                "Remove it."
            )
        if self.paper and self.subspace.name != "history_pca":
            raise InputError(
                f"algorithm.paper = true is the form as printed, whose update rule is 'history_pca', but subspace.name is "
                f'{self.subspace.name!r}. Write [subspace] with name = "history_pca", or leave paper out.'
            )
        if self.paper and self.subspace.image is not None:
            raise InputError(
                "algorithm.paper = true is the form as printed, which knows nothing of images. Remove subspace.image and "
                "subspace.centre, or leave paper out."
            )
        if self.rounds <= self.warm_up:
            raise InputError(
                f"algorithm.rounds = {self.rounds}: with subspace.centre the first round asks for the mean image, and none is "
                "left to train in. Use 2 rounds or more."
            )

    @property
    def warm_up(self) -> int:
        return int(self.subspace.centre)

    def resolved(self, dim: int, clients: int | None = None) -> Self:
        planned = replace(
            self,
            subspace=self.subspace.completed(),
            remove_mean=self.paper if self.remove_mean is None else self.remove_mean,
            global_rate=self.global_rate or DEFAULT_RATE,
        )
        planned._first(dim, PublicSeed(0))  # refuses a size that cannot be, now
        return planned

    def fitted(self, module: nn.Module) -> Self:
        layout = Layout.of(module)
        fit = replace(self, _frame=self.subspace.frame(layout))
        fit._first(layout.dim, PublicSeed(0))
        return fit

    def begin(self, weights: Tensor) -> State:
        moments = {name: torch.zeros(length) for name, length in self._lengths(len(weights)).items()}
        return State(replica=Replica(round=0, weights=weights, moments=moments))

    def snapshot(self, replica: Replica, seed: PublicSeed) -> Packet:
        arrays = {"weights": replica.weights, **replica.moments}
        if replica.subspace is not None:
            arrays |= {f"subspace.{name}": tensor for name, tensor in replica.subspace.tensors().items()}
        return Packet(kind="snapshot", arrays=arrays, scalars={"round": replica.round})

    def received(self, packet: Packet, dim: int, seed: PublicSeed) -> Replica:
        expect_kind(packet, "snapshot")
        weights = tensor_named(packet, "weights", shape=(dim,))
        moments = {name: tensor_named(packet, name, shape=(length,)) for name, length in self._lengths(dim).items()}
        if self.warm_up and (norm := float(moments["centre"].norm())) and abs(norm - 1) > 1e-3:
            raise WireError(f"the snapshot's mean image has norm {norm:.3g}; it should be a direction, of norm 1, or zero.")
        index = int(number_named(packet, "round", least=0, most=2**63))
        begun = index > self.warm_up and self._rule is not None
        subspace = self._received_subspace(packet, dim, seed) if begun else None
        return Replica(round=index, weights=weights, moments=moments, subspace=subspace)

    def local(self, trainer: Trainer, context: RoundContext) -> Trainer:
        if context.round >= self.warm_up:
            return trainer
        asked = self._mean_image(trainer.dim).frame
        return InputTrainer(trainer, start=asked.start, inputs=asked.rows.shape[1])

    def client(self, change: Tensor, memory: Tensor | None, context: RoundContext) -> tuple[Packet, Tensor | None]:
        code = self.code(len(change), context)
        return code.packet(code.apply(change)), None

    def code(self, dim: int, context: RoundContext) -> LinearCode:
        shape, replica = (self._size(dim),), context.replica
        if context.round < self.warm_up and self._frame is not None:
            return LinearCode(kind=self.name, shape=shape, map=self._mean_image(dim))
        subspace = self._first(dim, context.seed) if replica is None else self.subspace_of(replica, context.seed)
        offset = None
        if replica is not None and self.remove_mean and replica.round > self.warm_up:
            expected = self._adam.mean(replica.moments, replica.round - self.warm_up)
            offset = expected if subspace is None else subspace.apply(expected)
        known: LinearMap | None = subspace
        frame = self._frame_of(replica)
        if frame is not None:
            known = frame if subspace is None else _Framed(frame, subspace)
        return LinearCode(kind=self.name, shape=shape, map=known, offset=offset)

    def told(self, update: Packet, replica: Replica, seed: PublicSeed) -> Heard | None:
        dim, context = len(replica.weights), RoundContext(round=replica.round, seed=seed, client=0, replica=replica)
        code = self.code(dim, context)
        values = tensor_named(expect_kind(update, "sensed"), "values", shape=(self._size(dim),))
        return Heard(values if code.offset is None else values + code.offset, code.map)

    def between(self, before: Replica, after: Replica, seed: PublicSeed) -> None:
        """Adam's steps are no linear function of a round's change."""

    def check(self, packet: Packet, dim: int, context: RoundContext) -> float:
        return float(self._values(packet, dim).norm())

    def server(self, state: State, packets: Sequence[Packet], seed: PublicSeed, *, noise: float = 0.0) -> tuple[State, Packet]:
        dim, clients = len(state.replica.weights), sum(packet.clients for packet in packets)
        mean = torch.stack([self._values(packet, dim) for packet in packets]).sum(0) / clients
        update = Packet(kind="sensed", arrays={"values": mean}, scalars={"noise": noise}, clients=clients)
        return replace(state, replica=self.follow(state.replica, update, seed)), update

    def follow(self, replica: Replica, update: Packet, seed: PublicSeed) -> Replica:
        dim, subspace = len(replica.weights), self.subspace_of(replica, seed)
        sensed = tensor_named(expect_kind(update, "sensed"), "values", shape=(self._size(dim),))
        noise = number_named(update, "noise", least=0.0, most=1e30)
        if replica.round < self.warm_up:
            centre = self._mean_image(dim).direction(sensed)
            return replace(replica, round=replica.round + 1, moments={**replica.moments, "centre": centre})
        steps = replica.round - self.warm_up
        change = sensed if subspace is None else subspace.adjoint(sensed)
        if self.remove_mean:
            change = change + self._adam.mean(replica.moments, steps)
        moments = self._adam.updated(replica.moments, change, steps + 1, self._noise_of(subspace, noise, update.clients))
        step = self._adam.step(moments, steps + 1, floor=self.floor, least=noise * len(sensed) / len(change))
        frame = self._frame_of(replica)
        if frame is not None:
            step = frame.adjoint(step)
        weights = replica.weights + step * self.rate_at(replica.round)
        if not all(map(all_finite, (weights, *moments.values()))):
            raise WireError(
                "the update makes weights or moments that are no longer finite. It was damaged, or training diverged."
            )
        if subspace is not None:
            assert self._rule is not None
            if replica.subspace is None:  # an own one: that of `_first` is kept, and would keep what is appended to it
                subspace = self._rule.begin(dim=subspace.dim, size=subspace.size, seed=seed)
            subspace = self._rule.updated(subspace, estimate=change)
        moments = {**replica.moments, **moments}
        return replace(replica, round=replica.round + 1, weights=weights, moments=moments, subspace=subspace)

    def captured(self, replica: Replica, gradient: Tensor, seed: PublicSeed) -> float | None:
        if replica.round < self.warm_up:
            return None
        context = RoundContext(round=replica.round, seed=seed, client=0, replica=replica)
        sent = self.code(len(gradient), context).mapped(gradient)
        return float(sent.double().square().sum() / gradient.double().square().sum())

    def subspace_of(self, replica: Replica, seed: PublicSeed) -> Subspace | None:
        """In which directions the next round's changes are sent, in the frame if there is one; None for all of them."""
        return self._first(len(replica.weights), seed) if replica.subspace is None else replica.subspace

    def _first(self, dim: int, seed: PublicSeed) -> Subspace | None:
        rule = self._rule
        return None if rule is None else _begun(rule, self._inner(dim), self._size(dim), seed)

    def _frame_of(self, replica: Replica | None) -> Frame | None:
        """To what the next round's changes are confined, with the mean image damped once it is known."""
        if self._frame is None or replica is None or not self.warm_up:
            return self._frame
        return damped(self._frame, replica.moments["centre"])

    def _mean_image(self, dim: int) -> MeanImage:
        assert self._frame is not None, "call fitted(module) first"
        return MeanImage(self._frame, self._size(dim))

    def _lengths(self, dim: int) -> dict[str, int]:
        """What is remembered of earlier rounds, and how many numbers each of it has."""
        centre = {"centre": len(self._frame.rows)} if self._frame is not None and self.warm_up else {}
        return {"mean": self._inner(dim), "square": self._inner(dim)} | centre

    def _inner(self, dim: int) -> int:
        """Coordinates in which moments and subspaces are."""
        return dim if self._frame is None else self._frame.inner

    def _size(self, dim: int) -> int:
        """Numbers that travel."""
        return self._inner(dim) if self._rule is None else self.subspace.size_for(dim)

    def _noise_of(self, subspace: Subspace | None, noise: float, clients: int) -> Tensor | float:
        """The variance to be taken off squares: Nicolas et al. 2025, Eq. (11), or what Alg. 1, line 19 says in its place.

        As printed it is a²·Diag(SᵀS), the noise of a single client, and a number for each column of S where each coordinate
        needs one. SᵀS = I, so it is read as a² in every coordinate.
        """
        if not noise or not self.debias:
            return 0.0
        if self.paper:
            return noise * clients
        return noise if subspace is None else noise * subspace.expected_diagonal()

    def _received_subspace(self, packet: Packet, dim: int, seed: PublicSeed) -> Subspace:
        tensors = {name: packet.arrays.get(f"subspace.{name}") for name in STATE}
        if not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
            raise WireError("the snapshot has no subspace. Its sender runs another algorithm, or another version of this one.")
        try:
            return Subspace.from_tensors(tensors, seed=seed, like=self._first(dim, seed))  # type: ignore[arg-type]
        except SketchfedError as error:
            raise WireError(f"the subspace of the snapshot cannot be used: {error}") from error

    def _values(self, packet: Packet, dim: int) -> Tensor:
        return tensor_named(expect_kind(packet, self.name), "values", shape=(self._size(dim),))

    @property
    def _rule(self) -> UpdateRule | None:
        return self.subspace.rule()

    @property
    def _adam(self) -> Adam:
        return Adam(beta1=self.beta1, beta2=self.beta2, debias=self.debias, corrected_once=not self.paper)


@dataclass(frozen=True, eq=False)
class _Framed:
    """A subspace of what a frame leaves."""

    frame: Frame
    subspace: Subspace

    def apply(self, x: Tensor) -> Tensor:
        return self.subspace.apply(self.frame.apply(x))

    def adjoint(self, y: Tensor) -> Tensor:
        return self.frame.adjoint(self.subspace.adjoint(y))


@lru_cache(maxsize=4)
def _begun(rule: UpdateRule, dim: int, size: int, seed: PublicSeed) -> Subspace:
    """All clients of a round use one object, so its probes are drawn once."""
    return rule.begin(dim=dim, size=size, seed=seed)
