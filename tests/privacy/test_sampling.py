"""Every p-value below is compared with 1e-6: that is the odds of a false alarm, were the seeds not fixed."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import scipy.stats
from hypothesis import example, given, settings
from hypothesis import strategies as st

from odds import mean_interval
from sketchfed.errors import InputError
from sketchfed.kernels import discrete_gaussian as kernels
from sketchfed.privacy import sampling
from sketchfed.privacy.sampling import discrete_gaussian, secret_normals, variance_above
from sketchfed.seeds import PublicSeed, SecretSeed, SecretStream

SECRET = SecretSeed.insecure(5)
FALSE_ALARM = 1e-6
MANY = 1_000_000


def probabilities(reach: int, variance: Fraction) -> np.ndarray:
    """P(−reach), …, P(reach). What lies beyond 12 deviations is far below the errors of float64."""
    x = np.arange(-reach, reach + 1, dtype=np.float64)
    weights = np.exp(-(x**2) / (2 * float(variance)))
    return weights / weights.sum()


def goodness(samples: np.ndarray, variance: Fraction) -> float:
    """The p-value of χ² over single integers, those with fewer than 10 expected counted together on each side."""
    reach = math.ceil(12 * math.sqrt(variance)) + 1
    expected = len(samples) * probabilities(reach, variance)
    counts = np.bincount(samples.clip(-reach, reach) + reach, minlength=2 * reach + 1)
    inner = np.flatnonzero(expected >= 10)
    first, last = inner[0], inner[-1] + 1
    if first == last - 1:  # nothing but zeros is expected
        first = last
    cells = [(counts[:first].sum(), expected[:first].sum()), *zip(counts[first:last], expected[first:last], strict=True)]
    cells.append((counts[last:].sum(), expected[last:].sum()))
    seen, wanted = np.array([cell for cell in cells if cell[1] >= 1]).T
    return float(scipy.stats.chisquare(seen, wanted * seen.sum() / wanted.sum()).pvalue)


def quantile_goodness(samples: np.ndarray, deviation: float) -> float:
    """χ² over 200 cells between integers. For deviations above 1,000 the normal law is right to less than 1e-6 of a cell."""
    edges = np.round(deviation * scipy.stats.norm.ppf(np.arange(1, 200) / 200)) + 0.5
    expected = np.diff(np.concatenate([[0], scipy.stats.norm.cdf(edges / deviation), [1]])) * len(samples)
    counts = np.bincount(np.searchsorted(edges, samples), minlength=200)
    return float(scipy.stats.chisquare(counts, expected).pvalue)


VARIANCES = [
    Fraction(1, 4),
    Fraction(1, 2),
    1,
    2,
    Fraction(17, 3),
    variance_above(4.5),
    variance_above(math.pi),
    variance_above(100.3),
]


@pytest.mark.parametrize("variance", VARIANCES, ids=lambda variance: f"{float(variance):.4g}")
def test_every_integer_comes_as_often_as_it_should(variance):
    """χ² against the exact probabilities."""
    assert goodness(discrete_gaussian(SECRET.child("law"), MANY, variance=variance), variance) > FALSE_ALARM


@pytest.mark.parametrize("deviation", [3e3, 1e6, 1e9])
def test_wide_noise_has_the_right_shape_and_even_low_bits(deviation):
    samples = discrete_gaussian(SECRET.child("wide"), MANY, variance=variance_above(deviation))
    assert quantile_goodness(samples, deviation) > FALSE_ALARM
    assert scipy.stats.chisquare(np.bincount(samples & 255, minlength=256)).pvalue > FALSE_ALARM


@pytest.mark.parametrize("variance", [Fraction(1, 2), Fraction(81, 4)])
def test_tails_are_as_thick_as_they_should_be(variance):
    """Exact binomial tests of how many of four million lie beyond 3, 4 and 5 deviations."""
    samples = np.abs(discrete_gaussian(SECRET.child("tails"), 4 * MANY, variance=variance))
    law = probabilities(200, variance)
    for beyond in (3, 4, 5):
        edge = math.floor(beyond * math.sqrt(variance))
        probability = 2 * law[200 + edge + 1 :].sum()
        assert scipy.stats.binomtest(int((samples > edge).sum()), len(samples), probability).pvalue > FALSE_ALARM


def test_consecutive_samples_are_independent():
    """χ² of the table of neighbours by value, at lags 1 to 3."""
    samples = discrete_gaussian(SECRET.child("pairs"), MANY, variance=3).clip(-4, 4) + 4
    for lag in (1, 2, 3):
        table = np.bincount(9 * samples[:-lag:4] + samples[lag::4][: len(samples[:-lag:4])], minlength=81).reshape(9, 9)
        assert scipy.stats.chi2_contingency(table).pvalue > FALSE_ALARM


def test_a_sampler_that_is_a_little_wrong_is_caught():
    """Two per cent of variance, rounded normals, a lack of zeros, one integer step beyond 3 deviations."""
    generator = np.random.default_rng(5)
    right = discrete_gaussian(SECRET.child("law"), MANY, variance=2)
    assert goodness(right, Fraction(2)) > FALSE_ALARM
    wrong = {
        "variance": discrete_gaussian(SECRET.child("law"), MANY, variance=Fraction(204, 100)),
        "rounded normals": np.round(generator.normal(size=MANY) * math.sqrt(2)).astype(np.int64),
        "zero is redrawn once": np.where((right == 0) & (generator.random(MANY) < 0.02), right[::-1], right),
        "thick tail": right + np.sign(right) * (np.abs(right) > 4),
    }
    for name, samples in wrong.items():
        assert goodness(samples, Fraction(2)) < FALSE_ALARM, name


def test_throwing_away_what_a_short_buffer_cuts_off_would_be_caught():
    """Samples that need many words are cut off more often: with 20 words a buffer the bias is plain to see."""
    words = SecretStream(SECRET.child("short")).words(20 * 100_000).reshape(-1, 20)
    out, kept = np.empty(20, np.int64), []
    for buffer in words:
        done, _ = kernels.fill(1, 2, 1, buffer, out)  # t = 2, u = 2, v = 1: variance 4
        kept.append(out[:done].copy())
    assert goodness(np.concatenate(kept), Fraction(4)) < FALSE_ALARM
    assert goodness(discrete_gaussian(SECRET.child("short"), 500_000, variance=4), Fraction(4)) > FALSE_ALARM


@pytest.mark.parametrize("most", [65, 97, 1000])
def test_the_length_of_buffers_changes_nothing(monkeypatch, most):
    variance = variance_above(7.7)
    expected = discrete_gaussian(SECRET, 5_000, variance=variance)
    monkeypatch.setattr(sampling, "_MOST_WORDS", most)
    assert (discrete_gaussian(SECRET, 5_000, variance=variance) == expected).all()
    assert (discrete_gaussian(SECRET, 100, variance=variance) == expected[:100]).all()


class Oracle:
    """The algorithms with Python's own integers and fractions, over the same words."""

    def __init__(self, words: np.ndarray) -> None:
        self.words = iter(words.tolist())

    def below(self, probability: Fraction) -> bool:
        low, width = Fraction(0), Fraction(1)
        while True:
            width /= 2**32
            low += next(self.words) * width
            if low >= probability:
                return False
            if low + width <= probability:
                return True

    def heads(self, gamma: Fraction) -> bool:
        """Alg. 1, whose comparison with γ/k is one with 1/k and one with γ."""
        while gamma >= 1:
            if not self.heads_of_one():
                return False
            gamma -= 1
        k = 1
        while (k == 1 or self.below(Fraction(1, k))) and self.below(gamma):
            k += 1
        return k % 2 == 1

    def heads_of_one(self) -> bool:
        k = 2
        while self.below(Fraction(1, k)):
            k += 1
        return k % 2 == 1

    def sample(self, t: int, variance: Fraction) -> int:
        while True:
            rest = next(self.words) % t
            if not self.heads(Fraction(rest, t)):
                continue
            height = rest
            while self.heads_of_one():
                height += t
            negative = next(self.words) % 2 == 1
            if negative and height == 0:
                continue
            if self.heads((height - variance / t) ** 2 / (2 * variance)):
                return -height if negative else height


@pytest.mark.parametrize(
    "variance",
    [Fraction(1, 3), 1, Fraction(10**9 + 7, 10**6 + 3), *map(variance_above, (0.25, 0.5, 4.5, 1e3, 1e6, 2.0**30))],
    ids=lambda variance: f"{float(variance):.4g}",
)
def test_samples_are_those_of_the_papers_algorithms_in_exact_arithmetic(variance):
    t = 1 << sampling._scale_log(Fraction(variance))
    assert t == 1 or variance / 2 <= t**2 < 2 * variance
    oracle = Oracle(SecretStream(SECRET.child("oracle")).words(40_000))
    expected = [oracle.sample(t, Fraction(variance)) for _ in range(700)]
    assert discrete_gaussian(SECRET.child("oracle"), 700, variance=variance).tolist() == expected


WIDE = st.integers(1, 2**93 - 1)


@settings(deadline=None, max_examples=300)
@given(whole=WIDE, share=st.fractions(0, 1, max_denominator=2**40), known=st.integers(0, 5), last=st.integers(-1, 1))
@example(whole=2**93 - 1, share=Fraction(2**40 - 1, 2**40), known=3, last=0)
@example(whole=1, share=Fraction(0), known=0, last=0)
def test_wide_comparisons_are_exact_even_where_many_words_must_be_read(whole, share, known, last):
    """Words are the digits of part/whole, so that the comparison stays open, until one differs or none is left."""
    part = min(int(share * whole), whole - 1)
    digits = [(part << 32 * (i + 1)) // whole % 2**32 for i in range(8)]
    words = np.array([*digits[:known], min(max(digits[known] + last, 0), 2**32 - 1), 0, 2**32 - 1], np.uint32)
    low = sum(int(word) << 32 * (len(words) - 1 - i) for i, word in enumerate(words))
    at = np.zeros(1, np.int64)
    split = [np.uint64(half) for number in (part, whole) for half in (number >> 64, number & 2**64 - 1)]
    answer = kernels._wide_below(*split, words, at)
    assert at[0] <= known + 3
    if low * whole >= part << 32 * len(words):
        assert not answer
    elif (low + 1) * whole <= part << 32 * len(words):
        assert answer
    if whole < 2**32:
        again = np.zeros(1, np.int64)
        assert kernels._below(split[1], split[3], words, again) == answer
        assert again[0] == at[0]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
@example(2**64 - 1, 2**64 - 1)
def test_wide_products_are_exact(a, b):
    high, low = kernels.wide_product(np.uint64(a), np.uint64(b))
    assert (int(high) << 64) + int(low) == a * b


@given(st.floats(0.25, 2.0**30))
@example(0.25)
@example(2.0**30)
@example(math.nextafter(math.sqrt(2) * 2**20, 0))
def test_a_variance_is_found_just_above_any_deviation(deviation):
    variance = variance_above(deviation)
    assert 1 <= variance / Fraction(deviation) ** 2 <= 1 + Fraction(1, 2**40)
    scale_log, u, v = sampling._parameters(variance)
    assert variance == Fraction(u << scale_log, v)
    assert max(u, v << scale_log) < 2**46


@pytest.mark.parametrize("variance", [0, -1, 2.5, True, None, Fraction(-1, 2), float("nan")])
def test_a_variance_that_is_no_positive_fraction_is_refused(variance):
    with pytest.raises(InputError, match="positive fraction"):
        discrete_gaussian(SECRET, 3, variance=variance)


@pytest.mark.parametrize("variance", [Fraction(10**14 + 1, 3), 2**92, Fraction(1, 2**50), Fraction(2**60 + 1, 2**60)])
def test_a_variance_beyond_exact_comparisons_is_refused_with_a_way_out(variance):
    with pytest.raises(InputError, match="variance_above"):
        discrete_gaussian(SECRET, 3, variance=variance)


@pytest.mark.parametrize("deviation", [0, 0.2, -1, 2**31, math.inf, math.nan, "3", None])
def test_a_deviation_out_of_range_is_refused(deviation):
    with pytest.raises(InputError, match="from 1/4 to 2"):
        variance_above(deviation)


@pytest.mark.parametrize("count", [-1, 1.5, True, None])
def test_a_count_that_is_none_is_refused(count):
    with pytest.raises(InputError, match="count"):
        discrete_gaussian(SECRET, count, variance=1)
    with pytest.raises(InputError, match="count"):
        secret_normals(SECRET, count)


def test_noise_comes_from_secrets_only_and_the_same_secret_repeats_it():
    for draw in (lambda secret, count: discrete_gaussian(secret, count, variance=2), secret_normals):
        with pytest.raises(InputError, match="SecretSeed"):
            draw(PublicSeed(7), 3)
        assert draw(SECRET, 0).size == 0
        assert (draw(SecretSeed.insecure(9), 40) == draw(SecretSeed.insecure(9), 40)).all()
        assert (draw(SecretSeed.insecure(9), 40) != draw(SecretSeed.insecure(8), 40)).any()
        assert (draw(SecretSeed(), 40) != draw(SecretSeed(), 40)).any()


def test_normals_follow_the_normal_law():
    """Kolmogorov and Smirnov, χ² of 1,000 equal cells, and the means of the first four moments and of neighbours' products."""
    x = secret_normals(SECRET.child("normals"), MANY)
    assert scipy.stats.kstest(x, "norm").pvalue > FALSE_ALARM
    assert scipy.stats.chisquare(np.bincount((scipy.stats.norm.cdf(x) * 1000).astype(int), minlength=1000)).pvalue > FALSE_ALARM
    for power, moment in enumerate((0, 1, 0, 3), start=1):
        low, high = mean_interval(x**power, false_alarm=FALSE_ALARM)
        assert low <= moment <= high
    for lag in (1, 2):
        for left, right in ((x[:-lag], x[lag:]), (x[:-lag] ** 2 - 1, x[lag:] ** 2 - 1), (np.abs(x[:-lag]) - 0.8, x[lag:])):
            low, high = mean_interval((left * right)[::3], false_alarm=FALSE_ALARM)
            assert low <= 0 <= high


def test_normals_have_the_tails_of_the_normal_law():
    """Exact binomial tests of how many of four million lie beyond 3, 4 and 5."""
    x = secret_normals(SECRET.child("tails"), 4 * MANY)
    for beyond in (3, 4, 5):
        for side in (x, -x):
            count = int((side > beyond).sum())
            assert scipy.stats.binomtest(count, len(x), scipy.stats.norm.sf(beyond)).pvalue > FALSE_ALARM


def test_normals_are_finite_for_the_most_extreme_words():
    out = np.empty(3, np.float64)
    for radius, angle in ((0, 0), (2**32 - 1, 2**32 - 1), (0, 2**31)):
        kernels.normals(np.array([radius, radius, angle, angle] * 2, np.uint32), out)
        assert np.isfinite(out).all()
        assert np.abs(out).max() < 8.6
    assert (secret_normals(SECRET, 7) == secret_normals(SECRET, 8)[:7]).all()
    assert all(a != b for a, b in pairwise(secret_normals(SECRET, 100)))
