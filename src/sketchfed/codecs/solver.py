"""The decoders of Rand-Proj-Spatial: they compute T(S)†·Gᵀy without the eigenvectors of a dim × dim matrix.

The paper uses an eigendecomposition (Jiang et al. 2023, Eq. 5 and Sec. 6: O(dim²·n·size)). But T is affine, so
T(S) = (1 − ρ)I + ρS, and the result is the solution of a linear system. The push-through identity for Gᵀ leaves only n·size
unknowns:

    ((1 − ρ)I + ρGᵀG)⁻¹Gᵀy = Gᵀz,   K z = y,   K = (1 − ρ)I + ρGGᵀ.
"""

import logging
import math
from collections.abc import Callable

import numpy as np
import torch
from scipy import linalg
from torch import Tensor

from sketchfed.codecs.ensemble_base import Ensemble
from sketchfed.errors import InputError

log = logging.getLogger("sketchfed")

DECODERS = ("auto", "dual", "cg")

_MOST_UNKNOWNS = 4096  # the largest matrix that is factorised: 128 MiB
_MOST_STEPS = 2000
_STEP = 5e5  # the fixed cost of a step, measured in additions of a transform
_SINGULAR = 1e-9


def solve(ensemble: Ensemble, y: Tensor, rho: float, *, decoder: str = "auto", tolerance: float = 1e-6) -> Tensor:
    """Compute Gᵀ K⁻¹ y for `y` of shape `(clients, size)`, in the precision of y.

    The decoder "dual" factorises K in float64. "cg" uses conjugate gradients with one G and one Gᵀ per step, down to a relative
    residual of `tolerance`. "auto" takes the cheaper one.
    """
    if decoder not in DECODERS:
        raise InputError(f"decoder must be one of {', '.join(DECODERS)}, got {decoder!r}.")
    rho = rho if ensemble.clients > 1 else 0.0
    if abs(rho) < _SINGULAR:
        return ensemble.adjoint(y)
    if decoder == "auto":
        decoder = cheaper_decoder(ensemble, rho, tolerance)
    if decoder == "dual":
        return ensemble.adjoint(_factorised(ensemble, y, rho))
    if rho > 1 - _SINGULAR:  # K may be singular and y outside its range, but GᵀG x = Gᵀy always has a solution
        return _conjugate_gradients(lambda x: ensemble.adjoint(ensemble.forward(x)), ensemble.adjoint(y), tolerance)

    def apply(z: Tensor) -> Tensor:
        return ensemble.forward(ensemble.adjoint(z)).mul_(rho).add_(z, alpha=1 - rho)

    return ensemble.adjoint(_conjugate_gradients(apply, y, tolerance))


def cheaper_decoder(ensemble: Ensemble, rho: float, tolerance: float) -> str:
    """The decoder with fewer operations. Factorising grows with (n·size)³, and cg grows with dim and as ρ approaches 1."""
    n, unknowns = ensemble.clients, ensemble.clients * ensemble.size
    if unknowns > _MOST_UNKNOWNS or not ensemble.has_gram:
        return "cg"
    transform = ensemble.dim * (2 + math.log2(ensemble.dim))
    stepping = expected_steps(ensemble, rho, tolerance) * (2 * n * transform + _STEP)
    factorising = n * n / 2 * transform + 4 * unknowns**2 + unknowns**3 / 12
    return "dual" if factorising < stepping else "cg"


def expected_steps(ensemble: Ensemble, rho: float, tolerance: float) -> float:
    """½√κ·ln(2/tolerance), with κ from the edges of the law of S: (√(1 − c) ± √((n − 1)c))² for n projections of share c."""
    n, c = ensemble.clients, ensemble.size / ensemble.dim
    low, high = (math.sqrt(1 - c) - math.sqrt((n - 1) * c)) ** 2, (math.sqrt(1 - c) + math.sqrt((n - 1) * c)) ** 2
    singular = n * c > 1 and rho < 1 - _SINGULAR  # more unknowns than coordinates: GGᵀ has zero eigenvalues
    ends = [1 - rho + rho * edge for edge in (0.0 if singular else low, min(high, n))]
    condition = max(ends) / max(min(ends), 1e-12)
    return 1 + math.sqrt(condition) * math.log(2 / tolerance) / 2


def _factorised(ensemble: Ensemble, y: Tensor, rho: float) -> Tensor:
    product = ensemble.gram()
    product *= rho
    product[np.diag_indices(y.numel())] += 1 - rho
    right = y.reshape(-1).to(torch.float64).numpy()
    try:
        factor = linalg.cho_factor(product, lower=True, check_finite=False)
        diagonal = np.diag(factor[0])
        if diagonal.min() < math.sqrt(_SINGULAR) * diagonal.max():
            raise linalg.LinAlgError  # practically singular: ρ = 1 and more rows than dimensions
        solution = linalg.cho_solve(factor, right, check_finite=False)
    except linalg.LinAlgError:
        solution = linalg.pinvh(product, rtol=_SINGULAR) @ right
    return torch.from_numpy(solution).to(y.dtype).reshape(y.shape)


def _conjugate_gradients(apply: Callable[[Tensor], Tensor], right: Tensor, tolerance: float) -> Tensor:
    """Solve a positive semidefinite system whose right-hand side lies in its range."""
    solution, residual = torch.zeros_like(right), right.clone()
    direction, square = residual.clone(), _product(residual, residual)
    whole, enough = square, tolerance**2 * square
    for _ in range(_MOST_STEPS):
        if square <= enough:
            return solution
        image = apply(direction)
        step = square / _product(direction, image)
        solution.add_(direction, alpha=step)
        residual.sub_(image, alpha=step)
        before, square = square, _product(residual, residual)
        direction.mul_(square / before).add_(residual)
    log.warning(
        "the decoder stopped after %d steps at a relative residual of %.1e. The system is nearly singular if the assumed "
        "correlation is close to 'max' and there are as many numbers as coordinates. Assume less correlation, such as 'avg'.",
        _MOST_STEPS,
        math.sqrt(square / whole),
    )
    return solution


def _product(x: Tensor, y: Tensor) -> float:
    return float(torch.dot(x.reshape(-1), y.reshape(-1)))
