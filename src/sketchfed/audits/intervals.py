"""Medians with confidence intervals."""

from collections.abc import Sequence
from statistics import median


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """The median, and an interval for the median of the population: two of the sorted values, for any distribution.

    The k-th lowest and the k-th highest of n miss it with probability 2·P(Binomial(n, ½) < k) (Thompson 1936). With fewer than
    six values, no two of them reach 95 %, and the lowest and the highest are used.
    """
    from scipy.stats import binom

    ordered = sorted(values)
    ranks = [k for k in range(1, len(ordered) // 2 + 1) if 2 * binom.cdf(k - 1, len(ordered), 0.5) <= 1 - confidence]
    k = max(ranks, default=1)
    return float(median(ordered)), ordered[k - 1], ordered[-k]
