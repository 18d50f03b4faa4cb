"""ε against published values, other libraries, and integrals worked out here."""

import math
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from charges import claim, spent
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from sketchfed.errors import InputError, UnknownNameError
from sketchfed.privacy import accounting
from sketchfed.privacy.accounting import calibrated, epsilon_of, worst_epsilon
from sketchfed.privacy.claims import Charge, Claim, check_delta
from sketchfed.privacy.divergences import (
    gaussian_delta,
    gaussian_epsilon,
    interval,
    sampled_loss,
)


def normal(mean, deviation):
    return lambda x: stats.norm.pdf(x, mean, deviation)


def mixture(sampling, mean, deviation):
    return lambda x: (1 - sampling) * stats.norm.pdf(x, 0, deviation) + sampling * stats.norm.pdf(x, mean, deviation)


def hockey_stick(p, q, epsilon, reach, points=20_001):
    """∫[p − e^ε·q]₊, by Simpson's rule."""
    x = np.linspace(-reach, reach, points)
    return integrate.simpson(np.maximum(p(x) - math.exp(epsilon) * q(x), 0), x=x)


def integrated_epsilon(p, q, delta, reach):
    """The larger ε of both directions."""
    found = [0.0]
    for one, other in ((p, q), (q, p)):
        if hockey_stick(one, other, 0.0, reach) > delta:
            found.append(optimize.brentq(lambda at, a=one, b=other: hockey_stick(a, b, at, reach) - delta, 0, 50))
    return max(found)


# One Gaussian, and many.


def test_one_gaussian_is_that_of_balle_and_wang():
    assert spent(1.391) == pytest.approx(3, rel=1e-3)
    assert calibrated(claim(), 3, lambda z: {Charge(multiplier=z): 1}) == pytest.approx(1.391, rel=1e-3)


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 5.0, 40.0])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 3.0])
def test_delta_of_one_gaussian_is_the_integral(multiplier, epsilon):
    expected = hockey_stick(normal(1, multiplier), normal(0, multiplier), epsilon, 1 + 12 * multiplier, 400_001)
    assert gaussian_delta(multiplier, epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-14)


@given(st.floats(0.05, 100), st.floats(1e-14, 0.1))
def test_epsilon_of_one_gaussian_is_the_inverse_and_never_too_small(multiplier, delta):
    epsilon = gaussian_epsilon(multiplier, delta)
    assert gaussian_delta(multiplier, epsilon) <= delta
    assert epsilon == 0 or gaussian_delta(multiplier, epsilon * (1 - 1e-9)) > delta * (1 - 1e-9)


def test_gaussians_of_any_kind_compose_to_one():
    mixed = {Charge(multiplier=3.0): 5, Charge(multiplier=7.0, steps=4): 9}
    assert epsilon_of(mixed, claim()) == pytest.approx(spent(1 / math.sqrt(5 / 9 + 36 / 49)), rel=1e-9)
    assert spent(20.0, 200) == pytest.approx(spent(20 / math.sqrt(200)), rel=1e-9)


def test_nothing_costs_nothing():
    assert epsilon_of({}, claim()) == 0
    assert epsilon_of({Charge(multiplier=1.0): 0}, claim()) == 0


def test_replacing_a_unit_moves_the_sum_twice_as_far():
    for accountant in ("pld", "rdp"):
        both = [claim(adjacency=name, accountant=accountant) for name in ("replace-one", "add-remove")]
        assert spent(2.0, 3, about=both[0]) == pytest.approx(spent(1.0, 3, about=both[1]), rel=1e-12)


# Sampled Gaussians.


@pytest.mark.parametrize(("multiplier", "sampling"), [(1.0, 0.1), (0.7, 0.01), (2.0, 0.5)])
@pytest.mark.parametrize("delta", [1e-3, 1e-5])
@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out", "replace-one"])
def test_one_sampled_gaussian_is_the_integral_and_not_below(multiplier, sampling, delta, adjacency):
    other = mixture(sampling, -1, multiplier) if adjacency == "replace-one" else normal(0, multiplier)
    expected = integrated_epsilon(mixture(sampling, 1, multiplier), other, delta, 2 + 14 * multiplier)
    found = spent(multiplier, sampling=sampling, about=claim(delta, adjacency))
    assert expected * (1 - 1e-6) <= found <= expected * (1 + 3e-4)


def test_different_sampled_gaussians_compose_as_their_product():
    """Two sampled steps and an unsampled one: a three-dimensional integral, by summing privacy losses on a grid."""
    steps = [(1.0, 0.2), (1.5, 0.4), (3.0, 1.0)]
    charges = Counter({Charge(multiplier=z, sampling=q): 1 for z, q in steps})
    found = epsilon_of(charges, claim(1e-3))

    def delta_at(epsilon, flipped):
        loss, mass = np.zeros(1), np.ones(1)
        for z, q in steps:
            x = np.linspace(-6 * z - 1, 6 * z + 1, 160)
            p, base = mixture(q, 1, z)(x), normal(0, z)(x)
            p, base = (base, p) if flipped else (p, base)
            loss = (loss[:, None] + np.log(p / base)).reshape(-1)
            mass = (mass[:, None] * p * (x[1] - x[0])).reshape(-1)
        return (mass * np.maximum(-np.expm1(epsilon - loss), 0)).sum()

    assert max(delta_at(found, flipped) for flipped in (False, True)) == pytest.approx(1e-3, rel=2e-3)


def test_no_pair_of_vectors_is_easier_to_tell_apart_than_two_opposite_ones():
    """Replace-one under Poisson sampling: that ±v of full length dominate, by integrals over the plane."""
    z, q = 0.8, 0.2
    x, y = np.meshgrid(*[np.linspace(-7, 7, 401)] * 2, indexing="ij")
    cell = (14 / 400) ** 2

    def density(v):
        shifted = stats.norm.pdf(x - v[0], 0, z) * stats.norm.pdf(y - v[1], 0, z)
        return (1 - q) * stats.norm.pdf(x, 0, z) * stats.norm.pdf(y, 0, z) + q * shifted

    lengths, angles = (0.0, 0.5, 1.0), np.linspace(0, np.pi, 5)
    for epsilon in (0.05, 0.5, 1.5):
        found = {}
        for length in lengths:
            for angle in angles:
                p, other = density((1.0, 0.0)), density((length * np.cos(angle), length * np.sin(angle)))
                for flipped, (a, b) in enumerate(((p, other), (other, p))):
                    found[length, angle, flipped] = np.maximum(a - math.exp(epsilon) * b, 0).sum() * cell
        assert max(found, key=found.get)[:2] == (1.0, np.pi)


@pytest.mark.parametrize(("multiplier", "sampling", "times"), [(0.78, 0.01, 300), (2.0, 1e-3, 10_000)])
def test_the_grid_is_fine_enough_and_errs_on_the_safe_side(multiplier, sampling, times):
    fine = sampled_loss(multiplier, sampling, False, interval(multiplier, sampling) / 8).self_compose(times)
    truth = fine.get_epsilon_for_delta(1e-5)
    assert truth * (1 - 1e-9) <= spent(multiplier, times, sampling=sampling) <= truth * (1 + 3e-4)


def test_events_are_those_of_dp_accounting():
    from dp_accounting.pld import PLDAccountant

    charge = Charge(multiplier=1.2, sampling=0.05, steps=3)
    accountant = PLDAccountant().compose(charge.event, 20)
    assert epsilon_of({charge: 20}, claim()) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)
    assert "Composed" not in repr(Charge(multiplier=1.0).event)
    assert "Poisson" not in repr(Charge(multiplier=1.0, steps=2).event)


# Many units.


def test_the_worst_unit_counts():
    charges = [Charge(multiplier=2.0, sampling=0.1), Charge(multiplier=3.0)]
    counts = np.array([[5, 0], [0, 3], [4, 1], [4, 0], [0, 0]])
    each = [epsilon_of(dict(zip(charges, row, strict=True)), claim()) for row in counts.tolist()]
    assert worst_epsilon(charges, counts, claim()) == max(each)


def test_many_different_units_take_few_compositions_and_are_not_below_the_truth(monkeypatch):
    charges = [Charge(multiplier=2.0 + index / 100, sampling=0.05) for index in range(6)]
    counts = np.random.default_rng(1).integers(0, 5, (1_000, 6))
    compose, composed = accounting._loss_epsilon, []
    monkeypatch.setattr(accounting, "_loss_epsilon", lambda *parts: composed.append(parts) or compose(*parts))
    found = worst_epsilon(charges, counts, claim())
    assert len(composed) <= accounting._PROFILES
    some = [epsilon_of(dict(zip(charges, row, strict=True)), claim()) for row in counts[:5].tolist()]
    assert max(some) <= found <= 1.5 * epsilon_of({charges[0]: int(counts.sum(axis=1).max())}, claim())


def test_a_call_each_round_computes_the_loss_of_a_round_once():
    spent(0.78, 1, sampling=0.01)
    before = sampled_loss.cache_info().misses
    for times in range(100, 110):
        spent(0.78, times, sampling=0.01)
    assert sampled_loss.cache_info().misses == before


@settings(max_examples=6, deadline=None)
@given(st.floats(0.6, 5), st.floats(0.01, 0.9), st.integers(1, 300), st.floats(1.01, 1.5))
def test_more_is_never_cheaper(multiplier, sampling, times, factor):
    here = spent(multiplier, times, sampling=sampling)
    assert spent(multiplier, times + 1, sampling=sampling) >= here
    assert spent(multiplier * factor, times, sampling=sampling) <= here * (1 + 3e-4)
    assert spent(multiplier, times, sampling=min(1.0, sampling * factor)) >= here * (1 - 3e-4)


# Calibration.


@settings(max_examples=60, deadline=None)
@given(st.floats(0.05, 20), st.integers(1, 2_000), st.floats(1e-9, 1e-3), st.sampled_from(["add-remove", "replace-one"]))
def test_calibrated_noise_keeps_epsilon_and_is_the_least(epsilon, times, delta, adjacency):
    about = claim(delta, adjacency)
    found = calibrated(about, epsilon, lambda z: {Charge(multiplier=z): times})
    assert spent(found, times, about=about) <= epsilon
    assert spent(found / 1.0002, times, about=about) > epsilon


@pytest.mark.parametrize(("epsilon", "sampling", "times", "discrete"), [(1, 0.1, 200, False), (8, 0.1, 30, True)])
def test_calibration_with_sampling_is_as_tight_and_tries_little(epsilon, sampling, times, discrete):
    tried = []
    found = calibrated(
        claim(), epsilon, lambda z: tried.append(z) or {Charge(multiplier=z, sampling=sampling, discrete=discrete): times}
    )
    assert len(tried) <= 20
    assert spent(found, times, sampling=sampling, discrete=discrete) <= epsilon
    assert spent(found / 1.001, times, sampling=sampling, discrete=discrete) > epsilon


def test_an_epsilon_that_everything_keeps_takes_the_least_noise():
    assert spent(calibrated(claim(0.5), 1e5, lambda z: {Charge(multiplier=z): 1}), about=claim(0.5)) <= 1e5


def test_slack_that_leaves_no_room_is_said():
    with pytest.raises(InputError, match=r"no noise keeps epsilon 1 at δ = 1e-05.*less slack"):
        calibrated(claim(), 1, lambda z: {Charge(multiplier=z, discrete=True, slack=1.0): 10})


@pytest.mark.parametrize(("multiplier", "sampling", "steps"), [(0.04, 0.5, 1), (1.0, 1 - 1e-12, 3), (1.0, 0.1, 1_000_000)])
def test_sampled_noise_that_hides_nothing_is_charged_as_unsampled(multiplier, sampling, steps):
    """A grid for it would take minutes and gigabytes."""
    assert spent(multiplier, sampling=sampling, steps=steps) == spent(multiplier, steps=steps)


def test_noise_just_strong_enough_for_a_grid_is_charged_less_than_unsampled():
    assert spent(0.06, sampling=0.1) < spent(0.06)
    assert 300 < spent(1.0, sampling=0.1, steps=160_000) < spent(1.0, steps=160_000)


# Claims and bad input.


def test_a_claim_says_what_its_epsilon_is_about():
    about = Claim(unit="client", adjacency="zero-out", observer="server", delta=1e-5)
    assert about.text == "at δ = 1e-05, client level, zero-out, against the server (PLD)"
    assert replace(about, observer="public").text.endswith("against the public (PLD)")
    assert "INSECURE" in replace(about, insecure=True).text


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: claim(0.0), "delta must be above 0 and below 1, got 0.0"),
        (lambda: claim(1.0), "delta must be above 0 and below 1, got 1.0"),
        (lambda: claim(math.nan), "delta must be"),
        (lambda: Charge(multiplier=0.0), "multiplier must be a positive number, got 0.0: without noise there is no ε"),
        (lambda: Charge(multiplier=math.inf), "multiplier must be"),
        (lambda: Charge(multiplier=1e-14), "multiplier 1e-14 is not between 1e-13 and 1e\\+15"),
        (lambda: Charge(multiplier=1.0, steps=10**7), "steps must be from 1 to 1,000,000"),
        (lambda: Charge(multiplier=1.0, discrete=True, deviation=3.0), "describe discrete noise together"),
        (lambda: Charge(multiplier=1.0, deviation=3.0, size=1), "describe discrete noise together"),
        (lambda: Charge(multiplier=1.0, discrete=True, deviation=0.0, size=1), "deviation must be a positive number"),
        (lambda: Charge(multiplier=1.0, discrete=True, deviation=3.0, size=0), "size from 1"),
        (lambda: Charge(multiplier=1.0, sampling=0.0), "sampling must be above 0 .* and at most 1, got 0.0"),
        (lambda: Charge(multiplier=1.0, sampling=1.5), "sampling must be"),
        (lambda: Charge(multiplier=1.0, steps=0), "steps must be from 1"),
        (lambda: Charge(multiplier=1.0, discrete=True, slack=-1.0), "slack must be 0 or a positive"),
        (lambda: Charge(multiplier=1.0, slack=1.0), "slack 1 is about discrete noise"),
        (lambda: calibrated(claim(), 0, lambda z: {Charge(multiplier=z): 1}), "epsilon must be a positive number, got 0"),
        (lambda: calibrated(claim(), math.inf, lambda z: {Charge(multiplier=z): 1}), "epsilon must be"),
        (lambda: check_delta(1e-2, 1000), "delta 0.01 is not between 0 and 1/1,000 = 0.001.*such as 1e-4"),
        (lambda: check_delta(1e-3, 1000), "publishing one of 1,000 units"),
        (lambda: check_delta(1e-3, 0), "units must be at least 1"),
        (lambda: spent(1.0, sampling=0.1, about=claim(1e-12)), "delta 1e-12 is below 1e-10.*accountant rdp"),
        (lambda: spent(1.0, -1), "cannot be made -1 times"),
        (
            lambda: spent(1.0, sampling=0.1, about=claim(adjacency="replace-one", accountant="rdp")),
            "replace-one with sampling 0.1 has no known bound",
        ),
    ],
)
def test_wrong_input_is_refused(make, why):
    with pytest.raises(InputError, match=why):
        make()


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"no adjacency named 'add_remove'. Did you mean 'add-remove'"):
        claim(adjacency="add_remove")


def test_a_delta_below_one_in_all_units_is_accepted():
    check_delta(9e-4, 1000)


def test_the_accountant_is_imported_only_when_it_is_needed():
    import subprocess

    code = "import sys, sketchfed.privacy.accounting, sketchfed.privacy.ledger; print('dp_accounting' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
