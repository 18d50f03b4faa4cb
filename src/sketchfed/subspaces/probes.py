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
    partition of the coordinates, so that ΩΩᵀ = D is diagonal. With A = UᵀΩᵀ and B = A·D^−½, kept × count,
    Q = (Ωᵀ − U·A)·D^−½·F for any F with F·Fᵀ = (I − BᵀB)⁻¹. One is F = I + BᵀXB with X = C⁻ᵀ(I + C)⁻¹ for the Cholesky factor
    C·Cᵀ = I − BBᵀ, kept × kept. So a product with Q costs one with U, dim additions and 4·kept·count more, and A costs
    kept·dim, where rows of a Hadamard transform would take log(dim) times as long. While there is no U, E[QQᵀ] is exactly
    count/dim of the identity, as for Gaussian vectors.
    """

    def __init__(self, *, count: int, seed: PublicSeed, basis: Basis, kept: int | None = None) -> None:
        self.count = count
        self.basis = basis
        self.kept = basis.rank if kept is None else kept
        self.sketch = Balanced(dim=basis.dim, size=count, seed=seed)
        sketched = self.sketch.apply(torch.from_numpy(basis.rows)).numpy().astype(np.float64)
        self.overlap: Small = small.product(basis.rotation[:, : self.kept].T, sketched)
        """A, kept × count."""
        self._lengths: Small = np.sqrt(self.sketch.loads.numpy().astype(np.float64))  # D^½
        self._scaled: Small = self.overlap / self._lengths  # B
        self._lower: Small = small.cholesky(np.eye(self.kept) - small.product(self._scaled, self._scaled.T))  # C
        if self.kept and np.isnan(self._lower[0, 0]):
            raise InputError(
                f"{count} probes beside {self.kept} directions do not span as many dimensions of {basis.dim:,}: they "
                "nearly depend on each other. Use a smaller size."
            )
        ones = np.eye(self.kept)
        self._mixed: Small = small.solve_upper(self._lower, small.solve_lower(ones + self._lower, ones))  # X

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
        """Qᵀx = Fᵀ·D^−½·(Ωx − AᵀUᵀx) from Ωx and Uᵀx, a row a vector."""
        return self._turned((sketched - small.product(inside, self.overlap)) / self._lengths, self._mixed)

    def spread(self, coefficients: Small) -> tuple[Tensor, Small]:
        """Q·c as two parts: Ωᵀz and the coefficients −A·z in U, with z = D^−½·F·c, a row a vector."""
        z = self._turned(coefficients, self._mixed.T) / self._lengths
        out = self.sketch.adjoint(torch.from_numpy(z).to(self.basis.dtype))
        return out, -small.product(z, self.overlap.T)

    @cached_property
    def inverse(self) -> Small:
        """(D − AᵀA)⁻¹ = D^−½·(I + BᵀC⁻ᵀC⁻¹B)·D^−½."""
        half = small.solve_lower(self._lower, self._scaled)
        found: Small = (np.eye(self.count) + small.product(half.T, half)) / np.outer(self._lengths, self._lengths)
        return found

    def _turned(self, rows: Small, mixed: Small) -> Small:
        """Each row times I + BᵀXB."""
        return rows + small.product(small.product(small.product(rows, self._scaled.T), mixed), self._scaled)

    @property
    def _rotation(self) -> Small:
        return np.ascontiguousarray(self.basis.rotation[:, : self.kept])
