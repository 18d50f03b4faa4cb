"""Algorithms, codecs and sketches as somebody else might write them, found as `third_party:…`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from sketchfed import PublicSeed
from sketchfed.algorithms import Algorithm, Change, FedAvg, Iterative, RoundContext, State
from sketchfed.algorithms.base import stepped
from sketchfed.algorithms.cohorts import round_seed
from sketchfed.codecs import Codec
from sketchfed.codecs.base import count
from sketchfed.codecs.linear import LinearCode
from sketchfed.codecs.rounding import Parts
from sketchfed.errors import NotLinearError, WireError
from sketchfed.sketches import Sketch
from sketchfed.wire import Packet, expect_kind, tensor_named


@dataclass(frozen=True, kw_only=True)
class Median(FedAvg):
    """FedAvg whose server takes the median of each coordinate: it is no mean, and sums of packets have no median."""

    name = "median"
    summary = "the median of each coordinate"
    source = "Yin et al. 2018"

    def code(self, dim: int, context: RoundContext) -> LinearCode:
        raise NotLinearError("algorithm 'median'", "the server needs single changes, not their sum.")

    def server(self, state: State, packets: Sequence[Packet], seed: PublicSeed, *, noise: float = 0.0) -> tuple[State, None]:
        codec, shared = self._codec(len(state.replica.weights)), round_seed(seed, state.replica.round)
        changes = torch.stack([codec.decode([packet], shared) for packet in packets])
        return replace(state, replica=stepped(self, state.replica, changes.median(0).values)), None


@dataclass(frozen=True, kw_only=True)
class Scratch(Algorithm):
    """The abstract methods and `client`, and nothing else: whole models down, whole changes up."""

    name = "scratch"
    summary = "changes up"
    source = "here"
    incremental = False

    def resolved(self, dim: int, clients: int | None = None, module: object = None) -> Self:
        return replace(self, global_rate=self.global_rate or 1.0)

    def client(self, change: Change, memory: Tensor | None, context: RoundContext) -> tuple[Packet, None]:
        return Packet(kind="change", arrays={"values": change.values}), None

    def check(self, packet: Packet, dim: int, context: RoundContext) -> float:
        return float(tensor_named(expect_kind(packet, "change"), "values", shape=(dim,)).norm())

    def server(self, state: State, packets: Sequence[Packet], seed: PublicSeed, *, noise: float = 0.0) -> tuple[State, None]:
        shape = state.replica.weights.shape
        mean = torch.stack([tensor_named(packet, "values", shape=tuple(shape)) for packet in packets]).mean(0)
        return State(replica=stepped(self, state.replica, mean)), None


class _Whole(Codec):
    """All coordinates in float32."""

    source = "here"
    unbiased = True
    personal = False

    def norm(self, packet: Packet, seed: PublicSeed) -> float:
        return float(tensor_named(expect_kind(packet, self.name), "values", shape=(self.dim,)).norm())

    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        return Parts({"values": x.to(torch.float32)}, {})

    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        return torch.stack([tensor_named(p, "values", shape=(self.dim,)) for p in packets]).sum(0) / count(packets)


@dataclass(frozen=True)
class _Signs:
    signs: Tensor

    def apply(self, x: Tensor) -> Tensor:
        return x * self.signs

    adjoint = apply


@dataclass(frozen=True, kw_only=True)
class Additive(_Whole):
    """Coordinates with signs that all clients of a round share."""

    name = "additive"
    summary = "coordinates with shared signs"

    def linear(self, seed: PublicSeed, client: int = 0) -> LinearCode:
        return LinearCode(kind=self.name, shape=(self.dim,), map=self._map(seed))

    def mse(self, total_square: float, correlation: float = 0.0) -> float | None:
        return None

    def _map(self, seed: PublicSeed) -> _Signs:
        words = torch.from_numpy(seed.child("signs").words(self.dim).astype("int64"))
        return _Signs(1.0 - 2.0 * (words & 1).to(torch.float32))

    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        return Parts({"values": self._map(seed).apply(x.to(torch.float32))}, {})

    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        return self._map(seed).adjoint(super()._decode(packets, seed, knowledge))


@dataclass(frozen=True, kw_only=True)
class RefusesSums(_Whole):
    """Declares a linear code, but decodes packets of single clients only."""

    name = "refuses_sums"
    summary = "declares what it does not keep"

    def linear(self, seed: PublicSeed, client: int = 0) -> LinearCode:
        return LinearCode(kind=self.name, shape=(self.dim,), map=None)

    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        if any(packet.clients > 1 for packet in packets):
            raise WireError("one client a packet, please.")
        return super()._decode(packets, seed, knowledge)


@dataclass(frozen=True, kw_only=True)
class Normalises(RefusesSums):
    """Declares a linear code, but what it decodes has length 1, however long a packet is."""

    name = "normalises"

    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        rows = torch.stack([tensor_named(packet, "values", shape=(self.dim,)) for packet in packets])
        return torch.nn.functional.normalize(rows, dim=1).sum(0) / count(packets)


@dataclass(frozen=True)
class _Cut:
    def apply(self, x: Tensor) -> Tensor:
        return x

    def adjoint(self, y: Tensor) -> Tensor:
        return y[..., :10]


@dataclass(frozen=True, kw_only=True)
class Misfit(_Whole):
    """Declares a map whose adjoint has another shape, and decodes without it."""

    name = "misfit"
    summary = "an adjoint that fits nothing"

    def linear(self, seed: PublicSeed, client: int = 0) -> LinearCode:
        return LinearCode(kind=self.name, shape=(self.dim,), map=_Cut())


@dataclass(frozen=True)
class _Roots:
    def apply(self, x: Tensor) -> Tensor:
        return x.sign() * x.abs().sqrt()

    adjoint = apply


@dataclass(frozen=True, kw_only=True)
class Curved(_Whole):
    """Declares a linear code, but its map takes roots."""

    name = "curved"
    summary = "roots that pass for a linear map"
    unbiased = False

    def linear(self, seed: PublicSeed, client: int = 0) -> LinearCode:
        return LinearCode(kind=self.name, shape=(self.dim,), map=_Roots())

    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        return Parts({"values": _Roots().apply(x.to(torch.float32))}, {})


@dataclass(frozen=True, kw_only=True)
class Fails(_Whole):
    """Cannot say what its code is."""

    name = "fails"
    summary = "an exception in place of a code"

    def linear(self, seed: PublicSeed, client: int = 0) -> LinearCode:
        raise KeyError("signs")


@dataclass(frozen=True, kw_only=True)
class NotLinear(_Whole):
    """Sends square roots, and declares nothing."""

    name = "not_linear"
    summary = "square roots"
    unbiased = False

    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        return Parts({"values": x.sign() * x.abs().sqrt()}, {})

    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        rows = torch.stack([tensor_named(packet, "values", shape=(self.dim,)) for packet in packets])
        return (rows.sign() * rows.square()).mean(0)


@dataclass(frozen=True, kw_only=True)
class Leading(Sketch):
    """The first coordinates, scaled. It is linear, if little else."""

    name = "leading"
    summary = "the first coordinates"
    source = "here"
    cost = "O(size)"
    alpha_formula = "dim/size - 1"

    @property
    def alpha(self) -> float:
        return self.dim / self.size - 1

    exact_alpha = alpha

    def _apply(self, x: Tensor) -> Tensor:
        return x[:, : self.size].contiguous()

    def _adjoint(self, y: Tensor) -> Tensor:
        return torch.nn.functional.pad(y, (0, self.dim - self.size))


@dataclass(frozen=True, kw_only=True)
class Rooted(Leading):
    """Sends square roots."""

    def _apply(self, x: Tensor) -> Tensor:
        return _Roots().apply(super()._apply(x))


@dataclass(frozen=True, kw_only=True)
class Unequal(Leading):
    """Its adjoint forgets how long vectors are."""

    def _adjoint(self, y: Tensor) -> Tensor:
        return y


@dataclass(frozen=True, kw_only=True)
class Squaring(Leading):
    """Undoes roots that it never took."""

    def _adjoint(self, y: Tensor) -> Tensor:
        return super()._adjoint(y.sign() * y.square())


@dataclass(frozen=True, kw_only=True)
class Forgetful(Leading):
    """Draws its signs from torch's generator instead of its seed. One object always has the same signs."""

    name = "forgetful"

    @cached_property
    def _signs(self) -> Tensor:
        return torch.randn(self.size).sign()

    def _apply(self, x: Tensor) -> Tensor:
        return self._signs * super()._apply(x)

    def _adjoint(self, y: Tensor) -> Tensor:
        return super()._adjoint(self._signs * y)


@dataclass(frozen=True, kw_only=True)
class LooseDecoder(_Whole):
    """Encodes as it should, and adds random numbers when it decodes."""

    name = "loose_decoder"
    summary = "a decoder that draws"

    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        return super()._decode(packets, seed, knowledge) + torch.rand(self.dim)


@dataclass(frozen=True, kw_only=True)
class RefusesItself(_Whole):
    """Refuses the packets that it makes."""

    name = "refuses_itself"
    summary = "packets of another kind"

    def norm(self, packet: Packet, seed: PublicSeed) -> float:
        raise WireError("no such packet.")


@dataclass(frozen=True, kw_only=True)
class Raises(_Whole):
    """Cannot encode."""

    name = "raises"
    summary = "an exception in place of a packet"

    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        raise KeyError("values")


@dataclass(frozen=True, kw_only=True)
class Diverges(Iterative):
    """Clients that follow an update take half the server's step."""

    name = "diverges"

    def server(
        self, state: State, packets: Sequence[Packet], seed: PublicSeed, *, noise: float = 0.0
    ) -> tuple[State, Packet | None]:
        after, update = super().server(state, packets, seed, noise=noise)
        weights = 2 * after.replica.weights - state.replica.weights
        return replace(after, replica=replace(after.replica, weights=weights)), update
