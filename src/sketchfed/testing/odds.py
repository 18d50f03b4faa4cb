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
