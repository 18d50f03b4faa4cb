"""ROC curves and the areas under them, with DeLong's intervals."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from sketchfed.attacks import placements

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Area:
    """An estimate of an area, or of a difference of areas, and its standard error, infinite where a class has one example."""

    value: float
    error: float

    def reach(self, confidence: float = 0.95) -> float:
        """Half the length of the interval, which is normal."""
        return NormalDist().inv_cdf(0.5 + confidence / 2) * self.error


def curve(positives: npt.ArrayLike, negatives: npt.ArrayLike) -> tuple[Numbers, Numbers]:
    """False and true positive rates of all thresholds on a score, from (0, 0) to (1, 1)."""
    up, down = (np.sort(np.asarray(scores, np.float64)) for scores in (positives, negatives))
    thresholds = np.unique(np.concatenate([up, down]))[::-1]
    rates = [1 - np.searchsorted(scores, thresholds, side="left") / len(scores) for scores in (down, up)]
    return np.concatenate([[0.0], rates[0]]), np.concatenate([[0.0], rates[1]])


def area(positives: npt.ArrayLike, negatives: npt.ArrayLike) -> Area:
    """The probability that a positive scores higher than a negative, ties counting a half (DeLong et al. 1988)."""
    up, down = _placements(positives, negatives)
    return Area(value=float(up.mean()), error=_error(up, down))


def difference(first: tuple[npt.ArrayLike, npt.ArrayLike], second: tuple[npt.ArrayLike, npt.ArrayLike]) -> Area:
    """The area of the first less that of the second: scores (positives, negatives) of the same examples in the same order."""
    (up, down), (other_up, other_down) = _placements(*first), _placements(*second)
    return Area(value=float(up.mean() - other_up.mean()), error=_error(up - other_up, down - other_down))


def _placements(positives: npt.ArrayLike, negatives: npt.ArrayLike) -> tuple[Numbers, Numbers]:
    """For each positive the share of negatives below it, for each negative that of positives above it."""
    up, down = np.asarray(positives, np.float64), np.asarray(negatives, np.float64)
    return placements(up, down), 1 - placements(down, up)


def _error(up: Numbers, down: Numbers) -> float:
    if min(len(up), len(down)) < 2:
        return math.inf
    return math.sqrt(up.var(ddof=1) / len(up) + down.var(ddof=1) / len(down))
