"""CountSketch with buckets of equal size."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from sketchfed.kernels import draws, philox
from sketchfed.seeds import Words
from sketchfed.sketches.columns import ColumnSketch

_BUCKETS_AT_ONCE = 4096  # 16 KiB of float32: the buckets being filled stay in the first-level cache


@dataclass(frozen=True, kw_only=True)
class Balanced(ColumnSketch):
    """A random permutation deals the coordinates into buckets whose sizes differ by at most one, with random signs.

    Not in Song et al.; sampling buckets without replacement takes CountSketch's uneven loads away. Unbiased, any dim.
    RᵀR multiplies a coordinate's energy by the size of its bucket, so α is exactly dim/size − 1 when size divides dim: no
    family of this size can have less, since E tr((RᵀR)²) ≥ dim²/size. In the sense of Song et al.'s Def. 4.1 it has a = 2,
    like AMS, hence `alpha`.

    Beyond 4,096 buckets the permutation works within runs of as many buckets and the coordinates that belong to them, so that
    the loop stays in cache. α stays the same; but each run is a sketch of 4,096 buckets in its own right, and for vectors that
    live in one run a is 2·size/4096. The codes are kept, four bytes a coordinate, drawn at first use.
    """

    name = "balanced"
    summary = "equal buckets from a permutation"
    source = "Zhang & Wang 2021, Sec. 3; here"
    cost = "dim look-ups"
    alpha_formula = "2 dim/size"
    wide = False

    @property
    def alpha(self) -> float:
        return 2 * self.dim / self.size

    @property
    def exact_alpha(self) -> float:
        runs = self._runs()
        squares = np.diff(self._edges(0, self.size)).astype(np.float64) ** 2
        return max(float(squares[a:b].sum()) / self._coordinates(a, b) for a, b in runs) - 1

    def _edges(self, first: int, last: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        """Where buckets first to last begin in the permuted order, and where the last ends."""
        return np.arange(first, last + 1, dtype=np.int64) * self.dim // self.size

    def _coordinates(self, first: int, last: int) -> int:
        return last * self.dim // self.size - first * self.dim // self.size

    def _runs(self) -> list[tuple[int, int]]:
        number = -(-self.size // _BUCKETS_AT_ONCE)
        ends = [r * self.size // number for r in range(number + 1)]
        return list(itertools.pairwise(ends))

    @cached_property
    def _table(self) -> Words:
        table = np.empty((1, self.dim), np.uint32)
        signs = philox.words(self.seed.child("signs").stream, -(-self.dim // 32))
        for run, (first, last) in enumerate(self._runs()):
            edges = self._edges(first, last)
            order = draws.permutation(self.seed.child("order", run).stream, dim=int(edges[-1] - edges[0]))
            draws.deal(order, edges, first, signs, table[0])
        return table

    def _strips(self) -> Iterator[tuple[int, int]]:
        return iter([(0, self.dim)])  # the codes exist already: nothing is gained by going strip by strip

    def _codes(self, first: int, count: int) -> Words:
        return self._table[:, first : first + count]

    def _codes_twin(self, columns: Tensor) -> Tensor:
        return torch.from_numpy(self._table[:, columns.cpu().numpy()].astype(np.int64)).to(columns.device)
