"""A few signed buckets for every coordinate: sparse embeddings."""

import itertools
from dataclasses import dataclass
from functools import cached_property

from sketchfed.errors import InputError
from sketchfed.kernels import draws, hashing
from sketchfed.seeds import Words
from sketchfed.sketches.columns import ColumnSketch


@dataclass(frozen=True, kw_only=True)
class _Embedding(ColumnSketch):
    """What the two forms share: `nonzeros` entries ±1/√nonzeros a column, four unless size is smaller."""

    nonzeros: int | None = None

    alpha_formula = "2 dim/size"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.nonzeros, bool) or not isinstance(self._nonzeros, int) or not 1 <= self._nonzeros <= self.size:
            raise InputError(
                f"nonzeros must be an integer from 1 to size = {self.size:,} (a column has no more places), got "
                f"{self.nonzeros!r}. Leave it out for min(4, size)."
            )

    @property
    def _nonzeros(self) -> int:
        return min(4, self.size) if self.nonzeros is None else self.nonzeros

    @property
    def alpha(self) -> float:
        return 2 * self.dim / self.size


@dataclass(frozen=True, kw_only=True)
class Sparse(_Embedding):
    """Each column has `nonzeros` distinct random rows with random signs.

    Paper: Song et al. 2023, Def. D.6 (Nelson & Nguyen 2013, OSNAP). Unbiased. Lemma D.15 gives α = 2·dim/size; exactly it is
    (dim − 1)/size whatever `nonzeros`, which buys concentration, not variance.
    """

    name = "sparse"
    summary = "a few distinct buckets a coordinate"
    source = "Song et al. 2023, Def. D.6"
    cost = "few · dim draws"

    @property
    def exact_alpha(self) -> float:
        return (self.dim - 1) / self.size

    def _codes(self, first: int, count: int) -> Words:
        codes = self._empty_codes(count)
        draws.distinct_codes(self.seed.stream, first, self.size, codes)
        return codes


@dataclass(frozen=True, kw_only=True)
class SparseBlocks(_Embedding):
    """The rows are cut into `nonzeros` blocks, and each column has one hashed, signed entry in every block.

    Paper: Song et al. 2023, Def. D.7 (Nelson & Nguyen 2013): several CountSketches stacked, so bucket hashes are 2-wise and
    signs 4-wise independent. The paper takes size/nonzeros whole; here blocks may differ by one row. Unbiased. Lemma D.15
    gives α = 2·dim/size; exactly it is (dim − 1)/size for equal blocks.
    """

    name = "sparse_blocks"
    summary = "a bucket in each of a few row blocks"
    source = "Song et al. 2023, Def. D.7"
    cost = "few · dim hashes"

    @property
    def exact_alpha(self) -> float:
        inverse_sizes = sum(1 / (end - start) for start, end in self._blocks)
        return (self.dim - 1) * inverse_sizes / self._nonzeros**2

    @property
    def _blocks(self) -> list[tuple[int, int]]:
        ends = [j * self.size // self._nonzeros for j in range(self._nonzeros + 1)]
        return list(itertools.pairwise(ends))

    @cached_property
    def _hashes(self) -> list[tuple[hashing.Coefficients, hashing.Coefficients]]:
        return [
            (
                hashing.coefficients(self.seed.child("buckets", j), degree=1),
                hashing.coefficients(self.seed.child("signs", j), degree=3),
            )
            for j in range(self._nonzeros)
        ]

    def _codes(self, first: int, count: int) -> Words:
        codes = self._empty_codes(count)
        for (start, end), hashes, row in zip(self._blocks, self._hashes, codes, strict=True):
            hashing.hash_codes(*hashes, first, start, end - start, row)
        return codes
