"""The common part of codecs that send all coordinates, or a random subset of them, in few bits."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sketchfed.codecs.base import Codec, sender
from sketchfed.codecs.linear import LinearCode
from sketchfed.codecs.rand_k import RandK, rows_of
from sketchfed.errors import InputError, WireError
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Bits, Packet, expect_kind, tensor_named

Floats = npt.NDArray[np.float32]

LARGEST = 2.0**80
"""Norms and scales above this are refused, so that sums over clients and rescaled numbers stay in the range of float32."""


@dataclass(frozen=True, kw_only=True)
class Quantiser(Codec):
    """A codec that sends `size` coordinates, each in few bits. Without a size, it sends all of them.

    If `size` is less than dim, each client draws its own random coordinates, and the decoder multiplies them by dim/size. An
    unbiased codec thus stays unbiased. The decoder draws the same coordinates, so the packet does not name them.
    """

    size: int | None = None

    blind: ClassVar[bool] = False
    """Whether each number is rounded separately. Then a packet holds the drawn coordinates up to rounding."""

    @property
    def personal(self) -> bool:  # type: ignore[override]
        """The decoder must know the sender only to draw the same coordinates."""
        return self.sent < self.dim

    @property
    def sent(self) -> int:
        """The number of coordinates in a packet."""
        return self.dim if self.size is None else self.size

    @property
    def gain(self) -> float:
        """The factor that compensates for coordinates that are not sent."""
        return self.dim / self.sent

    def linear(self, seed: PublicSeed, client: int = 0) -> LinearCode | None:
        """The selection of the coordinates that this client draws, up to rounding. `RandK` draws the same coordinates."""
        if not self.blind or not self.personal:
            return None
        return self._through(RandK(dim=self.dim, size=self.sent), seed, client, rounded=True)

    def norm(self, packet: Packet, seed: PublicSeed) -> float:
        """The norm of the decoded vector, corrected for rounding and drawing: E‖decoded‖² is at most ‖x‖²/shrinkage."""
        decoded = self.gain * np.linalg.norm(self._read(expect_kind(packet, self.name), seed).astype(np.float64))
        return float(decoded * math.sqrt(self.shrinkage))

    @abstractmethod
    def _read(self, packet: Packet, seed: PublicSeed) -> Floats:
        """Check a packet and return the numbers that it carries, `(sent,)`."""

    def _rows(self, seed: PublicSeed, client: int) -> npt.NDArray[np.int64] | None:
        """The coordinates that a client sends. None means all of them."""
        return None if self.sent == self.dim else rows_of(seed, client, dim=self.dim, size=self.sent).numpy()

    def _drawn(self, x: Tensor, seed: PublicSeed, client: int) -> Floats:
        """The numbers of a vector that a client sends."""
        numbers, rows = to_numbers(x), self._rows(seed, client)
        return numbers if rows is None else numbers[rows]

    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        total = np.zeros(self.dim, np.float32)
        for packet in packets:
            rows = self._rows(seed, sender(packet)) if self.personal else None
            total[slice(None) if rows is None else rows] += self._read(packet, seed)
        return torch.from_numpy(total * np.float32(self.gain / len(packets)))


def to_numbers(x: Tensor) -> Floats:
    """The vector as a float32 numpy array, without a copy if possible. Vectors with a huge norm are refused."""
    numbers: Floats = x.to("cpu", torch.float32).contiguous().numpy()
    norm = float(torch.linalg.vector_norm(x, dtype=torch.float64))
    if not norm <= LARGEST:
        raise InputError(
            f"a vector's norm must be at most {LARGEST:.2g} to be rounded to few bits, but this one's is {norm:.2g}. Find "
            "where training diverged; a smaller step may help."
        )
    return numbers


def to_codes(count: int, bits: int) -> npt.NDArray[Any]:
    """Allocate an array for `count` codes of `bits` bits."""
    return np.empty(count, np.uint8 if bits <= 8 else np.int32)


def to_bits(codes: npt.NDArray[Any], bits: int) -> Bits:
    return Bits(torch.from_numpy(codes), bits=bits)


def rounded_up(numbers: npt.NDArray[np.float64]) -> Floats:
    """Convert to the nearest float32 numbers that are not smaller."""
    near = numbers.astype(np.float32)
    return np.where(near < numbers, np.nextafter(near, np.float32(np.inf)), near)


def scales_named(packet: Packet, name: str, count: int) -> Floats:
    """The norms or scales in the array with this name, which must be numbers from 0 to `LARGEST`."""
    scales: Floats = tensor_named(packet, name, shape=(count,)).numpy()
    if scales.min() < 0 or scales.max() > LARGEST:
        raise WireError(
            f"array '{name}' of packet '{packet.kind}' must hold numbers from 0 to {LARGEST:.2g}, but its numbers range from "
            f"{scales.min():.2g} to {scales.max():.2g}."
        )
    return scales


def check_bits(codec: Codec, bits: int, *, least: int, most: int) -> None:
    if type(bits) is not int or not least <= bits <= most:
        raise InputError(f"codec '{codec.name}' sends numbers with {least} to {most} bits, got bits = {bits!r}.")
