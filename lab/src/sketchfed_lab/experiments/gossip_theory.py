"""How fast nodes agree in theory: the factor by which their disagreement shrinks in a round, exact in mean square.

The disagreement is split into the modes of the weights W: y = vᵀX for an eigenvector v with eigenvalue λ < 1. All nodes of a
round use the same sketch, so P = (size/dim)·RᵀR acts on every mode alike, and modes do not mix. P is a projection, drawn anew
in each round, with E[P] = p·I and p = size/dim. So E⟨a, P·b⟩ = E⟨P·a, P·b⟩ = p·⟨a, b⟩ for vectors of earlier rounds.
"""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def dense_rate(eigenvalue: float) -> float:
    """Whole models: y ← λ·y."""
    return float(abs(eigenvalue))


def models_rate(eigenvalue: float, share: float, step: float) -> float:
    """Sketches of models: y ← y − γ(1 − λ)·P·y, so E‖y‖² shrinks by 1 − p(1 − (1 − γ(1 − λ))²)."""
    return float(np.sqrt(1 - share * (1 - (1 - step * (1 - eigenvalue)) ** 2)))


def differences_rate(eigenvalue: float, share: float, step: float) -> float:
    """Sketched differences (CHOCO): h ← h + P·e, then y ← y − γ(1 − λ)·h, where h is the mode of what was said and e = y − h.

    With a = −γ(1 − λ), a round is h ← h + P·e and e ← e + a·h + (a − 1)·P·e. The three second moments E‖h‖², E⟨h, e⟩ and
    E‖e‖² of a round are linear in those of the round before. The factor is the root of the spectral radius of that matrix.
    """
    return float(np.sqrt(np.abs(np.linalg.eigvals(moments(eigenvalue, share, step))).max()))


def moments(eigenvalue: float, share: float, step: float) -> Array:
    """The matrix that takes E‖h‖², E⟨h, e⟩ and E‖e‖² of a mode from one round to the next."""
    a, p = -step * (1 - eigenvalue), share
    return np.array(
        [
            [1, 2 * p, p],
            [a, 1 + (2 * a - 1) * p, a * p],
            [a * a, 2 * a * (1 + (a - 1) * p), 1 - p * (1 - a * a)],
        ]
    )


def differences_between(eigenvalue: float, share: float, step: float, first: int, last: int) -> float:
    """The mean factor of a round between two rounds, of nodes that had said nothing before round 1.

    Moments may turn around each other while they shrink. So this nears `differences_rate` only after many times dim/size
    rounds.
    """
    matrix, start = moments(eigenvalue, share, step), np.array([0.0, 0.0, 1.0])
    squares = [np.array([1, 2, 1]) @ np.linalg.matrix_power(matrix, at) @ start for at in (first, last)]
    return float((squares[1] / squares[0]) ** (0.5 / (last - first)))


def largest_step(lowest: float, share: float) -> float:
    """The γ at which differences stop to agree: 2p/((2 − p)(1 − λ)), for the lowest eigenvalue λ of the weights."""
    return 2 * share / ((2 - share) * (1 - lowest))


def paper_step(eigenvalues: Array, share: float) -> float:
    """γ of the proof of Koloskova et al. 2019, Theorem 2, for a compression that keeps the share ω of a vector on average.

    γ = δω/(16δ + δ² + 4β² + 2δβ² − 8δω), with the spectral gap δ and β = ‖I − W‖. Then 1 − γδ/2 ≤ 1 − δ²ω/82.
    """
    gap, beta = 1 - float(np.sort(np.abs(eigenvalues))[-2]), float(np.abs(1 - eigenvalues).max())
    return gap * share / (16 * gap + gap**2 + 4 * beta**2 + 2 * gap * beta**2 - 8 * gap * share)


def paper_bound(gap: float, share: float) -> float:
    """Their bound on the factor of the disagreement with that γ: √(1 − δ²ω/82)."""
    return float(np.sqrt(1 - gap**2 * share / 82))


def best_step(eigenvalues: Array, share: float) -> float:
    """The γ up to 1 with which differences shrink fastest: among 201 a factor of 1.035 apart."""
    disagreeing = np.unique(np.sort(eigenvalues)[:-1].round(9))
    extremes = disagreeing if len(disagreeing) < 12 else np.concatenate([disagreeing[:6], disagreeing[-6:]])
    steps = np.geomspace(1e-3, 1.0, 201)
    return float(min(steps, key=lambda step: max(differences_rate(each, share, step) for each in extremes)))
