"""The levels that round standard normal numbers with the least square error (Lloyd 1957; Max 1960)."""

import math
from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_MOST_STEPS = 50  # a handful do


@cache
def centroids(bits: int) -> Floats:
    """The 2^bits levels, ascending: each is the mean of the normal numbers that are nearest to it."""
    upper = _upper(bits)
    levels = np.concatenate([-upper[::-1], upper])
    levels.flags.writeable = False
    return levels


@cache
def thresholds(bits: int) -> Floats:
    """The 2^bits − 1 numbers halfway between levels."""
    levels = centroids(bits)
    between: Floats = (levels[1:] + levels[:-1]) / 2
    between.flags.writeable = False
    return between


@cache
def distortion(bits: int) -> float:
    """D = E(z − Q(z))² = 1 − E Q(z)² for standard normal z: E zQ(z) = E Q(z)² where levels are centroids."""
    upper = _upper(bits)
    return 1 - 2 * float(_cells(upper)[1] @ upper**2)


def _upper(bits: int) -> Floats:
    """The positive levels, by Newton's method on c = m(c), m being the means of the cells around c.

    Lloyd's own c ← m(c) ends at the same place, the only fixed point of a log-concave density, after some 4^bits steps.
    """
    count = 1 << bits - 1
    normal = NormalDist()
    # Panter & Dite 1951: for many levels their density goes with the cube root of the numbers' density.
    levels = np.array([math.sqrt(3) * normal.inv_cdf(0.5 + (i + 0.5) / (2 * count)) for i in range(count)])
    for _ in range(_MOST_STEPS):
        means, masses, edges, heights = _cells(levels)
        below = heights[:-1] * (means - edges[:-1]) / masses / 2
        above = heights[1:] * (np.where(np.isinf(edges[1:]), means, edges[1:]) - means) / masses / 2
        below[0] = 0  # the cell's lower end is 0, whatever the levels are
        jacobian = np.eye(count) - np.diag(below + above) - np.diag(below[1:], -1) - np.diag(above[:-1], 1)
        step = np.linalg.solve(jacobian, means - levels)
        levels = levels + step
        if np.abs(step).max() < 1e-9:  # errors are squared from step to step
            break
    return levels


def _cells(levels: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Of the cells around positive levels: means, probabilities; and the ends of cells with the density there."""
    edges = np.concatenate([[0.0], (levels[1:] + levels[:-1]) / 2, [math.inf]])
    heights = np.exp(-(edges**2) / 2) / math.sqrt(2 * math.pi)
    tails = np.array([math.erfc(edge / math.sqrt(2)) / 2 for edge in edges])
    masses = tails[:-1] - tails[1:]
    return (heights[:-1] - heights[1:]) / masses, masses, edges, heights
