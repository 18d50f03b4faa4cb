"""The papers' noise beside what it takes."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from sketchfed.errors import InputError
from sketchfed.privacy import formulas
from sketchfed.privacy.accounting import epsilon_of
from sketchfed.privacy.claims import Charge, Claim
from sketchfed.privacy.divergences import gaussian_delta

CLAIM = Claim(unit="client", adjacency="zero-out", observer="public", delta=1e-5)


def true_epsilon(multiplier, releases=1, sampling=1.0, claim=CLAIM):
    return epsilon_of({Charge(multiplier=multiplier, sampling=sampling): releases}, claim)


def test_one_release_at_epsilon_three():
    """The figures of the papers' formulas for ε = 3 and δ = 1e-5."""
    assert formulas.exact_gaussian(3, 1e-5) == pytest.approx(1.391, abs=1e-3)
    assert formulas.classical_gaussian(3, 1e-5) == pytest.approx(1.615, abs=1e-3)
    assert formulas.dome_theorem_3_3(3, 1e-5, rounds=1) == pytest.approx(3.199, abs=1e-3)
    assert formulas.song_2022_lemma_h_4(3, 1e-5) == pytest.approx(4.524, abs=1e-3)


@settings(deadline=None)
@given(st.floats(0.01, 50), st.floats(1e-12, 0.01))
def test_the_exact_noise_of_one_release_is_the_least(epsilon, delta):
    found = formulas.exact_gaussian(epsilon, delta)
    assert gaussian_delta(found, epsilon) <= delta
    assert gaussian_delta(found * (1 - 1e-6), epsilon) > delta


SOUND = {
    "dome": lambda e, d, k: formulas.dome_theorem_3_3(e, d, rounds=k),
    "advanced": lambda e, d, k: formulas.dwork_rothblum_vadhan_theorem_iii_3(e, d, releases=k),
    "zcdp": lambda e, d, k: formulas.bun_steinke_proposition_1_3(e, d, releases=k),
    "tight zcdp": lambda e, d, k: formulas.canonne_kamath_steinke_proposition_12(e, d, releases=k),
}


@pytest.mark.parametrize("name", SOUND)
@settings(deadline=None, max_examples=25)
@given(st.floats(0.05, 10), st.floats(1e-10, 1e-3), st.integers(1, 5_000))
def test_theorems_keep_their_promise(name, epsilon, delta, releases):
    claim = Claim(unit="client", adjacency="zero-out", observer="public", delta=delta)
    assert true_epsilon(SOUND[name](epsilon, delta, releases), releases, claim=claim) <= epsilon


@pytest.mark.parametrize(("name", "looseness"), [("dome", 2.3), ("advanced", 7.85), ("zcdp", 1.22), ("tight zcdp", 1.07)])
def test_how_much_too_much_they_ask_for_at_200_releases(name, looseness):
    tight = formulas.by_pld(CLAIM, 3, releases=200)
    assert SOUND[name](3, 1e-5, 200) / tight == pytest.approx(looseness, rel=0.01)


def test_dome_is_two_halves_of_the_conversion_from_zcdp():
    """ρ ≤ ε/2 and 2√(ρ·ln(1/δ)) ≤ ε/2 for ρ = 1/(2σ²) (Nicolas et al. 2025, Eq. 21)."""
    for epsilon in (0.5, 3.0, 400.0):
        rho = 1 / (2 * formulas.dome_theorem_3_3(epsilon, 1e-5, rounds=1) ** 2)
        assert max(rho, 2 * math.sqrt(rho * math.log(1e5))) == pytest.approx(epsilon / 2, rel=1e-12)


def test_advanced_composition_spends_all_of_epsilon():
    k, delta = 300, 1e-6
    noise = formulas.dwork_rothblum_vadhan_theorem_iii_3(2.0, delta, releases=k)
    step = math.sqrt(2 * math.log(1.25 * 2 * k / delta)) / noise
    assert step * math.sqrt(2 * k * math.log(2 / delta)) + k * step * math.expm1(step) == pytest.approx(2.0, rel=1e-9)


# Song et al. 2023, Theorem 6.2.


@pytest.mark.parametrize(
    ("epsilon", "releases", "truth"), [(3, 200, 2.06), (8, 200, 6.33), (50, 20_000, 60.5), (100, 20_000, 179)]
)
def test_theorem_6_2_with_classical_noise_is_too_much_for_small_epsilon_and_too_little_for_large(epsilon, releases, truth):
    """All inside its condition ε < √T."""
    noise = formulas.song_2023_theorem_6_2(epsilon, 1e-5, releases=releases)
    assert epsilon < math.sqrt(releases)
    assert true_epsilon(noise, releases) == pytest.approx(truth, rel=5e-3)


def test_theorem_6_2_does_not_hold_for_gaussians_whose_steps_are_exact():
    """200 releases of (ε̂, δ̂) = (8/√200, 1e-5/200) are not (8, 1e-5), though ε̂ < 1/√K at K = 1."""
    noise = formulas.song_2023_theorem_6_2(8, 1e-5, releases=200, exact=True)
    assert gaussian_delta(noise, 8 / math.sqrt(200)) <= 1e-5 / 200
    assert true_epsilon(noise, 200) == pytest.approx(8.29, abs=0.01)


@pytest.mark.parametrize(("epsilon", "releases", "truth"), [(3, 200, 0.56), (3, 20, 0.56), (1, 200, 0.127)])
def test_theorem_6_2_is_no_composition_theorem(epsilon, releases, truth):
    """Randomised response of ε̂ each, δ̂ = 0: the δ that belongs to √k·ε̂ should be 0."""
    step = epsilon / math.sqrt(releases)
    honest = np.arange(releases + 1)
    chance = binom.pmf(honest, releases, 1 / (1 + math.exp(-step)))
    delta = (chance * np.maximum(-np.expm1(epsilon - (2 * honest - releases) * step), 0)).sum()
    assert delta == pytest.approx(truth, abs=0.01)


@pytest.mark.parametrize("sampling", [0.01, 0.3, 1.0])
def test_sampling_of_one_release_is_undone(sampling):
    epsilon, delta = formulas.before_sampling(0.2, 1e-7, sampling)
    assert math.log1p(sampling * math.expm1(epsilon)) == pytest.approx(0.2)
    assert delta * sampling == pytest.approx(1e-7)
    assert true_epsilon(formulas.exact_gaussian(epsilon, delta), sampling=sampling, claim=Claim(
        unit="client", adjacency="add-remove", observer="public", delta=1e-7)) <= 0.2 * (1 + 3e-4)  # fmt: skip


# All of them together.


def test_the_comparison_ends_with_the_tight_one_and_flags_what_is_not_kept():
    rows = {row.method.strip(): row for row in formulas.compared(CLAIM, 8, rounds=200, releases=200)}
    assert list(rows)[-1] == "PLD"
    assert rows["PLD"].against_tight == 1
    assert rows["PLD"].epsilon == pytest.approx(8, rel=1e-3)
    broken = {name for name, row in rows.items() if not row.kept}
    assert broken == {"the same, exact steps", "Song et al. 2022, Lemma H.4"}


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("sampling", [0.1, 1.0])
def test_no_sound_method_asks_for_less_than_the_tight_one(adjacency, sampling):
    claim = Claim(unit="client", adjacency=adjacency, observer="public", delta=1e-5)
    rows = formulas.compared(claim, 3, rounds=50, releases=50, sampling=sampling)
    assert all(row.against_tight >= 1 for row in rows if row.kept)
    assert ("RDP" in {row.method for row in rows}) == (adjacency == "add-remove" or sampling == 1)


def test_with_sampling_what_cannot_amplify_asks_for_much_more():
    rows = {row.method: row for row in formulas.compared(CLAIM, 3, rounds=200, releases=200, sampling=0.1)}
    assert rows["zCDP, tight conversion"].against_tight > 9
    assert rows["RDP"].against_tight < 1.1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"epsilon": 0, "rounds": 1, "releases": 1}, "epsilon must be a positive number"),
        ({"epsilon": 1, "rounds": 0, "releases": 1}, "rounds must be at least 1"),
        ({"epsilon": 1, "rounds": 1, "releases": 0}, "releases must be at least 1"),
    ],
)
def test_wrong_input_is_refused(arguments, why):
    with pytest.raises(InputError, match=why):
        formulas.compared(CLAIM, arguments.pop("epsilon"), **arguments)
