"""Packets that depend linearly on a client's change, so that a sum of them can take the place of them all."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from sketchfed.wire import Packet, expect_kind, tensor_named

_PROBES = 32


class LinearMap(Protocol):
    """What a change goes through before it is sent; a sketch is one."""

    def apply(self, x: Tensor) -> Tensor:
        """`(..., dim)` to `(..., size)`."""

    def adjoint(self, y: Tensor) -> Tensor:
        """`(..., size)` to `(..., dim)`."""


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Some coordinates of a vector as they are."""

    indices: Tensor
    dim: int

    def apply(self, x: Tensor) -> Tensor:
        return x[..., self.indices]

    def adjoint(self, y: Tensor) -> Tensor:
        return y.new_zeros(*y.shape[:-1], self.dim).index_copy(-1, self.indices, y)


@dataclass(frozen=True, eq=False)
class RoundTrip:
    """What is left of a change that went through a linear code and back: symmetric, and of the length of the change."""

    through: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, known: LinearMap) -> "RoundTrip":
        """A map and its adjoint behind it."""
        return cls(lambda x: known.adjoint(known.apply(x)))

    def apply(self, x: Tensor) -> Tensor:
        return self.through(x)

    def adjoint(self, y: Tensor) -> Tensor:
        return self.through(y)


def spread(known: LinearMap | None, dim: int) -> float:
    """‖A‖²_F/size, estimated: the variance of each number behind a map, of noise of variance 1 in all coordinates before it."""
    if known is None:
        return 1.0
    probes = torch.randn(_PROBES, dim, generator=torch.Generator().manual_seed(0))
    return float(known.apply(probes).square().mean())


class Heard(NamedTuple):
    """What somebody knows of a change, or of the mean of several: `values` = `map`·change, but for noise and rounding."""

    values: Tensor
    map: LinearMap | None


@dataclass(frozen=True, kw_only=True)
class LinearCode:
    """How a round's packets come from changes: a linear map, and the packet around its numbers.

    Clipping, noise and masks work on these numbers, between the map and the wire. What the server decodes is a packet like
    any other, so no algorithm knows of them.
    """

    kind: str
    shape: tuple[int, ...]
    map: LinearMap | None
    """None where changes are sent as they are."""
    offset: Tensor | None = None
    """What is taken off the numbers of every change, `(size,)`, because the receivers know it already."""
    padding: int = 0
    """Zeros behind the numbers of a packet, where clipping, noise and masks need as many in every round; they do not travel."""

    @property
    def size(self) -> int:
        """Numbers that stand for a change."""
        return math.prod(self.shape) + self.padding

    def apply(self, rows: Tensor) -> Tensor:
        """The numbers that stand for changes: `(..., dim)` to `(..., size)`."""
        return self._padded(self.mapped(rows) if self.offset is None else self.mapped(rows) - self.offset)

    def of_gradients(self, rows: Tensor, rate: float) -> Tensor:
        """What stands for gradients, of which −rate times as much is a change: `(..., dim)` to `(..., size)`."""
        return self._padded(self.mapped(rows) if self.offset is None else self.mapped(rows) + self.offset / rate)

    def adjoint(self, values: Tensor) -> Tensor:
        """The change that numbers stand for, in expectation: `(..., size)` to `(..., dim)`."""
        values = self._unpadded(values)
        return values if self.map is None else self.map.adjoint(values)

    def values(self, packet: Packet) -> Tensor:
        """The numbers `(size,)` of a packet."""
        return self._padded(tensor_named(expect_kind(packet, self.kind), "values", shape=self.shape).reshape(-1))

    def heard(self, packet: Packet) -> Heard:
        """What a packet tells of the change behind it, or of the mean one of its clients."""
        values = self._unpadded(self.values(packet)) / packet.clients
        return Heard(values if self.offset is None else values + self.offset, self.map)

    def packet(self, values: Tensor, *, clients: int = 1) -> Packet:
        """The packet of numbers `(size,)`, a sum over so many clients."""
        return Packet(kind=self.kind, arrays={"values": self._unpadded(values).reshape(self.shape)}, clients=clients)

    def mapped(self, rows: Tensor) -> Tensor:
        return rows if self.map is None else self.map.apply(rows)

    def _padded(self, values: Tensor) -> Tensor:
        return functional.pad(values, (0, self.padding)) if self.padding else values

    def _unpadded(self, values: Tensor) -> Tensor:
        return values[..., : self.size - self.padding] if self.padding else values
