"""Random signs in every entry: the "tug of war" sketch."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from sketchfed.kernels import dense, field, philox
from sketchfed.seeds import Words
from sketchfed.sketches.rows import RowSketch


@dataclass(frozen=True, kw_only=True)
class Ams(RowSketch):
    """R of signs ±1/√size, independent between rows and 5-wise independent within one.

    Paper: Song et al. 2023, Def. D.4 (Alon, Matias & Szegedy 1999), which asks for 4-wise independence; the BCH signs used
    here have it exactly. Unbiased. Every application makes dim·size signs (about 5 billion a second), so it suits small
    problems. Lemma D.12 gives α = 2·dim/size; exactly it is (dim − 1)/size.
    """

    name = "ams"
    summary = "4-wise independent signs everywhere"
    source = "Song et al. 2023, Def. D.4"
    cost = "dim · size signs"
    alpha_formula = "2 dim/size"

    @property
    def alpha(self) -> float:
        return 2 * self.dim / self.size

    @property
    def exact_alpha(self) -> float:
        return (self.dim - 1) / self.size

    @cached_property
    def _coefficients(self) -> Words:
        return philox.words(self.seed.stream, 3 * self.size)[: 3 * self.size].reshape(self.size, 3)

    def _apply_kernel(self, x: Tensor, scale: float, out: Tensor) -> None:
        dense.apply_signs(self._coefficients, x.numpy(), scale, out.numpy())

    def _adjoint_kernel(self, y: Tensor, scale: float, out: Tensor) -> None:
        dense.adjoint_signs(self._coefficients, y.numpy(), scale, out.numpy())

    def _rows_twin(self, rows: Tensor) -> Tensor:
        coefficients = torch.from_numpy(self._coefficients.astype(np.int64)).to(rows.device)[rows]
        bits = field.sign_bits_twin(coefficients, torch.arange(self.dim, device=rows.device))
        return 1 - 2 * bits.to(torch.float32)
