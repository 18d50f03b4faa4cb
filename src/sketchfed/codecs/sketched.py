"""A sketch of the vector from a shared seed, with coefficients that may be rounded to few bits."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sketchfed.caches import cached
from sketchfed.codecs.base import Codec, check_correlation, count, sender
from sketchfed.codecs.linear import LinearCode
from sketchfed.codecs.rounding import Parts, check_width, from_packet, relative_variance, to_parts
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import Sketch, make_sketch
from sketchfed.sketches.elsewhere import desketched
from sketchfed.wire import Packet, expect_kind


@dataclass(frozen=True, kw_only=True)
class SketchCodec(Codec):
    """Sends R x, where R comes from the round's seed, with `bits` bits per coefficient.

    Paper: Song et al. 2023, Sec. 4, plus dithered rounding (`codecs.rounding`). The mean of the sketches is the sketch of the
    mean. The codec is unbiased: E[Rᵀ·(mean of sketches)] is the mean.
    """

    size: int
    family: str = "srht"
    bits: int = 32
    options: tuple[tuple[str, Any], ...] = field(default=())
    _device: str = field(default="cpu", repr=False, compare=False)
    """Where sketches are undone, if that gives the bits of the CPU."""

    name = "sketched"
    summary = "a random linear sketch that all parties rebuild from a seed"
    source = "Song et al. 2023"
    unbiased = True
    spreads = True
    anywhere = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_width(self.bits)
        self.sketch(PublicSeed(0))  # raises an error now if the family does not accept these settings

    def linear(self, seed: PublicSeed, client: int = 0) -> LinearCode:
        """The round's sketch. Rounded coefficients cannot be added, because each packet has its own levels."""
        sketch = self.sketch(seed)
        if self.bits == 32:
            return LinearCode(kind=self.name, shape=(self.size,), map=sketch, anywhere=True)
        return LinearCode(
            kind=self.name,
            shape=(self.size,),
            map=sketch,
            exact=False,
            reader=lambda packet: self.read(packet, seed),
            anywhere=True,
        )

    @property
    def personal(self) -> bool:  # type: ignore[override]
        """The decoder must know the sender of a rounded packet, to draw the same dither."""
        return self.bits < 32

    def mse(self, total_square: float, correlation: float = 0.0) -> float | None:
        """α·‖mean‖², because the mean of sketches is the sketch of the mean. α is `exact_alpha`, an upper bound with padding.

        None with rounding, which adds Σᵢ size·stepᵢ²/12·(dim/size)/n². This depends on each sketch's largest coefficient.
        """
        clients = self._planned()
        check_correlation(correlation, clients)
        if self.bits < 32:
            return None
        return self.sketch(PublicSeed(0)).exact_alpha * total_square * (1 + correlation) / clients**2

    @property
    def shrinkage(self) -> float:
        return self.share / (1 + relative_variance(size=self.size, bits=self.bits))

    @property
    def share(self) -> float:
        """size/dim, the factor with which RᵀR is a projection."""
        return self.size / self.dim

    @property
    def shares(self) -> float | Tensor:
        """`share` of every coordinate, `(dim,)`. A number if it is the same for all."""
        return self.share

    def sketch(self, seed: PublicSeed) -> Sketch:
        """The sketch of a round."""
        made = _sketch if self.dim < LARGE else _large_sketch
        return made(self.family, self.dim, self.size, seed.child("sketch"), self.options)

    def read(self, packet: Packet, seed: PublicSeed) -> Tensor:
        """The sketch `(size,)` that a packet carries, or the sum of sketches if it stands for several clients."""
        expect_kind(packet, self.name)
        client = sender(packet) if self.personal else 0
        return self.numbers(packet, bits=self.bits, seed=seed.child("client", client))

    def rounded(self, values: Tensor, *, bits: int, seed: PublicSeed) -> Parts:
        """The contents of a packet that carries a sketch `(size,)` with `bits` bits per coefficient."""
        return to_parts(values, bits=bits, seed=seed)

    def numbers(self, packet: Packet, *, bits: int, seed: PublicSeed) -> Tensor:
        """The sketch `(size,)` in a packet with such contents."""
        return from_packet(packet, size=self.size, bits=bits, seed=seed)

    def mean(self, packets: Sequence[Packet], seed: PublicSeed) -> Tensor:
        """The mean of the packets' sketches, `(size,)`."""
        self._check_round(packets, seed)
        total = torch.zeros(self.size)
        for packet in packets:
            total += self.read(packet, seed)
        return total / count(packets)

    def norm(self, packet: Packet, seed: PublicSeed) -> float:
        """The norm of the sketch: E‖R x‖² = ‖x‖²."""
        return float(self.read(packet, seed).norm())

    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        return self.rounded(self.sketch(seed).apply(x), bits=self.bits, seed=seed.child("client", client))

    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        return self.desketched(self.mean(packets, seed), seed)

    def desketched(self, y: Tensor, seed: PublicSeed) -> Tensor:
        """Rᵀy for a round's sketch: `(size,)` to `(dim,)`. It has the same bits everywhere."""
        return desketched(self.sketch(seed), y, torch.device(self._device))


LARGE = 2**24
"""Of sketches of at least this dim, only the latest are kept, for their random numbers take megabytes."""


@cached(maxsize=8)
def _sketch(family: str, dim: int, size: int, seed: PublicSeed, options: tuple[tuple[str, Any], ...]) -> Sketch:
    """All clients of a round use the same object, so its random numbers are drawn only once."""
    return make_sketch(family, dim=dim, size=size, seed=seed, **dict(options))


@cached(maxsize=2)
def _large_sketch(family: str, dim: int, size: int, seed: PublicSeed, options: tuple[tuple[str, Any], ...]) -> Sketch:
    """The same for large sketches."""
    return make_sketch(family, dim=dim, size=size, seed=seed, **dict(options))
