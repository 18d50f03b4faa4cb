"""ε of discrete noise against the truth, which is worked out here from the probabilities of all outcomes."""

import math
from itertools import product

import numpy as np
import pytest
from outcomes import exact_epsilon, masses, neighbours
from scipy import integrate, stats

from sketchfed.privacy import DiscreteGaussian, accounting
from sketchfed.privacy.accounting import accounted, epsilon_of, worst_bound
from sketchfed.privacy.claims import Charge, Claim
from sketchfed.privacy.smoothing import rounded_from, rounding_slack


def claim(delta=1e-5, adjacency="add-remove", accountant="pld"):
    return Claim(unit="client", adjacency=adjacency, observer="server", delta=delta, accountant=accountant)


def charge_of(deviation, shift, sampling=1.0, shares=1):
    whole = math.sqrt(shares) * deviation
    slack = DiscreteGaussian(size=len(shift), clip=1.0, deviation=deviation, scale=9.0, bits=16).slack(shares)
    multiplier = whole / math.hypot(*shift)
    return Charge(multiplier=multiplier, sampling=sampling, discrete=True, slack=slack, deviation=whole, size=len(shift))


# What discrete noise is rounded from.


@pytest.mark.parametrize("coarseness", [0.4, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("deviation", [1.2, 3.0, 15.0])
@pytest.mark.parametrize("centre", [0, 2, -7])
def test_continuous_noise_that_is_rounded_at_random_is_nearly_discrete_noise(coarseness, deviation, centre):
    """The lemma of `smoothing`, by integrals over what is rounded. Its bound is reached in the tails."""
    rest = math.sqrt(deviation**2 - coarseness**2)
    integers = np.arange(centre - 200, centre + 201)
    exact = np.exp(-((integers - centre) ** 2) / (2 * deviation**2))
    exact /= exact.sum()
    x = np.linspace(centre - 12 * deviation, centre + 12 * deviation, 40_001)
    normal = stats.norm.pdf(x, centre, rest)
    around = np.arange(-12, 13)[:, None] + np.round(x)
    total = np.exp(-((around - x) ** 2) / (2 * coarseness**2)).sum(axis=0)
    distances = []
    for y in range(centre - math.ceil(3 * deviation), centre + math.ceil(3 * deviation) + 1):
        found = integrate.simpson(normal * np.exp(-((y - x) ** 2) / (2 * coarseness**2)) / total, x=x)
        distances.append(abs(math.log(found / exact[integers == y][0])))
    bound = rounding_slack(coarseness, deviation)
    assert max(distances) <= bound + 1e-11  # of the integrals
    if deviation == 1.2 and bound > 1e-9:
        assert max(distances) >= bound / 10


@pytest.mark.parametrize("size", [1, 1_000, 10**7])
@pytest.mark.parametrize("deviation", [0.5, 1.0, 3.0, 15.0, 2.0**30])
def test_what_noise_is_rounded_from_has_little_slack(deviation, size):
    found = rounded_from(deviation, size)
    if deviation < 1:
        assert found is None
    elif found is not None:
        rest, slack = found
        assert slack <= 1e-9
        assert rest < deviation
        assert deviation < 3 or rest > 0.93 * deviation
        assert deviation < 15 or rest > 0.997 * deviation
    else:
        assert deviation == 1.0


def test_a_bound_that_says_nothing_is_infinite():
    assert rounding_slack(0.0, 5.0) == rounding_slack(0.1, 5.0) == math.inf


# The truth.


ONE = [  # deviation, shift, sampling, δ
    (15.0, (5,), 1.0, 1e-5),
    (15.0, (15,), 1.0, 1e-3),
    (40.0, (10,), 1.0, 1e-7),
    (8.0, (3, 4), 1.0, 1e-5),
    (6.0, (2, 1, 1), 1.0, 1e-5),
    (15.0, (15,), 0.1, 1e-5),
    (15.0, (30,), 0.5, 1e-6),
    (40.0, (10,), 0.3, 1e-4),
    (10.0, (6, 8), 0.2, 1e-5),
]


@pytest.mark.parametrize(("deviation", "shift", "sampling", "delta"), ONE)
def test_one_release_is_charged_the_truth_or_at_most_a_fiftieth_more(deviation, shift, sampling, delta):
    without, moved = neighbours(deviation, shift, sampling)
    exact = exact_epsilon(without, moved, delta)
    charged = epsilon_of({charge_of(deviation, shift, sampling): 1}, claim(delta))
    assert exact <= charged <= 1.02 * exact


MANY = {  # deviation, shift, sampling, times, δ; the truth and what RDP makes of it
    "that RDP makes 3.38 of 3.12": (45.0, 15, 1.0, 5, 1e-5, 3.1247, 3.3841),
    "sampled, that RDP makes 1.20 of 0.69": (20.0, 20, 0.03, 8, 1e-4, 0.6896, 1.1956),
    "sampled, that RDP makes 1.20 of 0.82": (24.0, 20, 1 / 64, 80, 1e-6, 0.8178, 1.1948),
    "an epoch of hidden batches": (16.0, 20, 0.01, 300, 1e-5, 2.0269, 2.6945),
    "large batches": (60.0, 15, 0.1, 200, 1e-5, 1.4217, 1.5568),
    "halves": (80.0, 10, 0.5, 40, 1e-5, 1.5673, 1.7122),
    "seen": (100.0, 5, 1.0, 200, 1e-5, 2.9432, 3.1890),
}


@pytest.mark.parametrize("case", MANY)
def test_many_releases_are_charged_the_truth_or_at_most_a_fiftieth_more(case):
    deviation, shift, sampling, times, delta, tight, by_renyi = MANY[case]
    exact = exact_epsilon(*neighbours(deviation, (shift,), sampling), delta, times)
    charge = charge_of(deviation, (shift,), sampling)
    charged, looser = (epsilon_of({charge: times}, claim(delta, accountant=accountant)) for accountant in ("pld", "rdp"))
    assert exact <= charged <= 1.02 * exact
    assert (exact, looser) == (pytest.approx(tight, rel=2e-3), pytest.approx(by_renyi, rel=2e-3))


@pytest.mark.parametrize("shares", [2, 5, 25])
@pytest.mark.parametrize("sampling", [0.2, 1.0])
def test_a_sum_of_shares_is_charged_the_truth_or_at_most_a_fiftieth_more(shares, sampling):
    shift = math.ceil(3 * math.sqrt(shares))
    exact = exact_epsilon(*neighbours(4.0, (shift,), sampling, shares), 1e-5)
    charged = epsilon_of({charge_of(4.0, (shift,), sampling, shares): 1}, claim())
    assert exact <= charged <= 1.02 * exact


@pytest.mark.parametrize("deviation", [0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0])
@pytest.mark.parametrize(("shift", "sampling"), [((1,), 1.0), ((1, 2), 1.0), ((2,), 0.3), ((1, 1), 0.05)])
@pytest.mark.parametrize("shares", [1, 3])
def test_coarse_noise_is_never_charged_less_than_the_truth(deviation, shift, sampling, shares):
    """Also where shares are so coarse that their sum is no discrete Gaussian."""
    exact = exact_epsilon(*neighbours(deviation, shift, sampling, shares), 1e-4)
    assert epsilon_of({charge_of(deviation, shift, sampling, shares): 1}, claim(1e-4)) >= exact


def test_replacing_a_unit_under_sampling_is_charged_the_truth_or_at_most_a_fiftieth_more():
    without = masses(15.0)
    one, other = (0.8 * without + 0.2 * masses(15.0, mean=mean) for mean in (8, -8))
    charged = epsilon_of({charge_of(15.0, (8,), 0.2): 1}, claim(adjacency="replace-one"))
    exact = exact_epsilon(one, other, 1e-5)
    assert exact <= charged <= 1.02 * exact


# Which accountant.


def test_the_smaller_of_both_bounds_counts_and_says_its_name():
    for deviation, times in product((1.0, 2.0, 3.0, 15.0), (1, 20)):
        charge = Charge(multiplier=4.0, discrete=True, deviation=deviation, size=10)
        both = [epsilon_of({one: times}, claim()) for one in (charge, charge.noise)]
        assert both[0] <= both[1]
        said = accounted(claim(), {charge: times}).text
        assert said.endswith("(PLD)" if both[0] < both[1] else "(RDP)"), (deviation, times)
    assert accounted(claim(), [Charge(multiplier=4.0, discrete=True, deviation=15.0, size=10)]).accountant == "pld"


def test_discrete_and_continuous_releases_add_up():
    charge, same = Charge(multiplier=4.0, discrete=True, deviation=60.0, size=9), Charge(multiplier=4.0)
    for sampling in (1.0, 0.1):
        both = {Charge(multiplier=5.0, sampling=sampling): 3}
        apart = epsilon_of({**both, charge: 7}, claim())
        assert apart == pytest.approx(epsilon_of({**both, same: 7}, claim()), rel=1e-3)


def test_one_old_charge_makes_all_of_them_accounted_by_rdp():
    """An old ledger does not say how coarse its noise was."""
    new = Charge(multiplier=4.0, discrete=True, deviation=60.0, size=9)
    charged = worst_bound([new, new.noise], np.array([[3, 2]]), claim())
    assert charged == (epsilon_of({new.noise: 5}, claim(accountant="rdp")), "rdp")


def test_slack_costs_as_much_as_it_can():
    """δ shrinks by e^slack and ε grows by twice the slack."""
    charge = Charge(multiplier=4.0, discrete=True, deviation=60.0, size=1, slack=0.01)
    plain = Charge(multiplier=charge.multiplier * rounded_from(60.0, 1)[0] / 60.0)
    assert epsilon_of({charge: 3}, claim()) == pytest.approx(
        epsilon_of({plain: 3}, claim(1e-5 * math.exp(-0.03))) + 0.06, abs=1e-7
    )


def test_a_delta_too_small_for_a_grid_is_left_to_rdp():
    charge = Charge(multiplier=4.0, sampling=0.1, discrete=True, deviation=60.0, size=9)
    assert worst_bound([charge], np.array([[5]]), claim(1e-12))[1] == "rdp"
    assert worst_bound([charge], np.array([[5]]), claim(1e-9))[1] == "pld"


def test_noise_that_differs_from_round_to_round_is_charged_on_few_levels(monkeypatch):
    """From 70 to 100 survivors, as if each round had the noise of the next level below: at most a fiftieth more."""
    composed, compose = [], accounting._loss_epsilon
    monkeypatch.setattr(accounting, "_loss_epsilon", lambda parts, *other: composed.append(parts) or compose(parts, *other))
    noise = [math.sqrt(survivors / 70) for survivors in range(70, 101)]
    charges = {Charge(multiplier=z, sampling=0.05, discrete=True, deviation=90.0, size=9): 2 for z in noise}
    charged = epsilon_of(charges, claim())
    levels = composed[-1]
    assert len(levels) <= 12
    assert sum(times for _, times in levels) == 62
    exact = epsilon_of({Charge(multiplier=z, sampling=0.05): 2 for z in noise}, claim())
    assert exact <= charged <= 1.02 * exact
