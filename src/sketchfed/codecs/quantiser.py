"""What codecs share that send every coordinate, or some at random, in few bits."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sketchfed.codecs.base import Codec, sender
from sketchfed.codecs.rand_k import rows_of
from sketchfed.errors import InputError, WireError
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Bits, Packet, expect_kind, tensor_named

Floats = npt.NDArray[np.float32]

LARGEST = 2.0**80
"""Norms and scales beyond this are refused: so no sum over clients and no rescaling leaves the range of float32."""


@dataclass(frozen=True, kw_only=True)
class Quantiser(Codec):
    """A codec that sends `size` coordinates in few bits each, all of them if no size is given.

    Fewer than all are drawn at random by each client for itself, and multiplied by dim/size where they are decoded: what was
    unbiased stays so. The decoder draws the same coordinates, so none is named in the packet.
    """

    size: int | None = None

    @property
    def personal(self) -> bool:  # type: ignore[override]
        """Who sent a packet must be known to draw the same coordinates, and for nothing else."""
        return self.sent < self.dim

    @property
    def sent(self) -> int:
        """How many coordinates a packet carries."""
        return self.dim if self.size is None else self.size

    @property
    def gain(self) -> float:
        """What makes up for coordinates that are not sent."""
        return self.dim / self.sent

    def norm(self, packet: Packet, seed: PublicSeed) -> float:
        """That of the decoded vector, less what rounding and drawing add to it: E‖decoded‖² is at most ‖x‖²/shrinkage."""
        decoded = self.gain * np.linalg.norm(self._read(expect_kind(packet, self.name), seed).astype(np.float64))
        return float(decoded * math.sqrt(self.shrinkage))

    @abstractmethod
    def _read(self, packet: Packet, seed: PublicSeed) -> Floats:
        """What a packet says about the numbers that it carries, `(sent,)`, all of it checked."""

    def _rows(self, seed: PublicSeed, client: int) -> npt.NDArray[np.int64] | None:
        """The coordinates that a client sends, or None for all."""
        return None if self.sent == self.dim else rows_of(seed, client, dim=self.dim, size=self.sent).numpy()

    def _drawn(self, x: Tensor, seed: PublicSeed, client: int) -> Floats:
        """The numbers that a client sends."""
        numbers, rows = to_numbers(x), self._rows(seed, client)
        return numbers if rows is None else numbers[rows]

    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        total = np.zeros(self.dim, np.float32)
        for packet in packets:
            rows = self._rows(seed, sender(packet)) if self.personal else None
            total[slice(None) if rows is None else rows] += self._read(packet, seed)
        return torch.from_numpy(total * np.float32(self.gain / len(packets)))


def to_numbers(x: Tensor) -> Floats:
    """The vector as float32 in numpy, without a copy where it is that already; refused where it is absurdly long."""
    numbers: Floats = x.to("cpu", torch.float32).contiguous().numpy()
    norm = float(torch.linalg.vector_norm(x, dtype=torch.float64))
    if not norm <= LARGEST:
        raise InputError(
            f"a vector's norm must be at most {LARGEST:.2g} to be rounded to few bits, this one's is {norm:.2g}. Find where "
            "training diverged (a smaller step?)."
        )
    return numbers


def to_codes(count: int, bits: int) -> npt.NDArray[Any]:
    """Room for so many codes of so many bits."""
    return np.empty(count, np.uint8 if bits <= 8 else np.int32)


def to_bits(codes: npt.NDArray[Any], bits: int) -> Bits:
    return Bits(torch.from_numpy(codes), bits=bits)


def rounded_up(numbers: npt.NDArray[np.float64]) -> Floats:
    """The nearest float32 that are not smaller."""
    near = numbers.astype(np.float32)
    return np.where(near < numbers, np.nextafter(near, np.float32(np.inf)), near)


def scales_named(packet: Packet, name: str, count: int) -> Floats:
    """The norms or scales of that name, which must be numbers from 0 to `LARGEST`."""
    scales: Floats = tensor_named(packet, name, shape=(count,)).numpy()
    if scales.min() < 0 or scales.max() > LARGEST:
        raise WireError(
            f"array '{name}' of packet '{packet.kind}' should hold numbers from 0 to {LARGEST:.2g}, it holds some from "
            f"{scales.min():.2g} to {scales.max():.2g}."
        )
    return scales


def check_bits(codec: Codec, bits: int, *, least: int, most: int) -> None:
    if type(bits) is not int or not least <= bits <= most:
        raise InputError(f"codec '{codec.name}' sends numbers with {least} to {most} bits, got bits = {bits!r}.")
