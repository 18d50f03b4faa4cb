"""Seeds are fixed; where odds of a false alarm are stated, they are those over all seeds."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from odds import mean_interval
from sketchfed.errors import InputError
from sketchfed.privacy.base import Mechanism
from sketchfed.privacy.discrete import DiscreteGaussian
from sketchfed.privacy.flattening import Flattening
from sketchfed.privacy.gaussian import GaussianNoise
from sketchfed.privacy.rounded import Rounded
from sketchfed.seeds import PublicSeed, SecretSeed

SECRET, SHARED = SecretSeed.insecure(3), PublicSeed(3)


def rows_of(units: int, size: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(units, size, generator=torch.Generator().manual_seed(seed))


def clipped(rows: torch.Tensor, clip: float) -> torch.Tensor:
    rows = rows.double()
    return rows * (clip / rows.norm(dim=1, keepdim=True).clamp(min=1e-300)).clamp(max=1)


def discrete(**changes) -> DiscreteGaussian:
    return DiscreteGaussian(**{"size": 20, "clip": 1.0, "deviation": 5.0, "scale": 100.0, "bits": 20} | changes)


def every(**changes) -> list[Mechanism]:
    shape = {"size": 20, "clip": 1.0} | changes
    return [GaussianNoise(deviation=1.0, **shape), discrete(**shape), Rounded(clients=10, units=9, **shape)]


def summed(mechanism: Mechanism, rows: torch.Tensor) -> torch.Tensor:
    """Clipped and added up, without noise, as the server sees it."""
    if isinstance(mechanism, GaussianNoise):
        return mechanism.clipped_sum(rows)
    total = mechanism.clipped_sum(rows, SECRET, SHARED)
    return mechanism.recovered(total & 2**mechanism.bits - 1, SHARED)


# What all of them do --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", every(), ids=lambda mechanism: mechanism.name)
def test_long_rows_are_scaled_to_the_clip_and_short_ones_are_left_alone(mechanism):
    rows = torch.diag(torch.tensor([5.0, 0.5, 1.0, -7.0, -0.25]))
    rows = torch.cat([rows, torch.zeros(5, 15)], 1)
    expected = torch.tensor([1.0, 0.5, 1.0, -1.0, -0.25] + [0.0] * 15)
    assert (summed(mechanism, rows) - expected).norm() < 0.15
    assert mechanism.norms(rows).tolist() == [5.0, 0.5, 1.0, 7.0, 0.25]
    assert (summed(mechanism, rows.double()) - expected).norm() < 0.15


@pytest.mark.parametrize("mechanism", every(), ids=lambda mechanism: mechanism.name)
def test_no_rows_and_zero_rows_add_nothing(mechanism):
    assert summed(mechanism, torch.zeros(0, 20)).tolist() == [0.0] * 20
    assert summed(mechanism, torch.zeros(3, 20)).tolist() == [0.0] * 20


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mechanism", every(), ids=lambda mechanism: mechanism.name)
def test_rows_that_are_not_finite_are_refused(mechanism, bad):
    rows = torch.zeros(4, 20)
    rows[2, 7] = bad
    with pytest.raises(InputError, match=r"row 2 .*NaN, infinity"):
        summed(mechanism, rows)
    with pytest.raises(InputError, match="row 2"):
        mechanism.norms(rows)


@pytest.mark.parametrize("mechanism", every(), ids=lambda mechanism: mechanism.name)
def test_rows_and_sums_of_another_shape_are_refused(mechanism):
    for rows in (torch.zeros(20), torch.zeros(2, 19), torch.zeros(2, 20, dtype=torch.int64), torch.zeros(1, 2, 20)):
        with pytest.raises(InputError, match=r"rows \(units, 20\)"):
            summed(mechanism, rows)
    with pytest.raises(InputError, match="20 numbers"):
        mechanism.noised(torch.zeros(19, dtype=torch.int64), SECRET)


@pytest.mark.parametrize("clip", [0, -1.0, math.nan, math.inf, None, "1"])
def test_a_clip_that_bounds_nothing_is_refused(clip):
    for make in (
        lambda: GaussianNoise(size=3, clip=clip, deviation=1.0),
        lambda: discrete(clip=clip),
        lambda: every(clip=clip),
    ):
        with pytest.raises(InputError, match="clip must be a positive number"):
            make()


@pytest.mark.parametrize("size", [0, -1, 2.0, True, 2**31])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(InputError, match="size"):
        every(size=size)


@pytest.mark.parametrize("bits", [7, 33, 0, 16.0, True, None])
def test_integers_have_8_to_32_bits(bits):
    for make in (lambda: discrete(bits=bits), lambda: Rounded(size=3, clip=1.0, clients=1, bits=bits)):
        with pytest.raises(InputError, match="8 to 32 bits"):
            make()
    if bits is not None:
        with pytest.raises(InputError, match="8 to 32 bits"):
            DiscreteGaussian.planned(size=3, clip=1.0, multiplier=1.0, clients=1, least=1, bits=bits)


def test_public_seeds_make_no_noise():
    with pytest.raises((InputError, AttributeError)):
        discrete().noised(torch.zeros(20, dtype=torch.int64), SHARED)
    with pytest.raises((InputError, AttributeError)):
        every()[0].noised(torch.zeros(20), SHARED)


# Gaussian -------------------------------------------------------------------------------------------------------------


def test_normal_noise_has_its_deviation_and_no_mean():
    """χ² and Student intervals with a false alarm of 1e-6 each."""
    mechanism = GaussianNoise(size=200_000, clip=2.0, deviation=3.0)
    total = torch.full((200_000,), 7.0)
    noise = (mechanism.noised(total, SECRET) - total).numpy().astype(np.float64)
    low, high = mean_interval(noise, false_alarm=1e-6)
    assert low <= 0 <= high
    low, high = mean_interval(noise**2, false_alarm=1e-6)
    assert low <= 9 <= high
    assert mechanism.multiplier == 1.5


def test_the_gaussian_sum_is_exact_to_float32_at_a_hundred_thousand_numbers():
    rows = rows_of(100, 100_000)
    exact = clipped(rows, 1.0).sum(0)
    found = GaussianNoise(size=100_000, clip=1.0, deviation=0.0).clipped_sum(rows)
    assert found.dtype == torch.float32
    assert (found - exact).norm() <= 2e-7 * exact.norm()


def test_no_deviation_adds_nothing_and_wild_ones_are_refused():
    total = torch.arange(5.0)
    assert (GaussianNoise(size=5, clip=1.0, deviation=0.0).noised(total, SECRET) == total).all()
    for deviation in (-1.0, math.nan, math.inf, None):
        with pytest.raises(InputError, match="deviation"):
            GaussianNoise(size=5, clip=1.0, deviation=deviation)


# Flattening -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 31, 32, 33, 63, 64, 65, 100, 127, 128, 509, 513, 4097, 50_890])
def test_flattening_is_a_rotation(size):
    rows = np.random.default_rng(size).normal(size=(3, size))
    flat, turned = rows.copy(), Flattening(size=size, seed=SHARED)
    turned.apply_(flat)
    assert np.allclose(flat @ flat.T, rows @ rows.T, rtol=1e-12, atol=1e-9)
    for row, original in zip(flat, rows, strict=True):
        again = row.copy()
        turned.invert_(again)
        assert np.allclose(again, original, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [3, 65, 100, 513])
@pytest.mark.parametrize("place", ["first", "last", "everywhere"])
def test_no_vector_keeps_a_large_number(size, place):
    """E y² ≤ ‖x‖²/width for every number y, by Student's bound over 400 seeds; false alarm 1e-6 in all for each case."""
    x = np.ones(size) / math.sqrt(size) if place == "everywhere" else np.eye(size)[0 if place == "first" else -1]
    squares = np.empty((400, size))
    for seed in range(400):
        flat, turned = x[None].copy(), Flattening(size=size, seed=PublicSeed(seed))
        turned.apply_(flat)
        squares[seed] = flat[0] ** 2
    low = [mean_interval(column, false_alarm=1e-6 / size)[0] for column in squares.T]
    assert max(low) <= 1 / turned.width
    assert 1 / turned.width < 2 / size


# Discrete Gaussian ----------------------------------------------------------------------------------------------------

ROWS = arrays.arrays(
    np.float32,
    st.integers(1, 40),
    elements=st.floats(-(2.0**100), 2.0**100, width=32) | st.floats(-1, 1, width=32) | st.sampled_from([0.0, 1.0, -1.0, 0.5]),
)


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


# Rounded --------------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    row=ROWS,
    clients=st.integers(1, 300),
    units=st.integers(1, 3),
    bits=st.integers(8, 32),
    clip=st.floats(1e-3, 1e3),
    seed=st.integers(0, 2**32),
)
def test_rounded_sums_never_wrap(row, clients, units, bits, clip, seed):
    if 4 * clients * units >= 2**bits:
        return
    mechanism = Rounded(size=row.size, clip=clip, clients=clients, units=units, bits=bits)
    rows = torch.from_numpy(row).expand(units, -1)
    secret, shared = SecretSeed.insecure(seed), PublicSeed(seed)
    total = mechanism.clipped_sum(rows, secret, shared)
    assert int(total.abs().max()) * clients < 2 ** (bits - 1)
    sent = mechanism.noised(total, secret)
    found = mechanism.recovered(sent * clients % 2**bits, shared)
    exact = clients * clipped(rows, clip).sum(0)
    assert (found - exact).abs().max() <= 1.01 * clients * units / mechanism.scale + 1e-6 * exact.abs().max()


def test_rounding_is_unbiased_and_as_fine_as_stated():
    """A thousand draws; the mean of each number, false alarm 1e-6 in all."""
    mechanism, rows = Rounded(size=30, clip=1.0, clients=20, units=3, bits=12), clipped(rows_of(3, 30), 1.0)
    errors = np.array(
        [
            mechanism.recovered(mechanism.clipped_sum(rows, SECRET.child("draw", i), SHARED) % 2**12, SHARED) - rows.sum(0)
            for i in range(1000)
        ]
    )
    for column in errors.T:
        low, high = mean_interval(column, false_alarm=1e-6 / 30)
        assert low <= 0 <= high
    assert errors.var(0).max() <= 3 / (4 * mechanism.scale**2) * 1.3


def test_rounded_refuses_too_few_bits_and_too_many_rows():
    with pytest.raises(InputError, match="bits = 9"):
        Rounded(size=3, clip=1.0, clients=100, bits=8)
    assert Rounded(size=3, clip=1.0, clients=100, bits=9).scale > 1
    with pytest.raises(InputError, match="fewer"):
        Rounded(size=3, clip=1.0, clients=2**20, units=2**20)
    with pytest.raises(InputError, match="units = 2"):
        Rounded(size=3, clip=1.0, clients=1).clipped_sum(torch.zeros(2, 3), SECRET, SHARED)
    assert not Rounded(size=3, clip=1.0, clients=1).private
    assert GaussianNoise.private
    assert DiscreteGaussian.private
