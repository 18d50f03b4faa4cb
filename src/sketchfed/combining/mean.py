"""The mean, which trusts everybody."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sketchfed.combining.base import CombineRule, Rows, Weights
from sketchfed.combining.mixtures import mixture


@dataclass(frozen=True, kw_only=True)
class Mean(CombineRule):
    """The weighted mean. One attacker can move it anywhere.

    This is the default. With it, the algorithm decodes the packets of a round as they are, and no rule is applied.
    """

    name = "mean"
    summary = "the mean of all clients, which one attacker can move anywhere"
    source = "McMahan et al. 2017"
    breakdown = "0"
    cost = "n·s"

    def _combined(self, rows: Rows, weights: Weights) -> npt.NDArray[np.float64]:
        return mixture(rows, weights / weights.sum())

    def check(self, packets: int) -> None:
        """A mean needs no majority."""
