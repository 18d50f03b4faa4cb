"""One signed bucket for every coordinate: CountSketch."""

from dataclasses import dataclass
from functools import cached_property

from sketchfed.kernels import hashing
from sketchfed.seeds import Words
from sketchfed.sketches.columns import ColumnSketch


@dataclass(frozen=True, kw_only=True)
class Count(ColumnSketch):
    """Coordinate i is added, with sign σ(i), to bucket h(i): h is 2-wise and σ 4-wise independent.

    Paper: Song et al. 2023, Def. D.5 (Charikar, Chen & Farach-Colton 2002). Unbiased, linear in dim, any size. Lemma D.14
    gives α = 3·dim/size; exactly it is (dim − 1)/size. Buckets fill unevenly: `balanced` has less variance.
    """

    name = "count"
    summary = "one hashed bucket a coordinate"
    source = "Song et al. 2023, Def. D.5"
    cost = "dim hashes"
    alpha_formula = "3 dim/size"
    orthogonal = True

    @property
    def alpha(self) -> float:
        return 3 * self.dim / self.size

    @property
    def exact_alpha(self) -> float:
        return (self.dim - 1) / self.size

    @cached_property
    def _hashes(self) -> tuple[hashing.Coefficients, hashing.Coefficients]:
        buckets = hashing.coefficients(self.seed.child("buckets"), degree=1)
        return buckets, hashing.coefficients(self.seed.child("signs"), degree=3)

    def _codes(self, first: int, count: int) -> Words:
        codes = self._empty_codes(count)
        hashing.hash_codes(*self._hashes, first, 0, self.size, codes[0])
        return codes
