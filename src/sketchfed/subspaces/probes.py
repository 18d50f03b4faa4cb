"""Random directions outside a basis, orthonormal, and never written down."""

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.kernels import small
from sketchfed.kernels.small import Small
from sketchfed.seeds import PublicSeed
from sketchfed.sketches.balanced import Balanced
from sketchfed.subspaces.basis import Basis


class Probes:
    """`count` orthonormal directions Q, dim × count, orthogonal to the first `kept` directions U of a basis.

    Paper: Nicolas et al. 2025, Alg. 2, lines 12 to 14, which draws Gaussian vectors, takes their part outside U and
    orthonormalises them by a QR. Here the random vectors are the rows Ω of a balanced sketch: random signs on a random
    partition of the coordinates. With A = UᵀΩᵀ, Q = (Ωᵀ − U·A)·L⁻ᵀ for the Cholesky factor L·Lᵀ = ΩΩᵀ − AᵀA, count × count,
    where ΩΩᵀ is diagonal. So nothing but A and L is kept, a product with Q costs one with U and dim additions, and A costs
    kept·dim, where rows of a Hadamard transform would take log(dim) times as long. While there is no U, E[QQᵀ] is exactly
    count/dim of the identity, as for Gaussian vectors.
    """

    def __init__(self, *, count: int, seed: PublicSeed, basis: Basis, kept: int | None = None) -> None:
        self.count = count
        self.basis = basis
        self.kept = basis.rank if kept is None else kept
        self.sketch = Balanced(dim=basis.dim, size=count, seed=seed)
        self.loads: Small = self.sketch.loads.numpy().astype(np.float64)
        """The diagonal of ΩΩᵀ."""
        self.overlap: Small = np.empty((0, count))
        """A, kept × count."""
        self.lower: Small | None = None
        """L; None where there is no U, for then L·Lᵀ is diagonal."""
        if self.kept == 0:
            return
        sketched = self.sketch.apply(torch.from_numpy(basis.rows)).numpy().astype(np.float64)
        self.overlap = small.product(basis.rotation[:, : self.kept].T, sketched)
        self.lower = small.cholesky(np.diag(self.loads) - small.product(self.overlap.T, self.overlap))
        if np.isnan(self.lower[0, 0]):
            raise InputError(
                f"{count} probes beside {self.kept} directions do not span as many dimensions of {basis.dim:,}: they "
                "nearly depend on each other. Use a smaller size."
            )

    def coefficients(self, x: Tensor) -> Tensor:
        """Qᵀx: shape `(..., dim)` to `(..., count)`."""
        inside = small.product(self.basis.inner(x), self._rotation)
        found = self.solved(self.sketched(x), inside)
        return torch.from_numpy(found).to(x).reshape(*x.shape[:-1], self.count)

    def combine(self, coefficients: Tensor) -> Tensor:
        """Q·c: shape `(..., count)` to `(..., dim)`."""
        out, inside = self.spread(coefficients.detach().reshape(-1, self.count).to("cpu", torch.float64).numpy())
        self.basis.add(small.product(inside, self._rotation.T), out)
        return out.to(coefficients).reshape(*coefficients.shape[:-1], self.basis.dim)

    def sketched(self, x: Tensor) -> Small:
        """Ωx, float64, for every vector of x."""
        vectors = x.detach().reshape(-1, self.basis.dim).to("cpu", self.basis.dtype)
        found: Small = self.sketch.apply(vectors).numpy().astype(np.float64)
        return found

    def solved(self, sketched: Small, inside: Small) -> Small:
        """Qᵀx = L⁻¹(Ωx − AᵀUᵀx) from Ωx and Uᵀx, a row a vector."""
        if self.lower is None:
            return sketched / np.sqrt(self.loads)
        outside = sketched - small.product(inside, self.overlap)
        return np.ascontiguousarray(small.solve_lower(self.lower, outside.T).T)

    def spread(self, coefficients: Small) -> tuple[Tensor, Small]:
        """Q·c as two parts: Ωᵀz and the coefficients −A·z in U, with z = L⁻ᵀc, a row a vector."""
        if self.lower is None:
            z = coefficients / np.sqrt(self.loads)
        else:
            z = np.ascontiguousarray(small.solve_upper(self.lower, coefficients.T).T)
        out = self.sketch.adjoint(torch.from_numpy(z).to(self.basis.dtype))
        return out, -small.product(z, self.overlap.T)

    @cached_property
    def inverse(self) -> Small:
        """(L·Lᵀ)⁻¹."""
        if self.lower is None:
            return np.diag(1 / self.loads)
        half = small.solve_lower(self.lower, np.eye(self.count))
        return small.product(half.T, half)

    @property
    def _rotation(self) -> Small:
        return np.ascontiguousarray(self.basis.rotation[:, : self.kept])
