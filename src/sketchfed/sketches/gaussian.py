"""Independent normal entries: the textbook random projection."""

from dataclasses import dataclass

from torch import Tensor

from sketchfed.kernels import dense, normals
from sketchfed.sketches.rows import RowSketch


@dataclass(frozen=True, kw_only=True)
class Gaussian(RowSketch):
    """R with independent normal entries, drawn a strip at a time and never stored.

    Paper: Song et al. 2023, Def. D.2. Unbiased. Every application draws dim·size normals (about 0.4 billion a second), so
    it is the reference to compare others with, and for small problems. Lemma D.13 gives α = 3·dim/size; exactly,
    E[(RᵀR)²] = (1 + (dim + 1)/size)·I.
    """

    name = "gaussian"
    summary = "independent normal entries"
    source = "Song et al. 2023, Def. D.2"
    cost = "dim · size normals"
    alpha_formula = "3 dim/size"

    @property
    def alpha(self) -> float:
        return 3 * self.dim / self.size

    @property
    def exact_alpha(self) -> float:
        return (self.dim + 1) / self.size

    def _apply_kernel(self, x: Tensor, scale: float, out: Tensor) -> None:
        dense.apply_normals(self.seed.stream, x.numpy(), scale, out.numpy())

    def _adjoint_kernel(self, y: Tensor, scale: float, out: Tensor) -> None:
        dense.adjoint_normals(self.seed.stream, y.numpy(), scale, out.numpy())

    def _rows_twin(self, rows: Tensor) -> Tensor:
        return normals.normals_twin(self.seed.stream, rows=rows, columns=self.dim)
