"""CountSketch with buckets of equal size."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sketchfed.kernels import draws, philox, scatter
from sketchfed.kernels.jit import on_cpu
from sketchfed.seeds import Words
from sketchfed.sketches.columns import ColumnSketch

_BUCKETS_AT_ONCE = 4096  # 16 KiB of float32: the buckets being filled stay in the first-level cache


@dataclass(frozen=True, kw_only=True)
class Balanced(ColumnSketch):
    """A random permutation deals the coordinates into buckets whose sizes differ by at most one, with random signs.

    Not in Song et al. Zhang & Wang 2021 define CountSketch with independent buckets, but the code in their App. E deals a
    permutation and drops the dim mod size coordinates that are left; here none is dropped. Unbiased, any dim.
    RᵀR multiplies a coordinate's energy by the size of its bucket, so α is exactly dim/size − 1 when size divides dim: no
    family of this size can have less, since E tr((RᵀR)²) ≥ dim²/size. In the sense of Song et al.'s Def. 4.1 it has a = 2,
    like AMS, hence `alpha`.

    Beyond 4,096 buckets the permutation works within runs of as many buckets and the coordinates that belong to them, so that
    the loop stays in cache. α stays the same; but each run is a sketch of 4,096 buckets in its own right, and for vectors that
    live in one run a is 2·size/4096. The codes are kept, two bytes a coordinate, drawn at first use.
    """

    name = "balanced"
    summary = "equal buckets from a permutation"
    source = "Zhang & Wang 2021, App. E"
    cost = "dim look-ups"
    alpha_formula = "2 dim/size"
    orthogonal = True
    wide = False

    @property
    def alpha(self) -> float:
        return 2 * self.dim / self.size

    @property
    def exact_alpha(self) -> float:
        loads = np.diff(self._edges(0, self.size)).astype(np.float64)
        means = (np.square(loads[a:b]).sum() / loads[a:b].sum() for a, b in pairwise(self.runs[:, 1]))
        return float(max(means)) - 1

    def _edges(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Where buckets first to last begin in the permuted order, and where the last ends."""
        return np.arange(first, last + 1, dtype=np.int64) * self.dim // self.size

    @cached_property
    def runs(self) -> npt.NDArray[np.int64]:
        """The first coordinate and the first bucket of each run, and both ends."""
        number = -(-self.size // _BUCKETS_AT_ONCE)
        buckets = np.arange(number + 1, dtype=np.int64) * self.size // number
        return np.stack([buckets * self.dim // self.size, buckets], axis=1)

    @cached_property
    def table(self) -> npt.NDArray[np.uint16]:
        """The code of every coordinate, its bucket counted from the start of its run."""
        table = np.empty(self.dim, np.uint16)
        signs = philox.words(self.seed.child("signs").stream, -(-self.dim // 32))
        for run, (first, last) in enumerate(pairwise(self.runs[:, 1].tolist())):
            edges = self._edges(first, last)
            order = draws.permutation(self.seed.child("order", run).stream, dim=int(edges[-1] - edges[0]))
            draws.deal(order, edges, signs, table)
        return table

    def _apply(self, x: Tensor) -> Tensor:
        if not on_cpu(x):
            return super()._apply(x)
        out = x.new_zeros(x.shape[0], self.size)
        scatter.scatter_runs(x.numpy(), self.table, self.runs, out.numpy())
        return out

    def _adjoint(self, y: Tensor) -> Tensor:
        if not on_cpu(y):
            return super()._adjoint(y)
        out = y.new_empty(y.shape[0], self.dim)
        scatter.gather_runs(y.numpy(), self.table, self.runs, out.numpy())
        return out

    def _codes(self, first: int, count: int) -> Words:
        columns = np.arange(first, first + count)
        starts = self.runs[np.searchsorted(self.runs[:, 0], columns, side="right") - 1, 1]
        codes: Words = (2 * starts + self.table[columns]).astype(np.uint32)
        return codes[None]
