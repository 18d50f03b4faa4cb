"""What the auditor computes, how often it is wrong about honest mechanisms, and whether it catches dishonest ones."""

import math
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import scipy.stats
import torch

from sketchfed.errors import InputError
from sketchfed.privacy.audit import audit, epsilon_lower_bound, orthogonal_canaries, p_value
from sketchfed.privacy.discrete import DiscreteGaussian
from sketchfed.privacy.gaussian import GaussianNoise
from sketchfed.seeds import PublicSeed, SecretSeed

DELTA = 1e-5
EXACT = {1: 3.73064, 3: 1.39064}
"""The least multiplier of a single Gaussian sum with (ε, 1e-5)-privacy, rounded up (Balle & Wang 2018, Thm 8)."""


def gaussian_delta(multiplier: float, epsilon: float) -> float:
    """Balle & Wang 2018, Thm 8, for a sensitivity of 1."""
    at = scipy.stats.norm.cdf
    half, far = 1 / (2 * multiplier), epsilon * multiplier
    return at(half - far) - math.exp(epsilon) * at(-half - far)


def test_the_multipliers_used_here_are_as_small_as_they_can_be():
    for epsilon, multiplier in EXACT.items():
        assert gaussian_delta(multiplier, epsilon) <= DELTA < gaussian_delta(multiplier - 1e-4, epsilon)


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct", "delta", "lower"),
    [
        (1000, 100, 100, 1e-5, 3.465376),
        (1000, 100, 90, 1e-5, 1.626143),
        (1000, 100, 100, 0.0, 3.492965),
        (10_000, 1000, 700, 1e-5, 0.729253),
        (1000, 100, 100, 1e-3, 0.809014),
        (500, 50, 20, 1e-5, 0.0),
    ],
)
def test_lower_bounds_are_those_of_an_independent_implementation(canaries, guesses, correct, delta, lower):
    found = epsilon_lower_bound(canaries=canaries, guesses=guesses, correct=correct, delta=delta)
    assert found == pytest.approx(lower, abs=2e-6)


def test_p_values_are_those_of_an_independent_implementation():
    assert p_value(canaries=1000, guesses=100, correct=90, epsilon=1.0, delta=1e-5) == pytest.approx(8.412885614e-4)
    assert p_value(canaries=1000, guesses=100, correct=80, epsilon=0.5, delta=1e-4) == pytest.approx(7.767348521e-3)


@pytest.mark.parametrize("guesses", [2, 10, 100, 5000])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 1 - 1e-6])
def test_without_delta_all_guesses_correct_have_a_closed_form(guesses, confidence):
    """(e^ε/(1 + e^ε))^guesses = 1 − confidence."""
    found = epsilon_lower_bound(canaries=guesses, guesses=guesses, correct=guesses, delta=0.0, confidence=confidence)
    root = (1 - confidence) ** (-1 / guesses) - 1
    assert found == pytest.approx(max(0.0, -math.log(root)), abs=1e-8)


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 3.0, 6.0])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_the_best_attack_on_randomised_response_exceeds_epsilon_no_more_often_than_stated(epsilon, delta, confidence):
    """No chance involved: the probability is summed over all numbers of correct guesses.

    Each canary's bit is shown with probability δ and else goes through ε-randomised response, which is (ε, δ)-private.
    """
    guesses = 200
    accuracy = delta + (1 - delta) / (1 + math.exp(-epsilon))
    chances = scipy.stats.binom.pmf(np.arange(guesses + 1), guesses, accuracy)
    refuted = [
        p_value(canaries=guesses, guesses=guesses, correct=correct, epsilon=epsilon, delta=delta) < 1 - confidence
        for correct in range(guesses + 1)
    ]
    assert chances[refuted].sum() <= 1 - confidence
    assert delta > 1e-5 or epsilon > 3 or chances[refuted].sum() > (1 - confidence) / 10


def test_more_correct_guesses_never_lower_the_bound_and_it_is_where_the_p_value_crosses():
    bound = partial(epsilon_lower_bound, canaries=300, guesses=60, delta=DELTA)
    bounds = [bound(correct=correct) for correct in range(61)]
    assert all(a <= b for a, b in pairwise(bounds))
    for correct, lower in enumerate(bounds):
        at = partial(p_value, canaries=300, guesses=60, correct=correct, delta=DELTA)
        assert at(epsilon=lower + 1e-6) >= 0.05
        assert lower == 0 or at(epsilon=lower - 1e-6) < 0.05


def noisy_scores(included: np.ndarray, *, multiplier: float, seed: int) -> np.ndarray:
    """What the sum of orthogonal canaries of norm 1 shows of each, under normal noise."""
    return included + multiplier * np.random.default_rng([seed, 77]).normal(size=included.size)


@pytest.mark.parametrize("epsilon", [1, 3])
def test_an_honest_gaussian_is_refuted_no_more_often_than_stated(epsilon):
    """100 audits; more than `allowed` violations have probability 1e-6 if each has 0.05."""
    results = [
        audit(partial(noisy_scores, multiplier=EXACT[epsilon], seed=seed), canaries=1000, delta=DELTA, seed=PublicSeed(seed))
        for seed in range(100)
    ]
    allowed = scipy.stats.binom.isf(1e-6, 100, 0.05)
    assert sum(result.refutes(epsilon) for result in results) <= allowed
    assert max(result.lower for result in results) > 0.2  # it does see something


def test_a_quarter_of_the_noise_is_caught_every_time():
    for seed in range(20):
        run = partial(noisy_scores, multiplier=EXACT[3] / 4, seed=seed)
        result = audit(run, canaries=2000, guesses=400, delta=DELTA, seed=PublicSeed(seed))
        assert result.refutes(3), result


def gaussian_pipeline(included: np.ndarray, *, noise: float) -> torch.Tensor:
    canaries = orthogonal_canaries(count=2000, size=2100, clip=0.5, seed=PublicSeed(1))
    mechanism = GaussianNoise(size=2100, clip=0.5, deviation=0.5 * EXACT[3] * noise)
    total = mechanism.clipped_sum(canaries[torch.from_numpy(included)])
    return canaries @ mechanism.noised(total, SecretSeed.insecure(1))


def discrete_pipeline(included: np.ndarray, *, noise: float) -> torch.Tensor:
    """Ten clients with up to 200 examples each, whose integers are added modulo a power of two."""
    canaries = orthogonal_canaries(count=2000, size=2100, clip=0.5, seed=PublicSeed(1))
    right = DiscreteGaussian.planned(size=2100, clip=0.5, multiplier=EXACT[3], clients=10, least=10, units=200)
    mechanism = DiscreteGaussian(size=2100, clip=0.5, deviation=noise * right.deviation, scale=right.scale, bits=right.bits)
    total = torch.zeros(2100, dtype=torch.int64)
    for client, (rows, marks) in enumerate(zip(canaries.split(200), torch.from_numpy(included).split(200), strict=True)):
        secret = SecretSeed.insecure(1).child("client", client)
        total += mechanism.noised(mechanism.clipped_sum(rows[marks], secret, PublicSeed(2)), secret)
    return canaries @ mechanism.recovered(total % 2**mechanism.bits, PublicSeed(2))


@pytest.mark.parametrize("pipeline", [gaussian_pipeline, discrete_pipeline])
def test_our_mechanisms_pass_and_a_quarter_of_their_noise_does_not(pipeline):
    check = partial(audit, canaries=2000, guesses=400, delta=DELTA, seed=PublicSeed(3))
    honest, broken = check(partial(pipeline, noise=1.0)), check(partial(pipeline, noise=0.25))
    assert 0.3 < honest.lower < 3
    assert broken.refutes(3), broken
    assert not honest.refutes(3)


def test_canaries_are_at_right_angles_as_long_as_the_clip_and_flat():
    rows = orthogonal_canaries(count=300, size=1000, clip=2.0, seed=PublicSeed(1)).double()
    assert torch.allclose(rows @ rows.T, 4 * torch.eye(300, dtype=torch.float64), atol=1e-5)
    assert rows.abs().max() < 0.6
    assert (rows != orthogonal_canaries(count=300, size=1000, clip=2.0, seed=PublicSeed(2))).any()
    for wrong in ({"count": 11}, {"clip": 0.0}, {"count": 0}, {"size": 0}):
        with pytest.raises(InputError):
            orthogonal_canaries(**{"count": 5, "size": 10, "clip": 1.0, "seed": PublicSeed(1)} | wrong)


def test_half_of_the_guesses_say_in_and_half_out():
    """A perfect score gets all guesses right, its negative none, and a constant about half: odds of failure 1e-6."""
    check = partial(audit, canaries=1000, guesses=100, delta=DELTA, seed=PublicSeed(4))
    perfect = check(lambda included: included.astype(float))
    assert perfect.correct == perfect.guesses == 100
    assert perfect.lower == pytest.approx(3.465376, abs=2e-6)
    assert check(lambda included: -included.astype(float)).correct == 0
    blind = check(lambda included: np.zeros(1000))
    assert blind.lower == 0
    assert abs(blind.correct - 50) < 25
    assert str(perfect) == "ε ≥ 3.47 at δ = 1e-05 with confidence 0.95 (100 of 100 guesses about 1000 canaries right)"
    assert audit(lambda included: included, canaries=50, delta=0.0, seed=PublicSeed(4)).guesses == 4


def test_what_cannot_be_audited_is_refused():
    for wrong in (
        {"guesses": 101},
        {"guesses": 2000},
        {"canaries": 0},
        {"delta": -0.1},
        {"delta": math.nan},
        {"confidence": 1.0},
    ):
        arguments = {"canaries": 1000, "delta": DELTA, "seed": PublicSeed(4)} | wrong
        with pytest.raises(InputError):
            audit(lambda included: included, **arguments)
    for scores in (np.zeros(3), np.full(1000, math.nan)):
        with pytest.raises(InputError, match="scores"):
            audit(lambda included, scores=scores: scores, canaries=1000, delta=DELTA, seed=PublicSeed(4))
    for correct, guesses in ((5, 4), (-1, 4), (2.0, 4), (2, 2000)):
        with pytest.raises(InputError):
            epsilon_lower_bound(canaries=1000, guesses=guesses, correct=correct, delta=DELTA)
    with pytest.raises(InputError, match="ε"):
        p_value(canaries=10, guesses=5, correct=3, epsilon=-1.0, delta=DELTA)
