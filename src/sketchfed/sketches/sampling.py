"""Uniform sampling: keep `size` of `dim` coordinates, with random signs."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from sketchfed.caches import cached_within
from sketchfed.kernels import draws, philox
from sketchfed.sketches.base import MOST_MOVED, Sketch


@dataclass(frozen=True, kw_only=True)
class Sampling(Sketch):
    """Rescaled random coordinates, R = √(dim/size)·S·D.

    Paper: Song et al. 2023, Def. D.8. Unbiased, but an inner product with a single coordinate is kept with probability
    size/dim or lost: the coordinate-wise parameter of Def. 4.1 is dim, not a constant (Lemma D.16, Remark D.17), and
    `alpha` is the dim²/size that follows. Averaged over all coordinates the second moment is only dim/size, which is
    `exact_alpha` + 1. It suits flat, dense vectors and nothing else.
    """

    name = "sampling"
    summary = "random coordinates, the rest dropped"
    source = "Song et al. 2023, Def. D.8"
    cost = "size look-ups"
    alpha_formula = "dim²/size"
    portable = True
    orthogonal = True
    wide = False
    reads_all = False

    @property
    def alpha(self) -> float:
        return self.dim**2 / self.size

    @property
    def exact_alpha(self) -> float:
        return self.dim / self.size - 1

    @cached_property
    def _rows(self) -> Tensor:
        return torch.from_numpy(draws.subset(self.seed.child("rows").stream, dim=self.dim, size=self.size)).long()

    @cached_property
    def _signs(self) -> Tensor:
        words = philox.words(self.seed.child("signs").stream, -(-self.size // 32))
        return 1 - 2 * torch.from_numpy(philox.bits(words, self.size).astype(np.float32))

    def _weights(self, like: Tensor) -> Tensor:
        return _moved(self, like.device)[1].to(like.dtype) * math.sqrt(self.dim / self.size)

    def _apply(self, x: Tensor) -> Tensor:
        return self._weights(x) * x[:, _moved(self, x.device)[0]]

    def _adjoint(self, y: Tensor) -> Tensor:
        return y.new_zeros(y.shape[0], self.dim).index_copy(1, _moved(self, y.device)[0], self._weights(y) * y)


@cached_within(room=MOST_MOVED)
def _moved(sketch: Sampling, device: torch.device) -> tuple[Tensor, Tensor]:
    """The rows and their signs, drawn on the CPU and moved once."""
    return sketch._rows.to(device), sketch._signs.to(device)
