"""Scores that tell members from others, and the intervals of shares."""

import math
from itertools import product

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.metrics import roc_auc_score, roc_curve

from sketchfed.attacks.scores import (
    auc,
    auc_interval,
    share_interval,
    true_positive_rate,
)
from sketchfed.errors import InputError

FALSE_ALARM = 1e-6


every_score_of_two_groups = pytest.mark.parametrize("score", [auc, auc_interval, true_positive_rate])


def groups(members: int, others: int, *, shift: float = 1.0, digits: int = 9, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Normal scores, higher by `shift` for members; with few digits many are equal."""
    generator = np.random.default_rng(seed)
    return tuple((generator.standard_normal(n) + by).round(digits) for n, by in ((members, shift), (others, 0.0)))


# Members and others.


@pytest.mark.parametrize("digits", [9, 1, 0])
@pytest.mark.parametrize(("members", "others"), [(1, 1), (1, 40), (70, 30), (2_000, 3_000)])
def test_the_area_is_that_of_sklearn_with_ties_and_without(members, others, digits):
    up, down = groups(members, others, digits=digits)
    truth = np.repeat([1, 0], [members, others])
    assert auc(up, down) == pytest.approx(roc_auc_score(truth, np.concatenate([up, down])), abs=1e-12)
    assert auc(up, down) + auc(down, up) == pytest.approx(1)


def test_areas_take_tensors_lists_and_infinite_scores():
    assert auc(torch.tensor([1.0, 2.0], dtype=torch.bfloat16, requires_grad=True), [0, 1]) == 0.875
    assert auc([math.inf, math.inf], [-math.inf, math.inf]) == 0.75


def test_large_groups_take_no_table_of_all_pairs():
    """A million of each would be a table of 8 TB. The interval misses with 1e-6, being normal at that size."""
    up, down = groups(1_000_000, 1_000_000)
    low, high = auc_interval(up, down, confidence=1 - FALSE_ALARM)
    assert high - low < 0.005
    assert low < scipy.stats.norm.cdf(1 / math.sqrt(2)) < high


@pytest.mark.parametrize("digits", [9, 0])
def test_the_interval_is_de_longs_variance_carried_to_the_logit(digits):
    """DeLong et al. 1988, Eqs. 3 and 4, pair by pair."""
    up, down = groups(23, 31, digits=digits)
    wins = [[1.0 if x > y else 0.5 if x == y else 0.0 for y in down] for x in up]
    area, above, below = np.mean(wins), np.mean(wins, axis=1), np.mean(wins, axis=0)
    variance = sum((above - area) ** 2) / 22 / 23 + sum((below - area) ** 2) / 30 / 31
    centre, reach = math.log(area / (1 - area)), 1.6448536 * math.sqrt(variance) / (area * (1 - area))
    expected = [1 / (1 + math.exp(-centre + side * reach)) for side in (1, -1)]
    assert auc_interval(up, down, confidence=0.9) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("members", "others", "shift", "digits"), [(50, 50, 0.0, 9), (50, 50, 1.0, 9), (30, 200, 0.5, 0), (100, 40, 2.0, 1)]
)
def test_intervals_cover_the_area_about_as_often_as_they_say(members, others, shift, digits):
    """They are asymptotic: at these sizes the coverage may be off by 0.02 from 0.95, and if so the chance to fail is 1e-6.

    A variance that is wrong by a factor of two makes it 0.83 or 0.994, which this finds with probability 0.999.
    """
    area = rounded_area(shift, 10.0**-digits) if digits < 9 else scipy.stats.norm.cdf(shift / math.sqrt(2))
    trials, covered = 3_000, 0
    for trial in range(trials):
        low, high = auc_interval(*groups(members, others, shift=shift, digits=digits, seed=trial))
        covered += low <= area <= high
    assert scipy.stats.binom.cdf(covered, trials, 0.93) > FALSE_ALARM
    assert scipy.stats.binom.sf(covered - 1, trials, 0.97) > FALSE_ALARM


def rounded_area(shift: float, width: float) -> float:
    """The true area for normal scores that are rounded to multiples of this width."""
    normal, cells = scipy.stats.norm.cdf, width * np.arange(-12 / width, 12 / width + 1)
    member, other = (normal(cells + width / 2, by) - normal(cells - width / 2, by) for by in (shift, 0.0))
    return float((member * (np.cumsum(other) - other / 2)).sum())


@pytest.mark.parametrize(("members", "others"), [(1, 1), (5, 5), (3, 40), (40, 3)])
def test_groups_that_are_apart_bound_the_area_by_disjoint_pairs(members, others):
    least = min(members, others)
    up, down = 1 + np.arange(members), -np.arange(others)
    assert auc_interval(up, down) == pytest.approx((0.025 ** (1 / least), 1))
    assert auc_interval(down, up) == pytest.approx((0, 1 - 0.025 ** (1 / least)))


Odds = tuple[float, float, float]


def area_of(up: Odds, down: Odds) -> float:
    """The true area, for scores of 0, 1 and 2 with these odds."""
    return sum(p * q * (0.5 if i == j else float(i > j)) for i, p in enumerate(up) for j, q in enumerate(down))


def chance_apart(up: Odds, down: Odds, members: int, others: int) -> float:
    """The probability that all members are above all others: over what the highest of the others is."""
    highest = [sum(down[: i + 1]) ** others - sum(down[:i]) ** others for i in range(3)]
    return sum(sum(up[i + 1 :]) ** members * highest[i] for i in range(3))


@pytest.mark.parametrize(("members", "others"), [(4, 4), (2, 5)])
def test_no_area_below_the_bound_sets_groups_apart_more_often_than_allowed(members, others):
    """Exactly, without draws. At the bound members that are outliers attain what is allowed, so there is no better one."""
    low, _ = auc_interval(np.ones(members), np.zeros(others), confidence=0.8)
    odds = [(a, b, 1 - a - b) for a in np.linspace(0, 1, 11) for b in np.linspace(0, 1 - a, 11)]
    below = [pair for pair in product(odds, repeat=2) if area_of(*pair) < low]
    assert len(below) > 1_000
    assert all(chance_apart(*pair, members, others) <= 0.1 for pair in below)
    outliers = (1 - low, 0.0, low), (0.0, 1.0, 0.0)
    assert area_of(*outliers) == pytest.approx(low)
    assert chance_apart(*outliers, members, others) == pytest.approx(0.1)


def test_scores_that_are_all_equal_leave_a_wide_interval():
    """DeLong's variance is 0, as if the area were known."""
    reach = math.sqrt(math.log(2 / 0.05) / (2 * 50))
    assert auc_interval(np.ones(50), np.ones(80)) == pytest.approx((0.5 - reach, 0.5 + reach))


def test_a_single_score_says_next_to_nothing():
    assert auc_interval([0.5], np.linspace(0, 1, 100)) == (0, 1)
    assert auc_interval(np.linspace(0, 1, 100), [0.5]) == (0, 1)
    assert auc_interval([2.0], np.linspace(0, 1, 100)) == pytest.approx((0.025, 1))


@pytest.mark.parametrize("digits", [9, 1, 0])
@pytest.mark.parametrize("rate", [0.0, 0.001, 0.01, 0.1, 0.29, 1.0])
@pytest.mark.parametrize(("members", "others"), [(1, 1), (70, 30), (300, 100), (300, 2_000)])
def test_the_true_positive_rate_is_the_best_on_the_curve(members, others, rate, digits):
    up, down = groups(members, others, digits=digits)
    truth = np.repeat([1, 0], [members, others])
    false, true, _ = roc_curve(truth, np.concatenate([up, down]), drop_intermediate=False)
    assert true_positive_rate(up, down, rate) == pytest.approx(true[false <= rate + 1e-12].max())


def test_a_rate_that_is_a_count_is_not_rounded_below_it():
    """0.29 · 100 is 28.999999999999996: 29 of the others may be above, and the member beside the thirtieth is."""
    assert true_positive_rate([70.5], np.arange(100), false_positive_rate=0.29) == 1
    assert true_positive_rate([69.5], np.arange(100), false_positive_rate=0.29) == 0
    assert true_positive_rate([70.0], np.arange(100), false_positive_rate=0.29) == 0


def test_an_attack_that_is_sure_of_a_few_is_seen_where_the_area_hides_it():
    up, down = groups(1_000, 1_000, shift=0.0)
    up[:50] = 100
    assert auc(up, down) < 0.56
    assert true_positive_rate(up, down, 0.001) > 0.05 - 1e-9


@every_score_of_two_groups
def test_scores_that_cannot_be_ranked_are_refused(score):
    with pytest.raises(InputError, match=r"the positive scores are one number for each example.*with 1 NaN"):
        score([0.1, math.nan], [0.2])
    with pytest.raises(InputError, match=r"the negative scores.*got shape \(0,\)"):
        score([0.1], [])
    with pytest.raises(InputError, match=r"got shape \(2, 1\)"):
        score(torch.zeros(2, 1), [0.2])


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan])
def test_a_false_positive_rate_is_a_share(rate):
    with pytest.raises(InputError, match=r"a false positive rate lies from 0 to 1"):
        true_positive_rate([0.1], [0.2], rate)


# Shares.


@pytest.mark.parametrize("confidence", [0.5, 0.95, 1 - 1e-9])
@pytest.mark.parametrize(("successes", "trials"), [(0, 1), (1, 1), (0, 20), (7, 20), (20, 20), (1, 10_000), (9_999, 10_000)])
def test_the_interval_of_a_share_is_that_of_scipy(successes, trials, confidence):
    expected = scipy.stats.binomtest(successes, trials).proportion_ci(confidence, method="exact")
    assert share_interval(successes, trials, confidence) == pytest.approx((expected.low, expected.high), abs=1e-9)


@pytest.mark.parametrize("trials", [1, 2, 10, 50])
def test_the_interval_of_a_share_misses_no_more_often_than_it_says_on_either_side(trials):
    """Exactly, over all outcomes."""
    counts, intervals = np.arange(trials + 1), np.array([share_interval(k, trials) for k in range(trials + 1)])
    for share in np.linspace(0, 1, 201):
        odds = scipy.stats.binom.pmf(counts, trials, share)
        assert odds[intervals[:, 0] > share].sum() <= 0.025
        assert odds[intervals[:, 1] < share].sum() <= 0.025


def test_shares_in_place_of_counts_are_refused():
    for successes, trials in ((0.7, 10), (3, 2), (-1, 2), (0, 0), (math.nan, 3), (1, 2.5)):
        with pytest.raises(InputError, match=rf"got {successes} of {trials}. Give counts, not shares"):
            share_interval(successes, trials)


@pytest.mark.parametrize("confidence", [0, 1, 95, math.nan])
def test_a_confidence_lies_between_none_and_all(confidence):
    for interval in (lambda: share_interval(1, 2, confidence), lambda: auc_interval([1, 2], [0, 3], confidence)):
        with pytest.raises(InputError, match=rf"between 0 and 1, got {confidence}. Give 0.95"):
            interval()
