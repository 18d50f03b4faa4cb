"""Packets that depend linearly on a client's vector, so that their sum can stand for all of them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.nn import functional

from sketchfed.wire import Packet, expect_kind, tensor_named


class LinearMap(Protocol):
    """A linear map from a vector to the numbers that are sent for it. A sketch is such a map."""

    def apply(self, x: Tensor) -> Tensor:
        """Map vectors `(..., dim)` to `(..., size)`."""

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(..., size)` to `(..., dim)`."""


@dataclass(frozen=True, eq=False)
class RoundTrip:
    """Encoding followed by decoding, as one symmetric map from `(..., dim)` to `(..., dim)`."""

    through: Callable[[Tensor], Tensor]
    alpha: float = 0.0
    """An upper bound on E‖through(x) − x‖²/‖x‖²."""

    @classmethod
    def of(cls, known: LinearMap) -> "RoundTrip":
        """A map followed by its adjoint."""
        return cls(lambda x: known.adjoint(known.apply(x)))

    def apply(self, x: Tensor) -> Tensor:
        return self.through(x)

    def adjoint(self, y: Tensor) -> Tensor:
        return self.through(y)


@dataclass(frozen=True, kw_only=True)
class LinearCode:
    """How vectors become packets: a linear map, and the packet that holds its numbers.

    Clipping, noise and masks are applied to these numbers, between the map and the wire. The server decodes an ordinary
    packet, so algorithms do not need to know about them.
    """

    kind: str
    shape: tuple[int, ...]
    map: LinearMap | None
    """None if vectors are sent unchanged."""
    shared: bool = True
    """Whether all clients of a round use the same map. Only then can their packets be added."""
    exact: bool = True
    """Whether the numbers travel as float32. Numbers that were rounded to few bits cannot be added."""
    orthonormal: bool = False
    """Whether the rows of the map are orthonormal. If so, the numbers never have more energy than the vector."""
    reader: Callable[[Packet], Tensor] | None = None
    """Reads the numbers of a packet. If absent, they are the float32 array `values` of this shape."""
    offset: Tensor | None = None
    """Subtracted from the numbers of every vector, `(size,)`, because the receivers know it already."""
    anywhere: bool = False
    """Whether the map takes vectors on any device. If not, they are moved to the CPU."""
    padding: int = 0
    """The number of zeros after the numbers. With them, clipping, noise and masks have one size in all rounds. They are never
    sent."""

    @property
    def additive(self) -> bool:
        """Whether the sum of packets decodes to the sum of vectors."""
        return self.shared and self.exact

    @property
    def size(self) -> int:
        """The number of values that stand for a vector, including padding."""
        return math.prod(self.shape) + self.padding

    def apply(self, rows: Tensor) -> Tensor:
        """Encode vectors: `(..., dim)` to `(..., size)`."""
        return self._padded(self.mapped(rows) if self.offset is None else self.mapped(rows) - self.offset)

    def of_gradients(self, rows: Tensor, rate: float) -> Tensor:
        """Encode gradients: `(..., dim)` to `(..., size)`. A gradient stands for a change of −rate times the gradient."""
        return self._padded(self.mapped(rows) if self.offset is None else self.mapped(rows) + self.offset / rate)

    def adjoint(self, values: Tensor) -> Tensor:
        """Estimate vectors from their numbers, without bias: `(..., size)` to `(..., dim)`."""
        values = self._unpadded(values)
        return values if self.map is None else self.map.adjoint(self._taken(values))

    def values(self, packet: Packet) -> Tensor:
        """The numbers `(size,)` of a packet."""
        expect_kind(packet, self.kind)
        found = tensor_named(packet, "values", shape=self.shape) if self.reader is None else self.reader(packet)
        return self._padded(found.reshape(-1))

    def decoded(self, packet: Packet) -> Tensor:
        """The mean of a packet's numbers over its clients, without padding and with the offset added: map·(mean vector)."""
        values = self._unpadded(self.values(packet)) / packet.clients
        return values if self.offset is None else values + self.offset

    def packet(self, values: Tensor, *, clients: int = 1) -> Packet:
        """Make a packet from numbers `(size,)` that are the sum over this many clients.

        Integers for masking keep their padding, because rotation and noise spread over it. It is removed after the sum.
        """
        values = values.cpu()
        if not values.is_floating_point():
            return Packet(kind=self.kind, arrays={"values": values}, clients=clients)
        return Packet(kind=self.kind, arrays={"values": self._unpadded(values).reshape(self.shape)}, clients=clients)

    def mapped(self, rows: Tensor) -> Tensor:
        """Apply only the map, without offset and padding."""
        return rows if self.map is None else self.map.apply(self._taken(rows))

    def _taken(self, vectors: Tensor) -> Tensor:
        return vectors if self.anywhere else vectors.cpu()

    def _padded(self, values: Tensor) -> Tensor:
        return functional.pad(values, (0, self.padding)) if self.padding else values

    def _unpadded(self, values: Tensor) -> Tensor:
        return values[..., : self.size - self.padding] if self.padding else values
