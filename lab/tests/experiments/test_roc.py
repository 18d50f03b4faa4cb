"""Areas under ROC curves: by their definition, and with intervals that cover."""

import numpy as np
import pytest
import scipy.stats

from sketchfed_lab.experiments.roc import area, curve, difference


def scores(seed: int, *, gap: float = 1.0, positives: int = 12, negatives: int = 30):
    draw = np.random.default_rng(seed)
    return np.round(draw.normal(gap, 1, positives), 1), np.round(draw.normal(0, 1, negatives), 1)


def test_the_area_is_the_share_of_pairs_in_the_right_order():
    positives, negatives = scores(1)
    pairs = np.subtract.outer(positives, negatives)
    assert (pairs == 0).any()
    assert area(positives, negatives).value == pytest.approx(((pairs > 0) + 0.5 * (pairs == 0)).mean())


def test_the_area_lies_under_the_curve():
    positives, negatives = scores(2)
    wrong, right = curve(positives, negatives)
    assert (wrong[0], right[0], wrong[-1], right[-1]) == (0, 0, 1, 1)
    assert (np.diff(wrong) >= 0).all()
    assert area(positives, negatives).value == pytest.approx(np.trapezoid(right, wrong))


def test_perfect_and_reversed_scores_have_areas_one_and_zero():
    assert area([2, 3], [0, 1]).value == 1
    assert area([0, 1], [2, 3]).value == 0
    assert area([2, 3], [0, 1]).error == 0


def test_a_difference_of_the_same_scores_is_nothing_and_is_paired_otherwise():
    """Scores that move together leave a difference more certain than two areas by themselves."""
    first = scores(3, positives=100, negatives=300)
    assert difference(first, first).value == difference(first, first).error == 0
    draw = np.random.default_rng(4)
    second = tuple(part + draw.normal(0, 0.2, len(part)) for part in first)
    gap = difference(first, second)
    assert gap.value == pytest.approx(area(*first).value - area(*second).value)
    assert gap.error < 0.5 * area(*first).error


def test_intervals_cover_the_true_area_as_often_as_they_say():
    """Of 1,000 intervals, 95 % ± 2 % by the normal approximation and the binomial's tail; a false alarm has odds below 1e-3."""
    truth = scipy.stats.norm.cdf(1 / np.sqrt(2))
    draw = np.random.default_rng(5)
    found = [area(draw.normal(1, 1, 100), draw.normal(0, 1, 300)) for _ in range(1000)]
    covered = sum(abs(each.value - truth) <= each.reach() for each in found)
    low, high = scipy.stats.binom.ppf([5e-4, 1 - 5e-4], 1000, 0.95)
    assert low - 10 <= covered <= high  # intervals of this size fall short of 95 % by a few tenths of a percent
