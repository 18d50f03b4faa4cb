"""Intervals around means of few measurements."""

import math
from collections.abc import Sequence
from statistics import stdev


def reach(values: Sequence[float], confidence: float) -> float:
    """Half of a two-sided interval around the mean, by Student's t. One value says nothing of others: it is infinite."""
    from scipy.stats import t  # a second to import

    if len(values) < 2:
        return math.inf
    return float(t.ppf((1 + confidence) / 2, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
