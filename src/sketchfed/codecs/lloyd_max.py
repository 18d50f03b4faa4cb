"""The levels that round standard normal numbers with the least square error (Lloyd 1957; Max 1960)."""

import math
from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_MOST_STEPS = 50  # a few steps are usually enough


@cache
def centroids(bits: int) -> Floats:
    """The 2^bits levels in ascending order. Each level is the mean of the normal numbers that are nearest to it."""
    upper = _upper(bits)
    levels = np.concatenate([-upper[::-1], upper])
    levels.flags.writeable = False
    return levels


@cache
def thresholds(bits: int) -> Floats:
    """The 2^bits − 1 midpoints between neighbouring levels."""
    levels = centroids(bits)
    between: Floats = (levels[1:] + levels[:-1]) / 2
    between.flags.writeable = False
    return between


@cache
def distortion(bits: int) -> float:
    """D = E(z − Q(z))² = 1 − E Q(z)² for standard normal z, because E zQ(z) = E Q(z)² if the levels are centroids."""
    upper = _upper(bits)
    return 1 - 2 * float(_cells(upper)[1] @ upper**2)


def _upper(bits: int) -> Floats:
    """The positive levels, found by Newton's method on c = m(c), where m(c) are the means of the cells around c.

    Lloyd's own iteration c ← m(c) converges to the same point, the only fixed point for a log-concave density, but takes about
    4^bits steps.
    """
    count = 1 << bits - 1
    normal = NormalDist()
    # Panter & Dite 1951: for many levels, the density of the levels is proportional to the cube root of the numbers' density.
    levels = np.array([math.sqrt(3) * normal.inv_cdf(0.5 + (i + 0.5) / (2 * count)) for i in range(count)])
    for _ in range(_MOST_STEPS):
        means, masses, edges, heights = _cells(levels)
        below = heights[:-1] * (means - edges[:-1]) / masses / 2
        above = heights[1:] * (np.where(np.isinf(edges[1:]), means, edges[1:]) - means) / masses / 2
        below[0] = 0  # the lower end of the first cell is always 0
        jacobian = np.eye(count) - np.diag(below + above) - np.diag(below[1:], -1) - np.diag(above[:-1], 1)
        step = np.linalg.solve(jacobian, means - levels)
        levels = levels + step
        if np.abs(step).max() < 1e-9:  # each step squares the error
            break
    return levels


def _cells(levels: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """The means and probabilities of the cells around positive levels, the ends of the cells, and the density at the ends."""
    edges = np.concatenate([[0.0], (levels[1:] + levels[:-1]) / 2, [math.inf]])
    heights = np.exp(-(edges**2) / 2) / math.sqrt(2 * math.pi)
    tails = np.array([math.erfc(edge / math.sqrt(2)) / 2 for edge in edges])
    masses = tails[:-1] - tails[1:]
    return (heights[:-1] - heights[1:]) / masses, masses, edges, heights
