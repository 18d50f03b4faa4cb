"""The coordinates of largest magnitude."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sketchfed.codecs import subsets
from sketchfed.codecs.base import Codec, sender
from sketchfed.codecs.rounding import Parts, check_width, from_packet, relative_variance, to_parts
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, expect_kind


@dataclass(frozen=True, kw_only=True)
class TopK(Codec):
    """Sends the `size` coordinates of largest magnitude. Among equal magnitudes, lower coordinates come first.

    Paper: Stich et al. 2018; Alistarh et al. 2018. No other choice of `size` coordinates has a smaller error for a single
    vector. But small coordinates are lost in every round, so the codec is biased and should be used with error feedback.
    Besides its value, each coordinate takes about 2 + log2(dim/size) bits for its position (`codecs.subsets`).
    """

    size: int
    bits: int = 32

    name = "top_k"
    summary = "the largest coordinates and their positions"
    source = "Stich et al. 2018"
    unbiased = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_width(self.bits)

    @property
    def personal(self) -> bool:  # type: ignore[override]
        """The decoder must know the sender of a rounded packet, to draw the same dither."""
        return self.bits < 32

    @property
    def shrinkage(self) -> float:
        """1 without rounding, because Top-k is a contraction. Rounding lowers it by its relative variance."""
        return 1 / (1 + relative_variance(size=self.size, bits=self.bits))

    def norm(self, packet: Packet, seed: PublicSeed) -> float:
        """The norm of the sent numbers. It is at most the norm of the vector."""
        _, values = self._read(expect_kind(packet, self.name), seed)
        return float(values.double().norm())

    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        rows = largest(x, self.size)
        arrays, scalars = to_parts(x[torch.from_numpy(rows)], bits=self.bits, seed=seed.child("client", client))
        return Parts({**arrays, "rows": subsets.to_bits(rows, dim=self.dim)}, scalars)

    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        total = torch.zeros(self.dim)
        for packet in packets:
            rows, values = self._read(packet, seed)
            total[rows] += values
        return total / len(packets)

    def _read(self, packet: Packet, seed: PublicSeed) -> tuple[Tensor, Tensor]:
        client = sender(packet) if self.personal else 0
        rows = subsets.from_packet(packet, "rows", dim=self.dim, size=self.size)
        values = from_packet(packet, size=self.size, bits=self.bits, seed=seed.child("client", client))
        return torch.from_numpy(rows), values


def largest(x: Tensor, size: int) -> subsets.Positions:
    """The coordinates of the `size` largest magnitudes, in ascending order. Ties go to the lower coordinates."""
    magnitudes = x.abs().cpu().numpy() if x.dtype in (torch.float32, torch.float64) else x.abs().double().cpu().numpy()
    threshold = np.partition(magnitudes, len(magnitudes) - size)[len(magnitudes) - size] if size else np.inf
    chosen = magnitudes > threshold
    ties = np.flatnonzero(magnitudes == threshold)
    chosen[ties[: size - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)
