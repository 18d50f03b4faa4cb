"""The decoders, against the paper's own: eigenvectors of S, T of its eigenvalues, a pseudo-inverse."""

import logging
from itertools import product

import numpy as np
import pytest
import torch

from sketchfed import PublicSeed
from sketchfed.codecs.ensemble_base import Ensemble
from sketchfed.codecs.ensembles import ENSEMBLES
from sketchfed.codecs.solver import cheaper_decoder, expected_steps, solve
from sketchfed.errors import InputError

CASES = [(name, dim, size, 6) for name in ENSEMBLES for dim, size in ((128, 12), (100, 12), (90, 30))]


def made(name: str, dim: int, size: int, clients: int) -> Ensemble:
    return ENSEMBLES[name](dim, size, [PublicSeed(7).child("client", client) for client in range(clients)])


def by_eigenvectors(ensemble: Ensemble, y: torch.Tensor, rho: float) -> torch.Tensor:
    """Jiang et al. 2023, Eq. 5 without β̄, literally."""
    rows = np.stack([ensemble.forward(unit).reshape(-1).numpy() for unit in torch.eye(ensemble.dim).double()], axis=1)
    values, vectors = np.linalg.eigh(rows.T @ rows)
    values[np.abs(values) < 1e-9] = 0
    transformed = vectors @ np.diag(1 + rho * (values - 1)) @ vectors.T
    return torch.from_numpy(np.linalg.pinv(transformed, rcond=1e-9, hermitian=True) @ (rows.T @ y.reshape(-1).numpy()))


@pytest.mark.parametrize(("name", "dim", "size", "clients"), CASES)
@pytest.mark.parametrize(("decoder", "rho"), [*product(["dual", "cg"], [-0.15, 0.0, 0.97, 1.0]), ("auto", 0.5)])
def test_both_decoders_solve_the_papers_equation(name, dim, size, clients, decoder, rho):
    ensemble = made(name, dim, size, clients)
    if name == "gaussian" and rho < 0:
        pytest.skip("eigenvalues of Gaussian maps exceed n, where T may be zero")
    y = torch.randn(clients, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = solve(ensemble, y, rho, decoder=decoder, tolerance=1e-13)
    expected = by_eigenvectors(ensemble, y, rho)
    condition = 1e3 if rho == 1.0 else 1  # in S itself, whose smallest eigenvalues are near zero when n·size is near dim
    assert float((found - expected).abs().max()) < 1e-9 * condition * float(expected.abs().max())


def test_one_client_has_nothing_to_correlate_with():
    ensemble = made("srht", 64, 8, 1)
    y = torch.randn(1, 8, dtype=torch.float64)
    assert torch.equal(solve(ensemble, y, 0.9), ensemble.adjoint(y))


def test_float32_comes_out_as_float32_and_as_near_as_asked_for():
    ensemble = made("srht", 1_000, 40, 8)
    y = torch.randn(8, 40)
    exact = solve(ensemble, y.double(), 0.5, decoder="dual")
    for decoder in ("dual", "cg"):
        found = solve(ensemble, y, 0.5, decoder=decoder, tolerance=1e-5)
        assert found.dtype == torch.float32
        assert float((found - exact).norm()) < 3e-5 * float(exact.norm())


def test_few_numbers_are_factorised_and_many_are_not():
    assert cheaper_decoder(made("srht", 1024, 5, 5), 0.5, 1e-10) == "dual"
    assert cheaper_decoder(made("srht", 1024, 100, 10), 1.0, 1e-10) == "dual"
    assert cheaper_decoder(made("srht", 1024, 100, 10), 0.3, 1e-6) == "cg"
    assert cheaper_decoder(made("srht", 2**20, 2_000, 50), 1.0, 1e-6) == "cg"


def test_steps_are_foreseen_within_a_factor_of_two(caplog, monkeypatch):
    """CG is stopped by the number of steps that were foreseen, doubled, and is there."""
    ensemble = made("srht", 1024, 30, 20)
    y = torch.randn(20, 30, dtype=torch.float64)
    for rho in (0.2, 0.5, 0.9):
        steps = expected_steps(ensemble, rho, 1e-8)
        monkeypatch.setattr("sketchfed.codecs.solver._MOST_STEPS", int(2 * steps))
        solve(ensemble, y, rho, decoder="cg", tolerance=1e-8)
    assert not caplog.records


def test_steps_that_lead_nowhere_end_with_a_word(caplog, monkeypatch):
    monkeypatch.setattr("sketchfed.codecs.solver._MOST_STEPS", 3)
    with caplog.at_level(logging.WARNING, logger="sketchfed"):
        solve(made("srht", 128, 16, 8), torch.randn(8, 16), 0.99, decoder="cg", tolerance=1e-6)
    assert "stopped after 3 steps" in caplog.text
    assert "Assume less correlation" in caplog.text


def test_unknown_decoders_are_refused():
    with pytest.raises(InputError, match="decoder must be one of auto, dual, cg, got 'eig'"):
        solve(made("srht", 64, 8, 2), torch.randn(2, 8), 0.5, decoder="eig")
