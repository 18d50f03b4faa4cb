"""A random rotation after which no number is large."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sketchfed.kernels import clipping, philox
from sketchfed.seeds import PublicSeed, Words

_TURNS = 3


@dataclass(frozen=True, kw_only=True)
class Flattening:
    """Signs and a normalised Hadamard transform of the first `width` of `size` numbers, of the last, of the first again.

    width is the largest power of two that fits, so nothing is padded. The signs of the last transform that reaches a number
    make it a sum of independent terms whose squares add up to at most ‖x‖²/width: it is sub-Gaussian with that variance, which
    is less than twice that of a perfectly flat vector, whatever x is. (`codecs.rotation.Rotation` cuts a vector into pieces
    that keep their norms: a vector of 513 numbers may have all of its norm in a piece of one number.)
    """

    size: int
    seed: PublicSeed

    @property
    def width(self) -> int:
        return 1 << self.size.bit_length() - 1

    def apply_(self, rows: npt.NDArray[np.float64]) -> None:
        """Flatten rows `(n, size)` in place."""
        clipping.flatten(rows, self.width, self._signs)

    def invert_(self, row: npt.NDArray[np.float64]) -> None:
        """Undo the flattening of a vector `(size,)` in place."""
        clipping.unflatten(row, self.width, self._signs)

    @cached_property
    def _signs(self) -> Words:
        return np.stack([philox.words(self.seed.child("signs", turn).stream, self.width // 32 + 1) for turn in range(_TURNS)])
