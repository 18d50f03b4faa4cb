"""Rules that see vectors only by their distances. Their result is a weighted mean of the vectors.

Such a rule does not depend on the choice of coordinates: a rotation of all vectors rotates the result. With the squared
distances D of all pairs, the squared distance from vector i to a mixture Σ cⱼxⱼ with Σ cⱼ = 1 is (Dc)ᵢ − cᵀDc/2. So D is
computed once, and iterations cost n² operations, whatever the size of the vectors.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sketchfed.combining.base import Rows, Weights
from sketchfed.kernels.small import product

_BLOCK = 4_096
"""The number of coordinates that are worked on at a time. It is fixed, because sums are rounded block by block."""

_FAR = 1e3
"""Vectors further from the first centre than this many times the median distance are pulled back to that distance."""

Matrix = npt.NDArray[np.float64]


class Cloud(NamedTuple):
    """The vectors of a round and a first centre among them."""

    rows: Rows
    squared: Matrix
    """The squared distances of all pairs."""
    centre: Weights
    """The coefficients of the first centre."""
    reach: float
    """The weighted median of the distances from it. 0 if most vectors are equal."""


def cloud(rows: Rows, weights: Weights) -> Cloud:
    """The vectors with their distances and a first centre that a minority cannot move far (`central_half`).

    Vectors that are very far from it are pulled back, in their direction. An attacker's vector of 1e30 would otherwise leave no
    digits to the distances of all others.
    """
    squared = squared_distances(rows)
    centre = central_half(squared, weights)
    distances = distances_to(centre, squared)
    reach = weighted_median(distances, weights)
    far = np.flatnonzero(distances > _FAR * reach) if reach else ()
    if not len(far):
        return Cloud(rows, squared, centre, reach)
    nearer, middle = rows.copy(), mixture(rows, centre)
    for index in far:
        nearer[index] = middle + (rows[index] - middle) * (_FAR * reach / distances[index])
    return Cloud(nearer, squared_distances(nearer), centre, reach)


def squared_distances(rows: Rows) -> Matrix:
    """The squared distances `(n, n)` of all pairs of rows, by ‖x‖² + ‖y‖² − 2⟨x, y⟩ in float64."""
    gram = np.zeros((len(rows), len(rows)))
    for start in range(0, rows.shape[1], _BLOCK):
        block = rows[:, start : start + _BLOCK].astype(np.float64)
        gram += product(block, block.T)
    squares = np.diag(gram)
    found = squares[:, None] + squares[None, :] - gram - gram.T
    np.fill_diagonal(found, 0.0)
    return np.maximum(found, 0.0)


def mixture(rows: Rows, coefficients: Weights) -> npt.NDArray[np.float64]:
    """The sum of the rows times their coefficients, `(size,)`, added up in the order of the rows."""
    total = np.zeros(rows.shape[1])
    for row, coefficient in zip(rows, coefficients, strict=True):
        if coefficient:
            total += row * np.float64(coefficient)
    return total


def distances_to(mixed: Weights, squared: Matrix) -> npt.NDArray[np.float64]:
    """The distances `(n,)` from all vectors to the mixture with these coefficients, which add up to 1."""
    towards = np.einsum("ij,j->i", squared, mixed)
    found: Matrix = np.sqrt(np.maximum(towards - np.einsum("i,i->", mixed, towards) / 2, 0.0))
    return found


def central_half(squared: Matrix, weights: Weights) -> Weights:
    """The coefficients of a mean that a minority cannot move far: of the half that is closest to the medoid.

    The medoid is the vector with the smallest sum of distances to all others. If honest clients have weight h, attackers a < h,
    and D is the diameter of the honest vectors, the medoid is within D·(h + a)/(h − a) of an honest vector: otherwise that
    honest vector would have a smaller sum.
    """
    distances = np.sqrt(squared)
    medoid = int(np.argmin(np.einsum("ij,j->i", distances, weights)))
    order = np.argsort(distances[medoid], kind="stable")
    reached = np.cumsum(weights[order])
    chosen = order[: int(np.searchsorted(reached, reached[-1] / 2)) + 1]
    coefficients = np.zeros_like(weights)
    coefficients[chosen] = weights[chosen] / weights[chosen].sum()
    return coefficients


def weighted_median(values: npt.NDArray[np.float64], weights: Weights) -> float:
    """The smallest value up to which at least half of the weight lies."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order[int(np.searchsorted(reached, reached[-1] / 2))]])
