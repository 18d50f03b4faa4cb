"""Statistical bounds whose odds of a false alarm are stated, not tuned."""

import numpy as np
import scipy.stats

from sketchfed.testing.odds import mean_interval

__all__ = ["binomial", "mean_interval", "uniformity"]


def uniformity(counts: object) -> float:
    """The p-value of Pearson's χ² test that all cells are equally likely."""
    return float(scipy.stats.chisquare(np.asarray(counts).reshape(-1)).pvalue)


def binomial(found: int, trials: int, chance: float) -> float:
    """The p-value of the exact test that each of `trials` independent trials is found with this chance."""
    return float(scipy.stats.binomtest(found, trials, chance).pvalue)
