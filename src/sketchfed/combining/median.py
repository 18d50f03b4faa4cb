"""The coordinate-wise median."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sketchfed.combining.base import CombineRule, Rows, Weights
from sketchfed.combining.coordinates import by_coordinate, middle


@dataclass(frozen=True, kw_only=True)
class Median(CombineRule):
    """In each coordinate, the weighted median.

    Paper: Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", Def. 1. With an even
    number of equal weights it is the mean of the two middle values. As long as attackers have less than half of the weight,
    each coordinate lies between two honest values. It is not the mean where a coordinate's values are skewed.
    """

    name = "median"
    summary = "in each coordinate, the median"
    source = "Yin et al. 2018, Def. 1"
    breakdown = "1/2"
    cost = "n·s·log n"

    def _combined(self, rows: Rows, weights: Weights) -> npt.NDArray[np.float64]:
        return by_coordinate(rows, weights, middle)
