"""The closed forms of β and of the error, against simulation and against each other."""

import numpy as np
import pytest
import torch

from odds import mean_interval
from sketchfed import PublicSeed
from sketchfed.codecs import spatial_law
from sketchfed.codecs.ensembles import ENSEMBLES

LAWS = (spatial_law.free_projections, spatial_law.gaussian, spatial_law.sampling)


def eigenvalues(name: str, dim: int, size: int, clients: int, trial: int) -> np.ndarray:
    """Those of S that are not zero, which are those of GGᵀ."""
    seeds = [PublicSeed(trial).child("client", client) for client in range(clients)]
    values = np.linalg.eigvalsh(ENSEMBLES[name](dim, size, seeds).gram())
    return values[values > 1e-9]


@pytest.mark.parametrize("name", ENSEMBLES)
@pytest.mark.parametrize(("clients", "size"), [(10, 12), (8, 25)])
def test_the_integrals_are_those_of_simulated_maps(name, clients, size):
    """At dim 160, n·size below and above dim: ∫λ/T and, where T is not nearly zero, ∫λ/T² and ∫λ²/T².

    False alarm below 2e-5 a case by Student's t, with 0.5 % allowed for laws that are exact for large dim only.
    """
    beliefs = (0.3, 0.8) if name == "gaussian" else (-0.05, 0.3, 0.8)
    dim, simulated = 160, {rho: [] for rho in beliefs}
    for trial in range(40):
        values = eigenvalues(name, dim, size, clients, trial)
        for rho, rows in simulated.items():
            scale = 1 + rho * (values - 1)
            rows.append([(values / scale).sum(), (values / scale**2).sum(), (values**2 / scale**2).sum()])
    for rho, rows in simulated.items():
        law = ENSEMBLES[name].law(clients, size / dim, rho)
        for samples, expected in zip(torch.tensor(rows).T / dim, (law.first, law.second, law.square), strict=True):
            low, high = mean_interval(samples, false_alarm=2e-6)
            assert low - 0.005 * expected <= expected <= high + 0.005 * expected


@pytest.mark.parametrize("law", LAWS)
def test_without_correlation_beta_is_dim_over_size_and_one_client_knows_no_correlation(law):
    assert law(20, 0.05, 0.0).beta(20) == pytest.approx(20)
    if law is not spatial_law.gaussian:
        assert law(1, 0.05, 0.7).beta(1) == pytest.approx(20)


@pytest.mark.parametrize("law", LAWS)
def test_the_laws_are_continuous_where_their_formulas_change(law):
    for rho, near in ((0.0, 1e-6), (1.0, 1 - 1e-6)):
        for share in (0.02, 0.07):  # n·share below and above 1
            here, there = law(20, share, rho), law(20, share, near)
            assert there.first == pytest.approx(here.first, rel=1e-3)
            assert there.square == pytest.approx(here.square, rel=1e-3)
            assert there.second == pytest.approx(here.second, rel=1e-3)


@pytest.mark.parametrize("law", [spatial_law.free_projections, spatial_law.sampling])
@pytest.mark.parametrize("correlation", [-0.5, 0.0, 3.0, 12.0])
def test_the_true_correlation_is_the_best_belief_and_has_the_short_formula(law, correlation):
    n, share = 21, 20 / 1024
    best = law(n, share, correlation / (n - 1))
    assert best.relative_error(n, correlation) == pytest.approx(best.beta(n) - 1 - correlation, rel=1e-9)
    for wrong in (correlation / (n - 1) + shift for shift in (-0.02, 0.02)):
        assert law(n, share, wrong).relative_error(n, correlation) > best.relative_error(n, correlation)


def test_full_correlation_has_the_error_of_the_papers_theorem():
    """Jiang et al. 2023, Thm 4.3 with δ = 0: (dim/(n·size) − 1)‖x‖² for n·size ≤ dim, where Σ‖xᵢ‖²/n² = ‖x‖²/n."""
    n, size, dim = 10, 60, 1024
    error = spatial_law.free_projections(n, size / dim, 1.0).relative_error(n, n - 1) / n
    assert error == pytest.approx(dim / (n * size) - 1)


def test_more_numbers_than_coordinates_are_worth_it_where_vectors_agree():
    """Against Jiang et al. 2023, App. A.2, which takes S for its mean and finds the error of Rand-k for n·size ≫ dim."""
    n = 50
    for times, least in ((1, 2.5), (5, 8), (25, 9)):  # n·size = times·dim
        share, correlation = times / n, 0.9 * (n - 1)
        rand_k = 1 / share - 1
        assert spatial_law.free_projections(n, share, 0.9).relative_error(n, correlation) < rand_k / least
        assert spatial_law.free_projections(n, share, 1.0).relative_error(n, n - 1) == pytest.approx(0, abs=1e-9)


def test_no_correlation_has_the_error_of_rand_k():
    """Jiang et al. 2023, Thm 4.4: (dim/size − 1)·Σ‖xᵢ‖²/n²."""
    for law in (spatial_law.free_projections, spatial_law.sampling):
        assert law(10, 60 / 1024, 0.0).relative_error(10, 0.0) == pytest.approx(1024 / 60 - 1)


def test_believing_in_full_correlation_is_dangerous_where_all_numbers_just_fill_the_space():
    """n·size = dim: the smallest eigenvalues of S come near zero, and what differs between clients is divided by them."""
    n, dim = 10, 1024
    rand_k = dim / 102 - 1
    assert spatial_law.free_projections(n, 102 / dim, 1.0).relative_error(n, 0.0) > 10 * rand_k
    assert spatial_law.sampling(n, 102 / dim, 1.0).relative_error(n, 0.0) < 2 * rand_k


def test_projections_beat_sampling_wherever_vectors_agree():
    for n, sizes in ((5, (20, 100, 200)), (21, (5, 20, 48)), (51, (4, 10, 20))):
        for size in sizes:
            for correlation in np.linspace(0, n - 1, 6)[1:-1]:
                rho = correlation / (n - 1)
                projected = spatial_law.free_projections(n, size / 1024, rho).relative_error(n, correlation)
                assert projected < spatial_law.sampling(n, size / 1024, rho).relative_error(n, correlation)
