"""A shared-seed sketch of the vector, its coefficients in few bits."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from sketchfed.codecs.base import Codec, check_correlation, count, sender
from sketchfed.codecs.rounding import Parts, check_width, from_packet, relative_variance, to_parts
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import Sketch, make_sketch
from sketchfed.wire import Packet, expect_kind


@dataclass(frozen=True, kw_only=True)
class Sketched(Codec):
    """R x with the R of the round's seed, `bits` a coefficient; the mean of sketches is the sketch of the mean.

    Paper: Song et al. 2023, Sec. 4, with dithered rounding (`codecs.rounding`) on top. Unbiased: E[Rᵀ·mean] is the mean.
    """

    size: int
    family: str = "srht"
    bits: int = 32
    options: tuple[tuple[str, Any], ...] = field(default=())

    name = "sketched"
    summary = "a random linear sketch that all parties rebuild from a seed"
    source = "Song et al. 2023"
    unbiased = True
    spreads = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_width(self.bits)
        self.sketch(PublicSeed(0))  # refuses what the family refuses, now

    @property
    def additive(self) -> bool:
        """Rounded coefficients are not: each packet has levels of its own."""
        return self.bits == 32

    @property
    def personal(self) -> bool:  # type: ignore[override]
        """Who rounded must be known, to draw the same dither."""
        return self.bits < 32

    def mse(self, total_square: float, correlation: float = 0.0) -> float | None:
        """α·‖mean‖², for the mean of sketches is the sketch of the mean; α is `exact_alpha`, with padding an upper bound.

        Rounding adds to it: Σᵢ size·stepᵢ²/12·(dim/size)/n², which depends on each sketch's largest coefficient.
        """
        clients = self._planned()
        check_correlation(correlation, clients)
        if self.bits < 32:
            return None
        return self.sketch(PublicSeed(0)).exact_alpha * total_square * (1 + correlation) / clients**2

    @property
    def shrinkage(self) -> float:
        return self.size / self.dim / (1 + relative_variance(size=self.size, bits=self.bits))

    def sketch(self, seed: PublicSeed) -> Sketch:
        """The sketch of a round."""
        return _sketch(self.family, self.dim, self.size, seed.child("sketch"), self.options)

    def read(self, packet: Packet, seed: PublicSeed) -> Tensor:
        """The sketch `(size,)` that a packet carries, or the sum of sketches if it stands for several clients."""
        expect_kind(packet, self.name)
        client = sender(packet) if self.personal else 0
        return from_packet(packet, size=self.size, bits=self.bits, seed=seed.child("client", client))

    def mean(self, packets: Sequence[Packet], seed: PublicSeed) -> Tensor:
        """The mean of the sketches, `(size,)`."""
        self._check_round(packets, seed)
        total = torch.zeros(self.size)
        for packet in packets:
            total += self.read(packet, seed)
        return total / count(packets)

    def norm(self, packet: Packet, seed: PublicSeed) -> float:
        """That of the sketch: E‖R x‖² = ‖x‖²."""
        return float(self.read(packet, seed).norm())

    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        return to_parts(self.sketch(seed).apply(x), bits=self.bits, seed=seed.child("client", client))

    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        return self.sketch(seed).adjoint(self.mean(packets, seed))


@lru_cache(maxsize=8)
def _sketch(family: str, dim: int, size: int, seed: PublicSeed, options: tuple[tuple[str, Any], ...]) -> Sketch:
    """All clients of a round use one object, so what it draws is drawn once."""
    return make_sketch(family, dim=dim, size=size, seed=seed, **dict(options))
