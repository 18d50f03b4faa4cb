"""A shared-seed sketch of the vector, its coefficients in few bits."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from sketchfed.codecs.base import Codec, check_some, check_vector
from sketchfed.codecs.rounding import check_width, from_packet, to_parts
from sketchfed.errors import WireError
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import Sketch, make_sketch
from sketchfed.wire import Packet, expect_kind, number_named


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

    def __post_init__(self) -> None:
        check_width(self.bits)
        self.sketch(PublicSeed(0))  # refuses what the family refuses, now

    @property
    def additive(self) -> bool:
        """Rounded coefficients are not: each packet has levels of its own."""
        return self.bits == 32

    def sketch(self, seed: PublicSeed) -> Sketch:
        """The sketch of a round."""
        return _sketch(self.family, self.dim, self.size, seed.child("sketch"), self.options)

    def encode(self, x: Tensor, seed: PublicSeed, client: int = 0) -> Packet:
        check_vector(x, self.dim)
        arrays, scalars = to_parts(self.sketch(seed).apply(x), bits=self.bits, seed=seed.child("client", client))
        named = {"client": client, **scalars} if scalars else {}  # who rounded must be known, to draw the same dither
        return Packet(kind="sketched", arrays=arrays, scalars=named)

    def read(self, packet: Packet, seed: PublicSeed) -> Tensor:
        """The sketch `(size,)` that a packet carries, or the sum of sketches if it stands for several clients."""
        expect_kind(packet, "sketched")
        client = int(number_named(packet, "client", least=0, most=2**63)) if self.bits < 32 else 0
        return from_packet(packet, size=self.size, bits=self.bits, seed=seed.child("client", client))

    def mean(self, packets: Sequence[Packet], seed: PublicSeed) -> Tensor:
        """The mean of the sketches, `(size,)`."""
        check_some(packets)
        total = torch.zeros(self.size)
        for packet in packets:
            total += self.read(packet, seed)
        return total / sum(packet.clients for packet in packets)

    def decode(self, packets: Sequence[Packet], seed: PublicSeed) -> Tensor:
        return self.sketch(seed).adjoint(self.mean(packets, seed))

    def check(self, packet: Packet, client: int) -> None:
        if self.bits < 32 and expect_kind(packet, "sketched").scalars.get("client") != client:
            raise WireError(f"client {client} sent a packet that names client {packet.scalars.get('client')!r}.")
        self.read(packet, PublicSeed(0))


@lru_cache(maxsize=8)
def _sketch(family: str, dim: int, size: int, seed: PublicSeed, options: tuple[tuple[str, Any], ...]) -> Sketch:
    """All clients of a round use one object, so what it draws is drawn once."""
    return make_sketch(family, dim=dim, size=size, seed=seed, **dict(options))
