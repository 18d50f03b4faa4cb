"""The largest coordinates, and a random sample of the others."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sketchfed.codecs import subsets
from sketchfed.codecs.base import Codec, check_correlation, sender
from sketchfed.codecs.rand_k import rows_of
from sketchfed.codecs.rounding import Parts, check_width, from_packet, relative_variance, to_parts
from sketchfed.codecs.top_k import largest
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, expect_kind


@dataclass(frozen=True, kw_only=True)
class Induced(Codec):
    """Sends Top-k₁ of the vector plus (dim/k₂)·Rand-k₂ of the rest, with k₁ = k₂ = ⌊size/2⌋. An odd `size` sends one less.

    Paper: Horváth & Richtárik 2021, the induced compressor, with the two parts that Jiang et al. 2023 use. It is unbiased
    because Rand-k is: the largest coordinates are sent without error, and only the rest is sampled. The packet names the
    coordinates of the top part. The decoder rebuilds those of the random part from the seed. size = 1 is Rand-k. Rounded
    numbers share one step between levels, so the random part is multiplied by dim/k₂ before rounding.
    """

    size: int
    bits: int = 32

    name = "induced"
    summary = "the largest coordinates, and a random sample of the others"
    source = "Horváth & Richtárik 2021"
    unbiased = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_width(self.bits)

    @property
    def top(self) -> int:
        """k₁, the number of largest coordinates that are sent."""
        return self.size // 2

    @property
    def drawn(self) -> int:
        """k₂, the number of coordinates drawn from the rest."""
        return max(1, self.size // 2)

    def mse(self, total_square: float, correlation: float = 0.0) -> float | None:
        """(dim/k₂ − 1)/n² times the part of Σ‖xᵢ‖² that the top coordinates leave. It is known in advance only for size = 1."""
        clients = self._planned()
        check_correlation(correlation, clients)
        return (self.dim - 1) * total_square / clients**2 if self.bits == 32 and self.size == 1 else None

    @property
    def shrinkage(self) -> float:
        """1/(1 + ω) with ω ≤ (dim/k₂ − 1)·(1 − k₁/dim), because the top part leaves at most 1 − k₁/dim of ‖x‖².

        Rounding adds its relative variance to E‖sent‖² ≤ (1 + ω)‖x‖².
        """
        spread = 1 + (self.dim / self.drawn - 1) * (1 - self.top / self.dim)
        return 1 / (spread * (1 + relative_variance(size=self.top + self.drawn, bits=self.bits)))

    def norm(self, packet: Packet, seed: PublicSeed) -> float:
        """The packet contains the top part. For the rest, (dim/k₂)‖Rand-k₂‖² has the right expectation."""
        values = self._values(expect_kind(packet, self.name), seed).double()
        self._top_rows(packet)
        top, drawn = values[: self.top].norm(), values[self.top :].norm()
        return float((top**2 + drawn**2 * (self.drawn / self.dim)) ** 0.5)

    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        top = torch.from_numpy(largest(x, self.top))
        rest = x.clone()
        rest[top] = 0
        drawn = rest[rows_of(seed, client, dim=self.dim, size=self.drawn)] * (self.dim / self.drawn)
        arrays, scalars = to_parts(torch.cat([x[top], drawn]), bits=self.bits, seed=seed.child("client", client))
        return Parts(arrays | ({"rows": subsets.to_bits(top.numpy(), dim=self.dim)} if self.top else {}), scalars)

    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        total = torch.zeros(self.dim)
        for packet in packets:
            values = self._values(packet, seed)
            total[self._top_rows(packet)] += values[: self.top]
            total[rows_of(seed, sender(packet), dim=self.dim, size=self.drawn)] += values[self.top :]
        return total / len(packets)

    def _values(self, packet: Packet, seed: PublicSeed) -> Tensor:
        client = seed.child("client", sender(packet))
        return from_packet(packet, size=self.top + self.drawn, bits=self.bits, seed=client)

    def _top_rows(self, packet: Packet) -> Tensor:
        rows = subsets.from_packet(packet, "rows", dim=self.dim, size=self.top) if self.top else np.empty(0, np.int64)
        return torch.from_numpy(rows)
