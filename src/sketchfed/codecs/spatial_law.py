"""The law of the eigenvalues of S = Σ GᵢᵀGᵢ in closed form, which the decoders of correlated vectors need.

The estimate is x̂ = (β/n)·T(S)†·Σ Gᵢᵀyᵢ with yᵢ = Gᵢxᵢ and T(λ) = 1 + ρ(λ − 1) (Jiang et al. 2023, Eqs. 5 and 11, with β/n for
their β̄). It is unbiased if β = n/∫λ/T dμ, where μ is the expected law of the eigenvalues of S. The paper simulates β; here
it has a closed form. The error is a function of three integrals over μ. For projections, GᵢGᵢᵀ = I:

    n²·MSE = β²(a·Σ‖xᵢ‖² + b·Σ_{i≠l}⟨xᵢ, x_l⟩) − ‖Σxᵢ‖²,   n·a = ∫λ/T² dμ,   n(n − 1)·b = ∫(λ² − λ)/T² dμ,

because tr(GᵢᵀGᵢT(S)⁻²GᵢᵀGᵢ) = tr(GᵢᵀGᵢT(S)⁻²) and all clients have the same law. With ρ = R/(n − 1), the MSE is
(Σ‖xᵢ‖²/n²)(β − 1 − R), and no other function T of S gives a smaller error.
"""

import math
from dataclasses import dataclass

import numpy as np

_NONE = 1e-9  # a smaller ρ is treated as 0
_FULL = 1 - 1e-9


@dataclass(frozen=True)
class Integrals:
    """The integrals ∫λ/T dμ, ∫λ/T² dμ and ∫λ²/T² dμ over the nonzero eigenvalues."""

    first: float
    second: float
    square: float

    def beta(self, clients: int) -> float:
        """β = n/∫λ/T dμ, which makes the estimate unbiased."""
        return clients / self.first

    def relative_error(self, clients: int, correlation: float) -> float:
        """n²·MSE/Σ‖xᵢ‖² for vectors with this R. The ρ that the decoder assumes may differ from it."""
        common = correlation / (clients - 1) if clients > 1 else 0.0  # the true ρ
        apart = (
            (1 - common) * self.second if common < 1 else 0.0
        )  # `second` may be infinite, which does not matter for identical vectors
        return self.beta(clients) ** 2 * (apart + common * self.square) / clients - (1 + correlation)


def free_projections(clients: int, share: float, rho: float) -> Integrals:
    """The law of n free projections of rank share·dim. For large dim, it holds for SRHT, balanced count and orthonormal rows.

    The Stieltjes transform g of μ solves z(z − n)g² + ((n − 2)z + n − n²·share)g − (n − 1) = 0 (free additive convolution of
    Bernoulli laws). Compared with simulation, β is off by 5e-4 at dim 256 and by 1e-4 at dim 1024.
    """
    n, c = clients, share
    if abs(rho) < _NONE or n == 1:  # one projection has only the eigenvalues 1 and 0, and T(1) = 1
        return Integrals(n * c, n * c, n * c + n * (n - 1) * c * c)
    if rho > _FULL:
        if n * c >= 1:
            rank, inverse = 1.0, (n - 1) / (n * (n * c - 1)) if n * c > 1 else math.inf
        else:
            rank, inverse = n * c, n * c * (1 - c) / (1 - n * c)
        return Integrals(rank, inverse, rank)
    s = (1 - rho) / rho
    # With z = −s, M = ∫dμ/(λ + s) = −g(z) solves a·M² − b·M − (n − 1) = 0. M has the sign of λ + s, and s < −n if ρ < 0.
    a, b = s * (s + n), n - n * n * c - (n - 2) * s
    m = _positive_root(a, b, n - 1.0) if s > 0 else -_positive_root(a, -b, n - 1.0)
    slope = -((2 * s + n) * m * m + (n - 2) * m) / (2 * a * m - b)  # dM/ds
    return _from_stieltjes(rho, s, m, slope)


def gaussian(clients: int, share: float, rho: float) -> Integrals:
    """The law of n Gaussian maps with share·dim rows and entries of variance 1/dim: the Marchenko–Pastur law.

    M = ∫dμ/(λ + s) solves sM² + (s + n·share − 1)M − 1 = 0. Only β follows from this law: GᵢᵀGᵢ is not a projection, so
    `second` does not give the error. The eigenvalues can exceed n, so T may be zero for a negative ρ. Such a ρ counts as 0.
    """
    rows = clients * share
    if rho < _NONE:
        return Integrals(rows, rows, rows + rows * rows)
    if rho > _FULL:
        rank = min(1.0, rows)
        return Integrals(rank, math.inf if rows == 1 else rank / abs(1 - rows), rank)
    s = (1 - rho) / rho
    m = _positive_root(s, 1 - rows - s, 1.0)
    slope = -(m * m + m) / (2 * s * m + s + rows - 1)
    return _from_stieltjes(rho, s, m, slope)


def sampling(clients: int, share: float, rho: float) -> Integrals:
    """The law of coordinate sampling, exact for every dim: S is diagonal and S_jj is binomial (Jhunjhunwala et al. 2021)."""
    m = np.arange(1, clients + 1)
    chance = np.exp(
        [math.lgamma(clients + 1) - math.lgamma(k + 1) - math.lgamma(clients - k + 1) for k in m]
        + m * math.log(share)
        + (clients - m) * (math.log1p(-share) if share < 1 else 0.0)
    )
    if share == 1:
        chance = (m == clients).astype(float)
    scale = 1 + rho * (m - 1)
    weights = chance * m / scale
    return Integrals(float(weights.sum()), float((weights / scale).sum()), float((weights * m / scale).sum()))


def _positive_root(a: float, b: float, c: float) -> float:
    """The positive root of a·x² − b·x − c = 0 for a, c > 0, without cancellation."""
    root = math.sqrt(b * b + 4 * a * c)
    return (b + root) / (2 * a) if b > 0 else 2 * c / (root - b)


def _from_stieltjes(rho: float, s: float, m: float, slope: float) -> Integrals:
    """Compute all three integrals from M = ∫dμ/(λ + s) and its derivative, using λ/T = λ/(ρ(λ + s))."""
    return Integrals((1 - s * m) / rho, (m + s * slope) / rho**2, (1 - 2 * s * m - s * s * slope) / rho**2)
