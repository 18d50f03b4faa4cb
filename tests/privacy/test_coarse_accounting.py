"""Coarse discrete noise, and all that `planned` makes, is charged at most 2 % above the exact ε, and never below it."""

import math
from itertools import product

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as losses
from outcomes import exact_epsilon, neighbours, projected, vectors

from sketchfed.privacy import DiscreteGaussian
from sketchfed.privacy.accounting import epsilon_of, worst_bound
from sketchfed.privacy.claims import Charge, Claim
from sketchfed.privacy.counted import counted_loss

DELTA = 1e-5


def some_quick(cases, quick):
    """All cases as parameters; those that are not among the quick ones are slow."""
    cases, marks = list(cases), {True: (), False: pytest.mark.slow}
    assert set(quick) <= set(cases)
    return [pytest.param(*case, marks=marks[case in quick]) for case in cases]


def claim(delta=DELTA, adjacency="add-remove"):
    return Claim(unit="client", adjacency=adjacency, observer="server", delta=delta)


def coarse(deviation, longest, sampling=1.0, size=1_000):
    """The charge for one unit that adds at most `longest` integer steps."""
    return Charge(multiplier=deviation / longest, sampling=sampling, discrete=True, deviation=deviation, size=size)


@pytest.mark.parametrize("deviation", [0.7, 1.5, 3.0, 8.0])
@pytest.mark.parametrize("longest", [1, 2, 3])
@pytest.mark.parametrize("sampling", [1.0, 0.05])
def test_one_release_of_coarse_noise_is_charged_the_truth(deviation, longest, sampling):
    """The worst of all vectors that a unit can add is tried here, so the reference is exact, and not only a bound."""
    exact = max(exact_epsilon(*projected(deviation, v, sampling), DELTA) for v in vectors(longest**2))
    charged = epsilon_of({coarse(deviation, longest, sampling): 1}, claim())
    assert exact <= charged <= 1.001 * exact + 1e-6


@pytest.mark.parametrize(
    ("deviation", "longest", "sampling", "times"),
    some_quick(
        [(d, v, *often) for d, v, often in product([2.0, 3.0, 8.0], [1, 2, 4, 6], [(1.0, 10), (0.1, 50), (0.02, 300)])],
        quick=[(2.0, 6, 1.0, 10), (2.0, 1, 0.1, 50), (2.0, 4, 0.02, 300), (3.0, 6, 0.1, 50), (8.0, 4, 0.02, 300)],
    ),
)
def test_many_releases_of_coarse_noise_are_charged_at_most_a_fiftieth_too_much(deviation, longest, sampling, times):
    """Against a unit that adds the same longest vector each time: a lower bound on the truth."""
    for delta in (1e-5, 1e-8):
        exact = exact_epsilon(*neighbours(deviation, (longest,), sampling), delta, times)
        charged = epsilon_of({coarse(deviation, longest, sampling): times}, claim(delta))
        assert exact <= charged * (1 + 1e-7)
        assert charged <= 1.02 * exact


@pytest.mark.parametrize(
    ("deviation", "vector", "sampling", "times"),
    some_quick(
        [(d, v, *o) for d, v, o in product([2.0, 3.0], [(1, 1), (2, 1), (1, 1, 1, 1), (2, 2, 1)], [(1.0, 7), (0.1, 50)])],
        quick=[(2.0, (1, 1, 1, 1), 0.1, 50), (2.0, (2, 1), 1.0, 7), (3.0, (2, 2, 1), 0.1, 50)],
    ),
)
def test_no_vector_is_charged_too_little(deviation, vector, sampling, times):
    """Vectors that are not along an axis are the worst for some ε and δ."""
    longest = math.sqrt(sum(number**2 for number in vector))
    for delta in (1e-3, 1e-5, 1e-8):
        exact = exact_epsilon(*projected(deviation, vector, sampling), delta, times)
        charged = epsilon_of({coarse(deviation, longest, sampling): times}, claim(delta))
        assert exact <= charged * (1 + 1e-7)
        assert charged <= 1.02 * exact


@pytest.mark.parametrize(("deviation", "sampling", "times"), [(1.5, 1.0, 1), (1.5, 1.0, 30), (2.0, 0.1, 40), (5.0, 0.5, 10)])
def test_coarse_noise_is_charged_what_dp_accounting_says_of_one_number(deviation, sampling, times):
    """Its discrete Gaussian on one integer: rounded down it is a lower bound, and rounded up the truth from above."""
    below, above = (
        losses.from_discrete_gaussian_mechanism(
            deviation, sensitivity=1, pessimistic_estimate=up, sampling_prob=sampling, value_discretization_interval=1e-4
        )
        .self_compose(times)
        .get_epsilon_for_delta(DELTA)
        for up in (False, True)
    )
    charged = epsilon_of({coarse(deviation, 1, sampling): times}, claim())
    assert below <= charged <= 1.001 * above


def test_replacing_a_unit_moves_a_sum_twice_as_far():
    """Two opposite vectors of full length, also where both have several numbers."""
    pair = [exact_epsilon(*neighbours(2.0, v), DELTA, 5) for v in ((4,), (2, 2), (2,))]
    charged = epsilon_of({coarse(2.0, 2): 5}, claim(adjacency="replace-one"))
    assert max(pair) <= charged <= 1.02 * max(pair)


@pytest.mark.parametrize("shares", [2, 3, 25])
@pytest.mark.parametrize(("sampling", "times"), [(1.0, 1), (1.0, 20), (0.1, 20)])
def test_a_sum_of_coarse_shares_is_charged_at_most_a_fiftieth_too_much(shares, sampling, times):
    """Shares of 2 steps, as in a sum over a group of three; the reference convolves the shares."""
    mechanism = DiscreteGaussian(size=1_000, clip=1.0, deviation=2.0, scale=1.0, bits=16)
    charge = mechanism.charge(shares, sampling=sampling)
    one = Charge(
        multiplier=charge.deviation / 2,
        sampling=sampling,
        discrete=True,
        slack=charge.slack,
        deviation=charge.deviation,
        size=1,
    )
    exact = exact_epsilon(*neighbours(2.0, (2,), sampling, shares), DELTA, times)
    charged = epsilon_of({one: times}, claim())
    assert exact <= charged * (1 + 1e-7)
    assert charged <= 1.02 * exact


PLANS = [  # size, multiplier, clients, fewest honest survivors, vectors of a client
    (size, z, clients, least, units)
    for size in (4, 1_000_000)
    for z in (0.08, 0.5, 2.0)
    for clients, least, units in ((3, 1, 1), (3, 3, 1), (10, 7, 50))
]


@pytest.mark.parametrize(("size", "multiplier", "clients", "least", "units"), some_quick(PLANS, quick=[*PLANS[:3], PLANS[13]]))
def test_all_that_is_planned_is_charged_at_most_a_fiftieth_too_much(size, multiplier, clients, least, units):
    """With the fewest bits that are accepted, for sums in groups of three as well.

    The reference is a unit that adds the same vector each time: a lower bound on the truth. Along one axis lengths are whole
    numbers, up to 1 % below the sensitivity for the coarsest plans, so these have a second number that makes up for it.
    """
    mechanism = DiscreteGaussian.planned(size=size, clip=1.0, multiplier=multiplier, clients=clients, least=least, units=units)
    longest = math.floor(mechanism.sensitivity)
    deviation = math.sqrt(least) * mechanism.deviation
    rest = math.isqrt(math.floor(mechanism.sensitivity**2) - longest**2)
    shift = (longest, rest) if deviation < 50 else (longest,)
    for sampling, times in ((1.0, 1), (1.0, 40), (0.05, 40)):
        exact = exact_epsilon(*neighbours(deviation, shift, sampling), DELTA, times)
        if exact > 200:
            continue
        charged = epsilon_of({mechanism.charge(least, sampling=sampling): times}, claim())
        assert exact <= charged * (1 + 1e-7)
        assert charged <= 1.02 * exact, (sampling, times, charged / exact, deviation)


def test_coarse_and_fine_releases_add_up():
    one, fine = coarse(2.0, 1), Charge(multiplier=3.0, discrete=True, deviation=90.0, size=9)
    together = epsilon_of({one: 4, fine: 3, Charge(multiplier=4.0, sampling=0.2): 2}, claim())
    continuous = {Charge(multiplier=2.0): 4, Charge(multiplier=3.0): 3, Charge(multiplier=4.0, sampling=0.2): 2}
    assert together == pytest.approx(epsilon_of(continuous, claim()), rel=5e-3)


def test_numbers_that_a_unit_cannot_move_cost_nothing():
    """A vector of length 2 has at most four numbers that are not 0."""
    few, many = (epsilon_of({coarse(2.0, 2, size=size): 5}, claim()) for size in (4, 10**7))
    assert few == many
    assert epsilon_of({coarse(2.0, 2, size=1): 5}, claim()) < few


def test_counted_losses_are_those_of_pld():
    assert worst_bound([coarse(2.0, 1)], np.array([[5]]), claim())[1] == "pld"
    for delta in (0.1, 1e-3, 1e-9):
        both = losses.from_discrete_gaussian_mechanism(3.0, sensitivity=1, value_discretization_interval=1e-4)
        assert counted_loss(3.0, 1, 5, 1.0, 1e-4).get_epsilon_for_delta(delta) == pytest.approx(
            both.get_epsilon_for_delta(delta), rel=1e-3
        )


def test_noise_that_is_charged_too_much_is_warned_of(caplog):
    """Three integer steps for a unit that adds ten. All that is planned is finer."""
    made = {"size": 20, "clip": 1.0, "bits": 16}
    DiscreteGaussian(deviation=3.0, scale=10.0, **made).charge(1)
    DiscreteGaussian(deviation=1.0, scale=1.0, **made).charge(50)
    assert [record.message.count("raise scale and deviation together") for record in caplog.records] == [1, 1]
    caplog.clear()
    DiscreteGaussian(deviation=3.0, scale=10.0, **made).charge(12)
    DiscreteGaussian(deviation=2.0, scale=1.0, **made).charge(1)
    DiscreteGaussian.planned(size=4, clip=1.0, multiplier=0.02, clients=3, least=1).charge(1)
    assert not caplog.records


@pytest.mark.parametrize(
    ("longest", "sampling", "times"),
    [(10, 0.001, 2_000), (10, 0.02, 300), (20, 0.001, 1_000), (50, 0.0001, 300), (50, 0.02, 20)],
)
def test_noise_of_ten_steps_is_charged_at_most_a_fiftieth_too_much_where_sampling_counts_most(longest, sampling, times):
    """Rare units make ε depend most on the noise. All that is planned has 10 integer steps or more."""
    exact = exact_epsilon(*neighbours(10.0, (longest,), sampling), DELTA, times)
    charged = epsilon_of({coarse(10.0, longest, sampling, size=10**6): times}, claim())
    assert exact <= charged <= 1.02 * exact


def test_weak_sampled_noise_is_charged_as_sampled_up_to_an_epsilon_of_two_hundred():
    """300 releases with noise of a quarter of the clip, which one example in fifty was in. Unsampled ones have ε = 2,700."""
    deviation, longest = 60.0, 240
    exact = exact_epsilon(*neighbours(deviation, (longest,), 0.02), DELTA, 300)
    charged = epsilon_of({coarse(deviation, longest, 0.02): 300}, claim())
    assert 90 < exact <= charged <= 1.02 * exact
