import pytest
import torch

from odds import mean_interval
from sketchfed import PublicSeed
from sketchfed.errors import InputError
from sketchfed.subspaces import Basis, Probes

DIM, COUNT = 101, 9


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def basis(rank=6):
    return Basis.from_tensor(torch.linalg.qr(normal(DIM, max(rank, 1)))[0][:, :rank], capacity=8)


def probes(*, kept=None, seed=7, rank=6, count=COUNT):
    return Probes(count=count, seed=PublicSeed(seed), basis=basis(rank), kept=kept)


def matrix(of):
    return of.combine(torch.eye(of.count, dtype=torch.float64)).T


@pytest.mark.parametrize("kept", [0, 2, 6])
def test_probes_are_orthonormal_and_avoid_the_directions_that_are_kept(kept):
    made = probes(kept=kept)
    q, u = matrix(made), basis().to_tensor()[:, :kept]
    torch.testing.assert_close(q.T @ q, torch.eye(COUNT, dtype=torch.float64), rtol=0, atol=1e-12)
    assert kept == 0 or (u.T @ q).abs().max() < 1e-13


def test_probes_span_what_projecting_the_sketch_and_a_qr_span():
    made, u = probes(), basis().to_tensor()
    omega = made.sketch.adjoint(torch.eye(COUNT, dtype=torch.float64)).T
    q = torch.linalg.qr(omega - u @ (u.T @ omega))[0]
    torch.testing.assert_close(matrix(made) @ matrix(made).T, q @ q.T, rtol=0, atol=1e-12)


def test_coefficients_are_the_transpose_of_combinations():
    made, x = probes(), normal(2, 3, DIM, seed=1)
    torch.testing.assert_close(made.coefficients(x), x @ matrix(made), rtol=0, atol=1e-12)


def test_probes_hang_on_their_seed_alone():
    assert torch.equal(matrix(probes()), matrix(probes()))
    assert not torch.allclose(matrix(probes()), matrix(probes(seed=8)))


def test_every_gradient_is_captured_alike():
    """E‖Qᵀg‖² = count/dim·‖g‖² while nothing is kept, for a flat and a sparse g. False alarm below 1e-6 each (t bound)."""
    sparse = torch.zeros(DIM, dtype=torch.float64)
    sparse[[3, 50]] = 1
    for g in (normal(DIM), sparse):
        found = [float(probes(rank=0, seed=seed).coefficients(g).square().sum() / g.square().sum()) for seed in range(400)]
        low, high = mean_interval(found, false_alarm=1e-6)
        assert low <= COUNT / DIM <= high


def test_probes_that_have_no_room_are_refused():
    with pytest.raises(InputError, match="Use a smaller size"):
        probes(count=DIM)
