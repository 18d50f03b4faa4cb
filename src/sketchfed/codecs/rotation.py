"""Random rotations of any dimension that cost only a few fast transforms."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sketchfed.kernels import fwht, normals, philox
from sketchfed.seeds import PublicSeed, Words

Floats = npt.NDArray[np.float32]

_NARROWEST = 64  # a fast transform does not pay for fewer coordinates; pieces also begin at whole words of signs
_TURNS = 3


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """Random signs and a normalised Hadamard transform, three times, on pieces of a vector. The inverse is the transpose.

    The pieces have lengths that are powers of two, largest first. Nothing is padded, so dim numbers stay dim numbers. The last
    coordinates, if fewer than 64, are rotated by a uniformly random matrix. No number moves between pieces, so each piece
    keeps its norm.

    One transform is not enough for quantisers. It maps a vector with a single large coordinate to numbers of nearly the same
    size, whose signs reveal nothing about the other coordinates. After the second transform the numbers look normal but lie on
    a grid. After the third, the grid is too fine to matter.
    """

    dim: int
    seed: PublicSeed

    @cached_property
    def edges(self) -> list[int]:
        """The start of each piece, followed by dim."""
        edges = [0]
        while self.dim - edges[-1] >= _NARROWEST:
            edges.append(edges[-1] + (1 << (self.dim - edges[-1]).bit_length() - 1))
        return edges if edges[-1] == self.dim else [*edges, self.dim]

    def apply(self, x: Floats) -> Floats:
        """Rotate a vector `(dim,)`."""
        out = np.empty_like(x)
        for start, stop in pairwise(self.edges):
            width, part = stop - start, out[start:stop]
            if width < _NARROWEST:
                part[:] = self._uniform @ x[start:stop]
                continue
            part[:] = x[start:stop]
            for words in self._signs:
                signs = words[start // 32 : stop // 32]
                fwht.signed_transform(part, 0, width, signs, part, width.bit_length() - 1)
                part *= np.float32(width**-0.5)
        return out

    def inverse(self, y: Floats) -> Floats:
        """Return the vector `(dim,)` whose rotation is y."""
        out = np.empty_like(y)
        for start, stop in pairwise(self.edges):
            width, part = stop - start, out[start:stop]
            if width < _NARROWEST:
                part[:] = self._uniform.T @ y[start:stop]
                continue
            part[:] = y[start:stop]
            for words in self._signs[::-1]:
                signs = words[start // 32 : stop // 32]
                part *= np.float32(width**-0.5)  # before the transform, so that no intermediate number exceeds the norm
                fwht.transform(part, 0, width.bit_length() - 1)
                fwht.negate(part, signs, width, part, 0)
        return out

    @cached_property
    def _signs(self) -> list[Words]:
        """One bit per coordinate for each turn. Pieces begin at multiples of 64."""
        return [philox.words(self.seed.child("signs", turn).stream, self.dim // 32 + 1) for turn in range(_TURNS)]

    @cached_property
    def _uniform(self) -> npt.NDArray[np.float64]:
        """A uniformly random orthogonal matrix: the Q factor of a normal matrix, with the signs that make it unique."""
        width = self.dim % _NARROWEST
        rows = np.empty((width, _NARROWEST), np.float32)
        for number, row in enumerate(rows):
            normals.fill(self.seed.child("rest").stream, number, 0, row)
        q, r = np.linalg.qr(rows[:, :width].astype(np.float64))
        matrix: npt.NDArray[np.float64] = q * np.sign(np.diag(r))
        return matrix
