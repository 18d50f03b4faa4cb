"""The stacked random maps of a round's clients. Each client has a map G from dim numbers to size numbers."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from sketchfed.codecs import spatial_law
from sketchfed.codecs.ensemble_base import LARGEST_MATRIX, Ensemble, Floats, row_products
from sketchfed.codecs.spatial_law import Integrals
from sketchfed.codecs.srht_ensemble import SrhtEnsemble
from sketchfed.errors import InputError
from sketchfed.kernels import draws, scatter
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import Sketch, dense, make_sketch
from sketchfed.sketches.balanced import Balanced


class Sketches(Ensemble):
    """An ensemble whose maps are sketches of one family with scaled rows."""

    family: ClassVar[str]

    @cached_property
    def _sketches(self) -> list[Sketch]:
        return [make_sketch(self.family, dim=self.dim, size=self.size, seed=seed) for seed in self.seeds]

    @abstractmethod
    def _row_scale(self) -> Tensor:
        """The factor for each coefficient of the sketch, in float64."""

    @cached_property
    def _scales(self) -> dict[torch.dtype, Tensor]:
        exact = self._row_scale()
        return {dtype: exact.to(dtype) for dtype in (torch.float32, torch.float64)}

    def forward(self, v: Tensor) -> Tensor:
        out = v.new_empty(self.clients, self.size)
        for row, sketch in zip(out, self._sketches, strict=True):
            torch.mul(sketch.apply(v), self._scales[v.dtype], out=row)
        return out

    def adjoint(self, z: Tensor) -> Tensor:
        total, scaled = z.new_zeros(self.dim), z * self._scales[z.dtype]
        for sketch, row in zip(self._sketches, scaled, strict=True):
            total += sketch.adjoint(row)
        return total

    def gram(self) -> Floats:
        scale = self._scales[torch.float64][:, None]
        return row_products(torch.cat([scale * dense(sketch) for sketch in self._sketches]))


class BalancedCount(Sketches):
    """Equal buckets from a permutation, with random signs and rows of norm 1. It encodes any dim in dim additions."""

    name = family = "balanced"
    summary = "equal buckets from a permutation"

    def _row_scale(self) -> Tensor:
        edges = torch.arange(self.size + 1) * self.dim // self.size
        return edges.diff().to(torch.float64).rsqrt()

    @cached_property
    def _dealt(self) -> list[tuple[Any, Any]]:
        """The codes and runs of each client's sketch. Passing them to the kernels avoids the overhead of the sketch's calls."""
        sketches = [Balanced(dim=self.dim, size=self.size, seed=seed) for seed in self.seeds]
        return [(sketch.table, sketch.runs) for sketch in sketches]

    def forward(self, v: Tensor) -> Tensor:
        out = v.new_zeros(self.clients, self.size)
        numbers, sums = v.numpy()[None], out.numpy()
        for client, (table, runs) in enumerate(self._dealt):
            scatter.scatter_runs(numbers, table, runs, sums[client : client + 1])
        return out.mul_(self._scales[v.dtype])

    def adjoint(self, z: Tensor) -> Tensor:
        total, one = z.new_zeros(self.dim), z.new_empty(1, self.dim)
        scaled = (z * self._scales[z.dtype]).numpy()
        for client, (table, runs) in enumerate(self._dealt):
            scatter.gather_runs(scaled[client : client + 1], table, runs, one.numpy())
            total += one[0]
        return total


class GaussianEnsemble(Sketches):
    """Normal entries of variance 1/dim. Its rows have norm 1 and are orthogonal only on average."""

    name = family = "gaussian"
    summary = "normal entries"
    orthonormal = False

    @staticmethod
    def law(clients: int, share: float, rho: float) -> Integrals:
        return spatial_law.gaussian(clients, share, rho)

    def own(self, z: Tensor) -> Tensor:
        scale = self._scales[z.dtype]
        pairs = zip(self._sketches, z, strict=True)
        return torch.stack([scale * sketch.apply(sketch.adjoint(scale * row)) for sketch, row in pairs])

    def _row_scale(self) -> Tensor:
        return torch.tensor((self.size / self.dim) ** 0.5, dtype=torch.float64).expand(self.size)


class Orthonormal(Ensemble):
    """Uniformly random subspaces, from orthonormalised normal rows. It stores matrices: for comparison at small sizes."""

    name = "orthonormal"
    summary = "uniformly random subspaces, as matrices"

    def __init__(self, dim: int, size: int, seeds: Sequence[PublicSeed], block: int | None = None) -> None:
        super().__init__(dim, size, seeds, block)
        if self.clients * size * dim > LARGEST_MATRIX:
            raise InputError(
                f"ensemble 'orthonormal' would store {self.clients} matrices of {size:,} × {dim:,} numbers, which is too many. "
                "Use 'srht', which has the same error and stores no matrices."
            )

    @cached_property
    def _rows(self) -> Tensor:
        normal = [dense(make_sketch("gaussian", dim=self.dim, size=self.size, seed=seed)) for seed in self.seeds]
        return torch.stack([torch.linalg.qr(rows.T).Q.T for rows in normal])

    def forward(self, v: Tensor) -> Tensor:
        return (self._rows @ v.to(torch.float64)).to(v.dtype)

    def adjoint(self, z: Tensor) -> Tensor:
        return torch.einsum("nk,nkd->d", z.to(torch.float64), self._rows).to(z.dtype)

    def gram(self) -> Floats:
        return row_products(self._rows.reshape(-1, self.dim))


class SamplingEnsemble(Ensemble):
    """The coordinates themselves, sampled at random: Rand-k-Spatial (Jiang et al. 2023, Lemma 4.1)."""

    name = "sampling"
    summary = "coordinates themselves: Rand-k-Spatial"

    @staticmethod
    def law(clients: int, share: float, rho: float) -> Integrals:
        return spatial_law.sampling(clients, share, rho)

    @cached_property
    def _rows(self) -> Tensor:
        drawn = [draws.subset(seed.child("rows").stream, dim=self.dim, size=self.size) for seed in self.seeds]
        return torch.from_numpy(np.stack(drawn)).long()

    def forward(self, v: Tensor) -> Tensor:
        return v[self._rows]

    def adjoint(self, z: Tensor) -> Tensor:
        return z.new_zeros(self.dim).index_add_(0, self._rows.reshape(-1), z.reshape(-1))

    def gram(self) -> Floats:
        rows = self._rows.reshape(-1).numpy()
        same: Floats = np.equal.outer(rows, rows).astype(np.float64)
        return same

    @property
    def has_gram(self) -> bool:
        return True


ENSEMBLES: dict[str, type[Ensemble]] = {
    kind.name: kind for kind in (SrhtEnsemble, BalancedCount, GaussianEnsemble, Orthonormal, SamplingEnsemble)
}
