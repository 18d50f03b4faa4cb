"""Intervals around means of few measurements."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

CONFIDENCE = 0.95


def reach(values: Sequence[float], confidence: float) -> float:
    """Half of a two-sided interval around the mean, by Student's t. One value says nothing of others: it is infinite."""
    from scipy.stats import t  # a second to import

    if len(values) < 2:
        return math.inf
    return float(t.ppf((1 + confidence) / 2, len(values) - 1)) * stdev(values) / math.sqrt(len(values))


@dataclass(frozen=True)
class Points:
    """The mean of a few independent differences of accuracy, in points, with an interval by Student's t."""

    values: tuple[float, ...]

    @property
    def points(self) -> float:
        return mean(self.values)

    @property
    def reach(self) -> float:
        """Half of the interval."""
        return reach(self.values, CONFIDENCE)

    @property
    def sign(self) -> int:
        """1 or −1 if the interval lies above or below zero, else 0."""
        return 0 if abs(self.points) <= self.reach else int(math.copysign(1, self.points))

    def __str__(self) -> str:
        text = f"{self.points:+.1f}" + (f" ± {self.reach:.1f}" if self.reach < math.inf else "")
        return f"**{text}**" if self.sign else text
