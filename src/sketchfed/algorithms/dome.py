"""DOME: clients send their changes in a subspace that adapts to the changes, and all parties take the same Adam steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor, nn

from sketchfed.algorithms.adam import Adam
from sketchfed.algorithms.base import Algorithm
from sketchfed.algorithms.round_settings import told_as
from sketchfed.algorithms.settings import SubspaceSettings
from sketchfed.algorithms.state import Replica, RoundContext, State
from sketchfed.caches import cached
from sketchfed.codecs.linear import LinearCode, LinearMap
from sketchfed.errors import InputError, SketchfedError, UnresolvedError, WireError
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
    """Clients send Sᵀ(change), where S has `size` orthonormal directions that everyone rebuilds from the broadcasts.

    Paper: Nicolas et al. 2025, Alg. 1 and 2, which has neither code nor experiments. In a round, each client sends the
    coordinates of its change in S_t. With `remove_mean`, it first subtracts the mean m̂ of earlier changes. The server
    broadcasts the mean of these coordinates, `size` numbers. Everyone adds m̂ back, takes an Adam step whose second moment is
    corrected for the noise (`debias`, Lemma 3.2), and updates S_t by the rule of [subspace]. Both directions carry `size`
    numbers. Clipping, noise and secure sums apply to the numbers that are sent, as set in [privacy] and [secure].

    Three corrections to the printed form (`paper = true` keeps it, with the rule 'history_pca'). First, the corrected mean does
    not overwrite the running mean (line 18); otherwise everything that a round does not see grows without bound. Second, the
    noise subtracted from the squares is the noise of the mean times diag(SSᵀ). As printed, it is the noise of one client times
    Diag(SᵀS), which has the wrong length (line 19). Third, the accountant calibrates the noise instead of Thm 3.3.

    Three departures that help. First, `[subspace] image` restricts the first layer to smooth images. S_t, moments and steps are
    then in the frame's coordinates (`subspaces.Frame`). Second, with `centre`, the first round estimates the mean image instead
    of a gradient, and the first layer moves less along it (`subspaces.damped`). Third, means of gradients are removed only on
    request: the part of m̂ that S_t does not see stays in m̂ forever, which costs more than it gains. `[subspace] name =
    "whole"` sends all coordinates: this is DP-Adam, with `debias` as in Tang et al. 2024.
    """

    subspace: SubspaceSettings = field(default_factory=SubspaceSettings)
    remove_mean: bool | None = None
    """Whether clients subtract the mean of earlier changes before they send. If absent, only the printed form does so."""
    beta1: float = 0.9
    beta2: float = 0.99
    debias: bool = True
    """Whether the variance of the noise is subtracted from the second moments."""
    floor: float = 0.3
    """The smallest second moment γ', as a multiple of the mean second moment, or of the noise variance per coordinate if that
    is larger."""
    paper: bool = told_as("as printed", default=False)
    """Use the form as printed in the paper, wherever that is well defined."""
    _frame: Frame | None = None

    name = "dome"
    summary = "coordinates in a subspace that follows the changes, Adam steps"
    source = "Nicolas et al. 2025"
    incremental = True
    by_layer = True
    own_step = "it takes Adam steps already, with algorithm.beta1 and algorithm.beta2."

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting in ("beta1", "beta2"):
            if not 0 <= getattr(self, setting) < 1:
                raise InputError(f"algorithm.{setting} must be from 0 to below 1, got {getattr(self, setting)}.")
        if not 0 <= self.floor < float("inf"):
            raise InputError(f"algorithm.floor must not be negative, got {self.floor}.")
        if self.global_momentum:
            raise InputError(
                f"algorithm.global_momentum = {self.global_momentum}: algorithm 'dome' has the momentum of Adam instead, "
                "algorithm.beta1. Remove global_momentum."
            )
        if self.paper and self.subspace.name != "history_pca":
            raise InputError(
                f"algorithm.paper = true selects the printed form, whose update rule is 'history_pca', but subspace.name is "
                f'{self.subspace.name!r}. Write [subspace] with name = "history_pca", or leave paper out.'
            )
        if self.paper and self.subspace.image is not None:
            raise InputError(
                "algorithm.paper = true selects the printed form, which has no images. Remove subspace.image and "
                "subspace.centre, or leave paper out."
            )
        if self.rounds <= self.warm_up:
            raise InputError(
                f"algorithm.rounds = {self.rounds}: with subspace.centre the first round estimates the mean image, so no round "
                "is left for training. Use 2 rounds or more."
            )

    @property
    def refused_placements(self) -> Mapping[str, str]:
        if not self.subspace.centre:
            return {}
        return {
            "steps": "subspace.centre shrinks changes along the mean image, so noise that is added in local steps has a "
            "different variance in that direction. Remove subspace.centre or privacy.placement = 'steps'."
        }

    @property
    def warm_up(self) -> int:
        """The number of rounds that estimate the mean image before training begins."""
        return int(self.subspace.centre)

    def resolved(self, dim: int, clients: int | None = None, module: nn.Module | None = None) -> Self:
        planned = replace(
            self,
            subspace=self.subspace.completed(),
            remove_mean=self.paper if self.remove_mean is None else self.remove_mean,
            global_rate=self.global_rate or DEFAULT_RATE,
            _frame=self._frame if module is None else self.subspace.frame(Layout.of(module)),
        )
        planned.first_subspace(dim, PublicSeed(0))  # raises an error now if the size is impossible
        return planned

    def begin(self, weights: Tensor) -> State:
        moments = {name: torch.zeros(length) for name, length in self.lengths(len(weights)).items()}
        return State(replica=Replica(round=0, weights=weights, moments=moments))

    def given(self, seed: PublicSeed, index: int) -> "DomeModel":
        return DomeModel(algorithm=self, seed=seed, index=index)

    def code(self, dim: int, context: RoundContext) -> LinearCode:
        shape, replica = (self._size(dim),), context.replica
        if context.round < self.warm_up and self._frame is not None:
            return LinearCode(kind=self.name, shape=shape, map=self.mean_image(dim))
        subspace = self.first_subspace(dim, context.seed) if replica is None else self.subspace_of(replica, context.seed)
        offset = None
        if replica is not None and self.remove_mean and replica.round > self.warm_up:
            expected = self._adam.mean(replica.moments, replica.round - self.warm_up)
            offset = expected if subspace is None else subspace.apply(expected)
        known: LinearMap | None = subspace
        frame = self._frame_of(replica)
        if frame is not None:
            known = frame if subspace is None else _Framed(frame, subspace)
        return LinearCode(kind=self.name, shape=shape, map=known, offset=offset, orthonormal=True)

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
            centre = self.mean_image(dim).direction(sensed)
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
            raise WireError("the update leads to weights or moments that are not finite. It was damaged, or training diverged.")
        rule = self._rule
        if subspace is not None and rule is not None:
            if replica.subspace is None:  # make a new one: the cached one of `first_subspace` must not be modified
                subspace = rule.begin(dim=subspace.dim, size=subspace.size, seed=seed)
            subspace = rule.updated(subspace, estimate=change)
        moments = {**replica.moments, **moments}
        return replace(replica, round=replica.round + 1, weights=weights, moments=moments, subspace=subspace)

    def subspace_of(self, replica: Replica, seed: PublicSeed) -> Subspace | None:
        """The subspace of the next round's changes, in the frame if there is one. None if all directions are sent."""
        return self.first_subspace(len(replica.weights), seed) if replica.subspace is None else replica.subspace

    def first_subspace(self, dim: int, seed: PublicSeed) -> Subspace | None:
        """The subspace of the first training round. None if all directions are sent."""
        rule = self._rule
        return None if rule is None else _begun(rule, self._inner(dim), self._size(dim), seed)

    def _frame_of(self, replica: Replica | None) -> Frame | None:
        """The frame to which the next round's changes are restricted. The mean image is damped once it is known."""
        if self._frame is None or replica is None or not self.warm_up:
            return self._frame
        return damped(self._frame, replica.moments["centre"])

    def mean_image(self, dim: int) -> MeanImage:
        """The map of a warm-up round, which estimates the mean image."""
        if self._frame is None:
            raise UnresolvedError(
                "the mean image needs subspace.image and the model's layers. Call resolved(dim, module=...) first."
            )
        return MeanImage(self._frame, self._size(dim))

    def lengths(self, dim: int) -> dict[str, int]:
        """The names of the tensors that are kept between rounds, and the length of each."""
        centre = {"centre": len(self._frame.rows)} if self._frame is not None and self.warm_up else {}
        return {"mean": self._inner(dim), "square": self._inner(dim)} | centre

    def _inner(self, dim: int) -> int:
        """The number of coordinates of moments and subspaces."""
        return dim if self._frame is None else self._frame.inner

    def _size(self, dim: int) -> int:
        """The number of values that are sent."""
        return self._inner(dim) if self._rule is None else self.subspace.size_for(dim)

    def _noise_of(self, subspace: Subspace | None, noise: float, clients: int) -> Tensor | float:
        """The variance to subtract from the squares: Nicolas et al. 2025, Eq. (11), or Alg. 1, line 19 in the printed form.

        The printed form is a²·Diag(SᵀS), the noise of a single client. It has one number for each column of S, but each
        coordinate needs one. Since SᵀS = I, this code uses a² in every coordinate.
        """
        if not noise or not self.debias:
            return 0.0
        if self.paper:
            return noise * clients
        return noise if subspace is None else noise * subspace.expected_diagonal()

    def _values(self, packet: Packet, dim: int) -> Tensor:
        return tensor_named(expect_kind(packet, self.name), "values", shape=(self._size(dim),))

    @property
    def _rule(self) -> UpdateRule | None:
        return self.subspace.rule()

    @property
    def _adam(self) -> Adam:
        return Adam(beta1=self.beta1, beta2=self.beta2, debias=self.debias, corrected_once=not self.paper)


@dataclass(frozen=True, kw_only=True)
class DomeModel:
    """The weights with their moments and the subspace of the next round. A warm-up round estimates the mean image instead."""

    algorithm: Dome
    seed: PublicSeed
    index: int

    sketch = None

    @property
    def trains(self) -> bool:
        return self.index >= self.algorithm.warm_up

    def packet(self, replica: Replica) -> Packet:
        arrays = {"weights": replica.weights, **replica.moments}
        if replica.subspace is not None:
            arrays |= {f"subspace.{name}": tensor for name, tensor in replica.subspace.tensors().items()}
        return Packet(kind="snapshot", arrays=arrays, scalars={"round": replica.round})

    def replica(self, packet: Packet, dim: int) -> Replica:
        expect_kind(packet, "snapshot")
        lengths = self.algorithm.lengths(dim)
        weights = tensor_named(packet, "weights", shape=(dim,))
        moments = {name: tensor_named(packet, name, shape=(length,)) for name, length in lengths.items()}
        if "centre" in moments and (norm := float(moments["centre"].norm())) and abs(norm - 1) > 1e-3:
            raise WireError(f"the snapshot's mean image has norm {norm:.3g}; it must be a direction of norm 1, or zero.")
        begun = self.index > self.algorithm.warm_up
        first = self.algorithm.first_subspace(dim, self.seed)
        subspace = self._subspace(packet, first) if begun and first is not None else None
        return Replica(round=self.index, weights=weights, moments=moments, subspace=subspace)

    def trainer(self, trainer: Trainer) -> Trainer:
        if self.trains:
            return trainer
        asked = self.algorithm.mean_image(trainer.dim).frame
        return InputTrainer(trainer, start=asked.start, inputs=asked.rows.shape[1])

    def _subspace(self, packet: Packet, first: Subspace) -> Subspace:
        tensors = {name: packet.arrays.get(f"subspace.{name}") for name in STATE}
        if not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
            raise WireError("the snapshot has no subspace. Its sender runs another algorithm, or another version of this one.")
        try:
            return Subspace.from_tensors(tensors, seed=self.seed, like=first)  # type: ignore[arg-type]
        except SketchfedError as error:
            raise WireError(f"the subspace of the snapshot cannot be used: {error}") from error


@dataclass(frozen=True, eq=False)
class _Framed:
    """A subspace within a frame: the frame's map, followed by the subspace's map."""

    frame: Frame
    subspace: Subspace

    def apply(self, x: Tensor) -> Tensor:
        return self.subspace.apply(self.frame.apply(x))

    def adjoint(self, y: Tensor) -> Tensor:
        return self.frame.adjoint(self.subspace.adjoint(y))


@cached(maxsize=4)
def _begun(rule: UpdateRule, dim: int, size: int, seed: PublicSeed) -> Subspace:
    """All clients of a round use the same object, so its probes are drawn only once."""
    return rule.begin(dim=dim, size=size, seed=seed)
