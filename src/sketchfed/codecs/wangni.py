"""Coordinates drawn with probabilities that grow with their magnitude."""

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
    """Coordinate i with probability pᵢ = min(|xᵢ|/scale, 1), as xᵢ/pᵢ; `scale` makes Σpᵢ = size, so the number sent is random.

    Paper: Wangni et al. 2018, Alg. 3, run until it rests. Unbiased, and no other independent choice of `size` expected
    coordinates has a smaller variance. A coordinate that is drawn with pᵢ < 1 arrives as ±scale, so a sign is all that it
    needs beside its place; only those that are sure to be sent carry values of `bits` bits. At most
    size − 1 are sure. Fewer than `size` coordinates that are not zero are all sent, as they are.
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
        """Who rounded must be known, to draw the same dither."""
        return self.bits < 32

    @property
    def shrinkage(self) -> float:
        """From ω ≤ dim/size − 1, and what rounding adds to the values that are sure to be sent.

        E‖sent‖² = Σxᵢ²/pᵢ is least, among all p with Σpᵢ ≤ size and pᵢ ≤ 1, at these p (Wangni et al. 2018). The
        uniform pᵢ = size/dim is among them, and its sum is (dim/size)‖x‖²; so 1 + ω ≤ dim/size, with equality for flat vectors.
        """
        return 1 / (self.dim / self.size + relative_variance(size=self.size, bits=self.bits))

    def norm(self, packet: Packet, seed: PublicSeed) -> float:
        """Sure values count as they are; those drawn as if all that were not sure had one magnitude, their mean.

        With s sure and m drawn that makes m·scale²·(size − s)/(dim − s): in expectation (Σ|xᵢ|)²/(dim − s) over what is not
        sure, which is at most its square norm.
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
                "diverged (a smaller step?)."
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
                    f"packet '{packet.kind}' has {count:,} sure coordinates; of {self.size:,} that are expected at most "
                    f"{self.size - 1:,} can be sure."
                )
            sure = subsets.from_packet(packet, "rows", dim=self.dim, size=count)
            values = from_packet(packet, size=count, bits=self.bits, seed=seed.child("client", client))
        if (twice := np.intersect1d(sure, drawn, assume_unique=True)).size:
            raise WireError(f"packet '{packet.kind}' has coordinate {twice[0]:,} both as sure and as drawn.")
        return Draw(torch.from_numpy(sure), values, torch.from_numpy(drawn), 1 - 2 * signs.to(torch.float32), scale)


class Draw(NamedTuple):
    """What a packet says: the sure coordinates with their values, those drawn with their signs, and the magnitude of these."""

    sure: Tensor
    values: Tensor
    drawn: Tensor
    signs: Tensor
    scale: float


def split(magnitudes: Floats, size: int) -> tuple[float, float]:
    """The threshold above which coordinates are sure to be sent, and the scale of the others: p = min(|x|/scale, 1), Σp = size.

    Wangni et al. multiply the p < 1 by what is missing to `size`, again and again, as more of them reach 1. It comes to rest
    with the s largest sure and the others at scale = (their sum)/(size − s), for the first s at which no other exceeds it;
    s < size, for the last candidate never exceeds a sum that it is part of.
    """
    if size == len(magnitudes):
        ordered, rest = np.sort(magnitudes), 0.0
    else:
        ordered = np.partition(magnitudes, len(magnitudes) - size)
        ordered, rest = np.sort(ordered[-size:]), float(ordered[:-size].sum())
    sums = (rest + np.cumsum(ordered))[::-1]  # from the smallest on, so that a huge number cannot swallow the others
    scales = sums / np.arange(size, 0, -1)
    sure = int(np.argmax(ordered[::-1] <= scales))
    return (float(ordered[-1 - sure]), float(scales[sure]))


def _uniforms(seed: PublicSeed, count: int) -> Floats:
    """On [0, 1), with 53 bits."""
    words = philox.words(seed.stream, 2 * count)[: 2 * count].astype("<u4", copy=False).view("<u8")
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _length(packet: Packet, name: str) -> int:
    """How many numbers the array of that name holds; 0 if it is not there, which is noticed when it is read."""
    array = packet.arrays.get(name)
    return array.shape[0] if array is not None and len(array.shape) == 1 else 0
