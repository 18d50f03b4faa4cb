"""Discrete Gaussian noise: rounding, sums modulo a power of two, the noise of several clients, and planning."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanism_inputs import ROWS, SECRET, SHARED, clipped, discrete, rows_of

from odds import mean_interval
from sketchfed.errors import InputError
from sketchfed.privacy.discrete import DiscreteGaussian
from sketchfed.privacy.flattening import Flattening
from sketchfed.seeds import PublicSeed, SecretSeed


@settings(deadline=None, max_examples=300)
@given(
    row=ROWS,
    scale=st.floats(0.01, 1e6),
    clip=st.floats(1e-3, 1e3),
    failure=st.sampled_from([0.0, 1e-9, math.exp(-0.5), 0.99]),
    seed=st.integers(0, 2**32),
)
def test_no_rounded_row_is_longer_than_the_sensitivity(row, scale, clip, failure, seed):
    mechanism = discrete(size=row.size, scale=scale, clip=clip, rounding_failure=failure)
    found = mechanism.clipped_sum(torch.from_numpy(row)[None], SecretSeed.insecure(seed), PublicSeed(seed))
    square = sum(value * value for value in found.tolist())
    assert math.sqrt(square) <= mechanism.sensitivity
    assert mechanism.sensitivity <= (scale * clip + math.sqrt(row.size)) * (1 + 1e-8)


def test_the_bound_is_met_by_rejection_not_by_luck():
    """Rows as long as the clip, with all numbers half way between integers: about one rounding in six is too long."""
    mechanism = discrete(size=4096, clip=1.0, scale=96.0)
    flat = np.full((1, 4096), 1.5)
    Flattening(size=4096, seed=SHARED.child("flatten")).invert_(flat[0])
    row = torch.from_numpy(flat)
    assert abs(row.norm() - 96) < 1e-9
    limit = mechanism.sensitivity
    free = discrete(size=4096, clip=1.0, scale=96.0, rounding_failure=0.0)
    freely = [free.clipped_sum(row / 96, SECRET.child("free", i), SHARED).double().norm() for i in range(300)]
    bound = [mechanism.clipped_sum(row / 96, SECRET.child("free", i), SHARED).double().norm() for i in range(300)]
    assert 20 < sum(norm > limit for norm in freely) < 100
    assert max(bound) <= limit


def test_a_row_that_never_rounds_to_a_short_one_is_rounded_to_zero(monkeypatch):
    monkeypatch.setattr("sketchfed.privacy.discrete._ROUNDING_TRIES", 0)
    total = discrete().clipped_sum(rows_of(1, 20), SECRET, SHARED)
    assert 90 < total.double().norm() <= 100


@pytest.mark.parametrize("size", [1, 3, 64])
def test_the_recovered_sum_is_unbiased_and_has_the_variance_that_is_stated(size):
    """Eight clients of five rows each. Means of every number and the mean square error, false alarm below 1e-6 in all.

    The rows stay below the clip, so that no rounding is rejected: those are a little shorter (next test). With 300 trials, a
    bias of half a standard deviation in one number is found with probability 0.99.
    """
    mechanism, clients, trials = discrete(size=size, scale=30.0, deviation=2.0), 8, 300
    rows = [0.7 * clipped(rows_of(5, size, client), 1.0).float() for client in range(clients)]
    exact = torch.stack(rows).double().sum((0, 1))
    errors = np.empty((trials, size))
    for trial in range(trials):
        secret, shared = SECRET.child("trial", trial), SHARED.child("trial", trial)
        sent = [
            mechanism.noised(mechanism.clipped_sum(own, one, shared), one)
            for own, one in ((own, secret.child("client", client)) for client, own in enumerate(rows))
        ]
        total = torch.stack(sent).sum(0) & 2**mechanism.bits - 1
        errors[trial] = mechanism.recovered(total, shared).double() - exact
    for column in errors.T:
        low, high = mean_interval(column, false_alarm=1e-6 / size / 3)
        assert low <= 0 <= high
    low, high = mean_interval((errors**2).mean(1), false_alarm=1e-6 / 3)
    assert low <= mechanism.variance(clients=clients, units=5)
    assert high >= clients * mechanism.deviation**2 / mechanism.scale**2
    if size > 1:  # numbers of a single one are not spread evenly between integers
        assert low <= clients * (mechanism.deviation**2 + 5 / 6) / mechanism.scale**2 <= high


def test_rows_at_the_clip_lose_less_than_a_quarter_of_an_integer_step():
    """Rejecting long roundings shortens the mean: by about a tenth of a step, whatever the scale is. Odds of alarm 1e-6."""
    for scale in (50.0, 1000.0):
        mechanism, row = discrete(size=100, scale=scale), clipped(rows_of(1, 100), 1.0)
        lengths = []
        for trial in range(1500):
            total = mechanism.clipped_sum(row, SECRET.child("trial", trial), SHARED)
            lengths.append(scale * float(mechanism.recovered(total & 2**20 - 1, SHARED).double() @ row[0]) - scale)
        low, high = mean_interval(lengths, false_alarm=1e-6)
        assert low > -0.25
        assert high < 0.1


def test_sums_modulo_a_power_of_two_are_sums_of_integers():
    mechanism, clients = discrete(size=509, bits=18), 30
    plain = [mechanism.clipped_sum(rows_of(4, 509, client), SECRET.child("c", client), SHARED) for client in range(clients)]
    sent = [mechanism.noised(total, SECRET.child("c", client)) for client, total in enumerate(plain)]
    assert all(int(total.min()) >= 0 and int(total.max()) < 2**18 for total in sent)
    modular = torch.stack(sent).sum(0) % 2**18
    noise = [mechanism.noised(torch.zeros_like(plain[0]), SECRET.child("c", client)) for client in range(clients)]
    centred = [torch.where(share >= 2**17, share - 2**18, share) for share in noise]
    whole = torch.stack(plain).sum(0) + torch.stack(centred).sum(0)
    assert int(whole.abs().max()) < 2**17
    assert (mechanism.recovered(modular, SHARED) == mechanism.recovered(whole % 2**18, SHARED)).all()
    again = mechanism.recovered(modular, SHARED) - clipped(torch.cat([rows_of(4, 509, c) for c in range(clients)]), 1.0).sum(0)
    assert again.std() < 1.2 * math.sqrt(mechanism.variance(clients=clients, units=4))


def test_noise_is_discrete_gaussian_and_clients_differ():
    """Counts of noise of deviation 2 against exact probabilities; false alarm 1e-6."""
    mechanism = discrete(size=200_000, deviation=2.0)
    zeros = torch.zeros(200_000, dtype=torch.int64)
    first, second = (mechanism.noised(zeros, SECRET.child("client", client)) for client in range(2))
    assert (first != second).any()
    values = torch.where(first >= 2**19, first - 2**20, first).clamp(-8, 8).numpy() + 8
    weights = np.exp(-(np.arange(-8, 9) ** 2) / 8.0)
    assert scipy.stats.chisquare(np.bincount(values, minlength=17), 200_000 * weights / weights.sum()).pvalue > 1e-6


@pytest.mark.parametrize("size", [1, 2, 100_000])
def test_fine_integers_recover_a_vector_to_float32(size):
    mechanism = DiscreteGaussian.planned(size=size, clip=1.0, multiplier=1e-3, clients=1, least=1, bits=32)
    row = clipped(rows_of(1, size), 0.9)
    found = mechanism.recovered(mechanism.clipped_sum(row, SECRET, SHARED) % 2**32, SHARED)
    assert (found - row[0]).norm() <= 1e-6


def test_another_round_turns_another_way():
    mechanism, row = discrete(size=100), rows_of(1, 100)
    first = mechanism.clipped_sum(row, SECRET, SHARED)
    assert (first != mechanism.clipped_sum(row, SECRET, PublicSeed(4))).any()
    assert (first == mechanism.clipped_sum(row, SECRET, SHARED)).all()


def test_what_is_no_sum_modulo_a_power_of_two_is_refused():
    for bad in (torch.full((20,), -1), torch.full((20,), 2**20)):
        with pytest.raises(InputError, match="modulo"):
            discrete().recovered(bad, SHARED)
    with pytest.raises(InputError, match="int64"):
        discrete().recovered(torch.zeros(20), SHARED)


# The noise of several clients together --------------------------------------------------------------------------------


@pytest.mark.parametrize("deviation", [0.5, 0.6, 0.8, 1.0, 1.3])
@pytest.mark.parametrize("survivors", [2, 3, 7, 12])
def test_the_slack_bounds_an_exact_convolution(deviation, survivors):
    """For every integer: adding one to each share moves both laws by the same factor, so the ratio has period `survivors`.

    All terms are positive, so float64 keeps relative errors near 1e-15 where nothing underflows.
    """
    reach = 20
    x = np.arange(-reach, reach + 1, dtype=np.float64)
    one = np.exp(-(x**2) / (2 * deviation**2))
    one /= one.sum()
    law = one
    for _ in range(survivors - 1):
        law = np.convolve(law, one)
    ends = np.arange(-reach * survivors, reach * survivors + 1, dtype=np.float64)
    single = np.exp(-(ends**2) / (2 * survivors * deviation**2))
    single /= single.sum()
    near = np.abs(ends) <= survivors
    apart = np.abs(np.log(law[near] / single[near])).max()
    slack = discrete(size=1, deviation=deviation).slack(survivors)
    assert apart <= slack
    if survivors == 2:
        assert slack < 10 * apart  # no idle bound; for more it is looser
    assert discrete(size=50, deviation=deviation).slack(survivors) == pytest.approx(50 * slack)


def test_one_survivor_has_no_slack_and_fewer_have_less_noise():
    mechanism = discrete()
    assert mechanism.slack(1) == 0
    assert mechanism.multiplier(100) == pytest.approx(10 * mechanism.multiplier(1))
    assert mechanism.multiplier(1) == mechanism.deviation / mechanism.sensitivity
    for survivors in (0, -1, 2.5, True):
        with pytest.raises(InputError, match="survivors"):
            mechanism.multiplier(survivors)
        with pytest.raises(InputError, match="survivors"):
            mechanism.slack(survivors)


# Planning -------------------------------------------------------------------------------------------------------------


SETTINGS = [
    {"size": size, "clip": clip, "multiplier": z, "clients": clients, "least": least, "units": units}
    for size, units in ((1, 1), (509, 1), (509, 600), (50_890, 1))
    for clip, z, clients, least in ((1.0, 1.0, 100, 80), (0.03, 0.4, 10, 10), (50.0, 12.0, 1000, 1))
]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: "-".join(map(str, setting.values())))
def test_a_plan_keeps_what_it_promises_with_as_few_bits_as_can_be(setting):
    mechanism = DiscreteGaussian.planned(**setting)
    assert setting["multiplier"] <= mechanism.multiplier(setting["least"]) <= setting["multiplier"] * (1 + 1e-9)
    assert mechanism.inflation < 1.01
    assert mechanism.deviation >= 3
    assert mechanism.wrap_odds(clients=setting["clients"], units=setting["units"]) <= 1e-3
    with pytest.raises(InputError, match=f"bits = {mechanism.bits}" if mechanism.bits > 8 else "8 to 32"):
        DiscreteGaussian.planned(**setting, bits=mechanism.bits - 1)
    finer = DiscreteGaussian.planned(**setting, bits=mechanism.bits + 2)
    assert finer.scale == pytest.approx(4 * mechanism.scale, rel=0.05)
    assert finer.inflation < mechanism.inflation
    assert DiscreteGaussian.planned(**setting, bits=mechanism.bits) == mechanism


def test_sixteen_bits_hold_a_hundred_clients():
    """At ε = 3, δ = 1e-5 the multiplier of one sum is 1.39 (Balle & Wang 2018)."""
    mechanism = DiscreteGaussian.planned(size=1000, clip=1.0, multiplier=1.391, clients=100, least=70)
    assert mechanism.bits <= 16


def test_sums_that_no_integer_holds_and_plans_that_cannot_be_are_refused():
    fine = {"size": 100, "clip": 1.0, "multiplier": 1.0, "clients": 10, "least": 5}
    with pytest.raises(InputError, match="Take fewer"):
        DiscreteGaussian.planned(**fine | {"clients": 10**6, "units": 10**6})
    with pytest.raises(InputError, match="least <= 10"):
        DiscreteGaussian.planned(**fine | {"least": 11})
    for name in ("size", "clients", "least", "units"):
        with pytest.raises(InputError, match=name):
            DiscreteGaussian.planned(**fine | {name: 0})
    for name in ("clip", "multiplier"):
        for bad in (0, -1.0, math.nan, math.inf):
            with pytest.raises(InputError, match="positive numbers"):
                DiscreteGaussian.planned(**fine | {name: bad})


@pytest.mark.parametrize("wrong", [{"deviation": 0.4}, {"deviation": 2.0**31}, {"deviation": math.nan}, {"scale": 0.0}])
def test_deviations_and_scales_out_of_range_are_refused(wrong):
    with pytest.raises(InputError, match=r"deviation|scale"):
        discrete(**wrong)


def test_rounding_failure_is_a_probability():
    for failure in (-0.1, 1.0, math.nan):
        with pytest.raises(InputError, match="rounding_failure"):
            discrete(rounding_failure=failure)


@pytest.mark.parametrize("place", [0, -1])
def test_sums_wrap_around_no_more_often_than_stated_even_if_all_clients_send_one_number(place):
    """Four clients with the same unit vector, 400 rounds; a binomial test with false alarm 1e-6, and some do wrap."""
    mechanism, rounds, wrapped = discrete(size=65, scale=60.0, deviation=9.0, bits=8), 400, 0
    odds = mechanism.wrap_odds(clients=4)
    assert 0.01 < odds < 0.5
    row = torch.zeros(1, 65)
    row[0, place] = 1.0
    for number in range(rounds):
        shared = SHARED.child("round", number)
        total = torch.zeros(65, dtype=torch.int64)
        for client in range(4):
            secret = SECRET.child("round", number).child("client", client)
            total += mechanism.clipped_sum(row, secret, shared)
            share = mechanism.noised(torch.zeros(65, dtype=torch.int64), secret)
            total += torch.where(share >= 128, share - 256, share)
        wrapped += bool((total >= 128).any() or (total < -128).any())
    assert scipy.stats.binomtest(wrapped, rounds, odds, alternative="greater").pvalue > 1e-6
    assert wrapped > 0
