"""Randomly drawn coordinates. The probability of each coordinate grows with its magnitude."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sketchfed.codecs import subsets
from sketchfed.codecs.base import Codec, sender
from sketchfed.codecs.rounding import Parts, check_width, from_packet, relative_variance, to_parts
from sketchfed.errors import InputError, WireError
from sketchfed.kernels import philox
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Bits, Packet, bits_named, expect_kind, number_named

Floats = npt.NDArray[np.float64]

_LARGEST = float(torch.finfo(torch.float32).max)


@dataclass(frozen=True, kw_only=True)
class Wangni(Codec):
    """Sends coordinate i as xᵢ/pᵢ with probability pᵢ = min(|xᵢ|/scale, 1), where `scale` is such that Σpᵢ = size.

    Paper: Wangni et al. 2018, Alg. 3, iterated until it converges. The number of coordinates in a packet is random, with mean
    `size`. The codec is unbiased, and no other independent choice of `size` coordinates in expectation has a smaller variance.
    A coordinate drawn with pᵢ < 1 arrives as ±scale, so the packet holds only its position and sign. Only the coordinates that
    are sure to be sent (pᵢ = 1) have values of `bits` bits. There are at most size − 1 of them. If fewer than `size`
    coordinates are nonzero, all of them are sent unchanged.
    """

    size: int
    bits: int = 32

    name = "wangni"
    summary = "coordinates drawn with probability proportional to their magnitude"
    source = "Wangni et al. 2018"
    unbiased = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_width(self.bits)

    @property
    def personal(self) -> bool:  # type: ignore[override]
        """The decoder must know the sender of a rounded packet, to draw the same dither."""
        return self.bits < 32

    @property
    def shrinkage(self) -> float:
        """1/(1 + ω) with ω ≤ dim/size − 1, plus the variance that rounding adds to the values that are sure to be sent.

        Among all p with Σpᵢ ≤ size and pᵢ ≤ 1, these p minimise E‖sent‖² = Σxᵢ²/pᵢ (Wangni et al. 2018). The uniform
        pᵢ = size/dim gives (dim/size)‖x‖², so 1 + ω ≤ dim/size, with equality for flat vectors.
        """
        return 1 / (self.dim / self.size + relative_variance(size=self.size, bits=self.bits))

    def norm(self, packet: Packet, seed: PublicSeed) -> float:
        """The norm of the values that are surely sent, and an estimate for the others that assumes equal magnitudes.

        With s sure and m drawn coordinates, the drawn ones contribute m·scale²·(size − s)/(dim − s) to the square. Its
        expectation is (Σ|xᵢ|)²/(dim − s) over the coordinates that are not sure, which is at most their square norm.
        """
        sure, values, _, signs, scale = self._read(expect_kind(packet, self.name), seed)
        drawn = len(signs) * scale**2 * (self.size - len(sure)) / (self.dim - len(sure))
        return float((float(values.double().norm()) ** 2 + drawn) ** 0.5)

    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        own, numbers = seed.child("client", client), x.double().cpu().numpy()
        magnitudes = np.abs(numbers)
        threshold, scale = split(magnitudes, self.size)
        if scale > _LARGEST:
            raise InputError(
                f"the coordinates that are drawn would arrive as {scale:.2g}, more than float32 holds. Find where training "
                "diverged; a smaller step may help."
            )
        drawn = _uniforms(own.child("drawn"), self.dim) * scale < magnitudes
        sure = np.flatnonzero(magnitudes > threshold)
        drawn[sure] = False
        rows = np.flatnonzero(drawn)
        signs = Bits(torch.from_numpy(numbers[rows] < 0), bits=1)
        arrays: dict[str, Tensor | Bits] = {"drawn": subsets.to_bits(rows, dim=self.dim), "signs": signs}
        if not sure.size:
            return Parts(arrays, {"scale": scale})
        values = to_parts(torch.from_numpy(numbers[sure]), bits=self.bits, seed=own)
        return Parts(
            {**arrays, **values.arrays, "rows": subsets.to_bits(sure, dim=self.dim)}, {**values.scalars, "scale": scale}
        )

    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        total = torch.zeros(self.dim)
        for packet in packets:
            sure, values, drawn, signs, scale = self._read(packet, seed)
            total[sure] += values
            total[drawn] += scale * signs
        return total / len(packets)

    def _read(self, packet: Packet, seed: PublicSeed) -> "Draw":
        client = sender(packet) if self.personal else 0
        scale = number_named(packet, "scale", least=0.0, most=_LARGEST)
        signs = bits_named(packet, "signs", shape=(_length(packet, "signs"),), bits=1)
        drawn = subsets.from_packet(packet, "drawn", dim=self.dim, size=len(signs))
        sure, values = np.empty(0, np.int64), torch.empty(0)
        if "values" in packet.arrays or "rows" in packet.arrays:
            count = _length(packet, "values")
            if count >= self.size:
                raise WireError(
                    f"packet '{packet.kind}' has {count:,} sure coordinates, but with size = {self.size:,} at most "
                    f"{self.size - 1:,} can be sure."
                )
            sure = subsets.from_packet(packet, "rows", dim=self.dim, size=count)
            values = from_packet(packet, size=count, bits=self.bits, seed=seed.child("client", client))
        if (twice := np.intersect1d(sure, drawn, assume_unique=True)).size:
            raise WireError(f"packet '{packet.kind}' names coordinate {twice[0]:,} both as sure and as drawn.")
        return Draw(torch.from_numpy(sure), values, torch.from_numpy(drawn), 1 - 2 * signs.to(torch.float32), scale)


class Draw(NamedTuple):
    """The contents of a packet: sure coordinates and their values, drawn coordinates and their signs, and the drawn scale."""

    sure: Tensor
    values: Tensor
    drawn: Tensor
    signs: Tensor
    scale: float


def split(magnitudes: Floats, size: int) -> tuple[float, float]:
    """The threshold above which coordinates are sure to be sent, and the scale of the others: p = min(|x|/scale, 1), Σp = size.

    Wangni et al. repeatedly scale up all p < 1 so that the sum becomes `size`, while more of them reach 1. This converges to
    a state in which the s largest coordinates are sure and the others have scale = (their sum)/(size − s). s is the smallest
    number for which none of the others exceeds this scale. s < size, because the last candidate cannot exceed a sum that
    contains it.
    """
    if size == len(magnitudes):
        ordered, rest = np.sort(magnitudes), 0.0
    else:
        ordered = np.partition(magnitudes, len(magnitudes) - size)
        ordered, rest = np.sort(ordered[-size:]), float(ordered[:-size].sum())
    sums = (rest + np.cumsum(ordered))[::-1]  # summed from the smallest, so that a huge number does not absorb the others
    scales = sums / np.arange(size, 0, -1)
    sure = int(np.argmax(ordered[::-1] <= scales))
    return (float(ordered[-1 - sure]), float(scales[sure]))


def _uniforms(seed: PublicSeed, count: int) -> Floats:
    """Uniform numbers on [0, 1) with 53 bits."""
    words = philox.words(seed.stream, 2 * count)[: 2 * count].astype("<u4", copy=False).view("<u8")
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _length(packet: Packet, name: str) -> int:
    """The length of the array with this name. 0 if it is missing, which raises an error when it is read."""
    array = packet.arrays.get(name)
    return array.shape[0] if array is not None and len(array.shape) == 1 else 0
