"""Medians, and how sure one can be of them."""

from collections.abc import Sequence
from statistics import median


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """The median, and an interval for the one of the population: two of the values in order, whatever the distribution.

    The k-th lowest and k-th highest of n miss with probability 2·P(Binomial(n, ½) < k) (Thompson 1936). With fewer than six
    values no two of them are that sure, and the lowest and the highest are taken.
    """
    from scipy.stats import binom

    ordered = sorted(values)
    ranks = [k for k in range(1, len(ordered) // 2 + 1) if 2 * binom.cdf(k - 1, len(ordered), 0.5) <= 1 - confidence]
    k = max(ranks, default=1)
    return float(median(ordered)), ordered[k - 1], ordered[-k]
