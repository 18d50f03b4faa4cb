"""Statistical bounds whose odds of a false alarm are stated, not tuned."""

import math

import numpy as np
import scipy.stats


def mean_interval(samples: object, *, false_alarm: float) -> tuple[float, float]:
    """An interval that misses the true mean with probability `false_alarm` (Student's t, two-sided)."""
    values = np.asarray(samples, dtype=np.float64)
    reach = scipy.stats.t.isf(false_alarm / 2, values.size - 1) * values.std(ddof=1) / math.sqrt(values.size)
    slack = 1e-9 * abs(values.mean())  # families whose statistic is constant have rounding errors only
    return float(values.mean() - reach - slack), float(values.mean() + reach + slack)


def trials_for(pilot: object, *, found: float, false_alarm: float, missed: float = 0.01) -> int:
    """How many trials find a difference of `found` from the true mean with probability 1 − `missed`, judged by a few."""
    values = np.asarray(pilot, dtype=np.float64)
    reach = scipy.stats.t.isf(false_alarm / 2, values.size - 1) + scipy.stats.t.isf(missed, values.size - 1)
    return max(values.size, math.ceil(float(reach * values.std(ddof=1) / found) ** 2))


def staged_interval(samples: object, *, pilot: int, false_alarm: float) -> tuple[float, float]:
    """An interval like `mean_interval`, if the deviation of the first `pilot` samples decided how many there are.

    Only these first ones tell the deviation (Stein 1945), so that the odds hold whatever their number was chosen to be.
    """
    values = np.asarray(samples, dtype=np.float64)
    reach = scipy.stats.t.isf(false_alarm / 2, pilot - 1) * values[:pilot].std(ddof=1) / math.sqrt(values.size)
    return float(values.mean() - reach), float(values.mean() + reach)
