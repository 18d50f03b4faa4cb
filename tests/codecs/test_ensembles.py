"""The stacked maps of a round's clients."""

from itertools import pairwise

import pytest
import torch

from odds import mean_interval
from sketchfed import PublicSeed
from sketchfed.codecs import srht_ensemble
from sketchfed.codecs.ensemble_base import Ensemble
from sketchfed.codecs.ensembles import ENSEMBLES
from sketchfed.errors import InputError

CASES = [
    *((name, dim, 20, None) for name in ENSEMBLES for dim in (64, 150)),
    ("srht", 1, 1, None),
    ("srht", 200, 100, 32),  # six blocks and a tail
    ("srht", 260, 60, 64),  # the tail of four coordinates joins the last block
    ("srht", 9_000, 40, None),
]
every_case = pytest.mark.parametrize(("name", "dim", "size", "block"), CASES)


def seeds(clients: int, trial: int = 0) -> list[PublicSeed]:
    return [PublicSeed(trial).child("client", client) for client in range(clients)]


def made(name: str, dim: int, size: int, block: int | None, clients: int = 5, trial: int = 0) -> Ensemble:
    return ENSEMBLES[name](dim, size, seeds(clients, trial), block)


def as_matrix(ensemble: Ensemble) -> torch.Tensor:
    """G, column by column, from `forward`."""
    columns = [ensemble.forward(unit).reshape(-1) for unit in torch.eye(ensemble.dim, dtype=torch.float64)]
    return torch.stack(columns, dim=1)


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forward_and_adjoint_belong_together(name, dim, size, block, dtype):
    ensemble = made(name, dim, size, block)
    v, z = torch.randn(dim, dtype=dtype), torch.randn(5, size, dtype=dtype)
    forth, back = ensemble.forward(v), ensemble.adjoint(z)
    assert (forth.shape, forth.dtype, back.shape, back.dtype) == ((5, size), dtype, (dim,), dtype)
    scale = float(v.norm() * z.norm())
    assert abs(float((forth * z).sum() - (back * v).sum())) < (1e-5 if dtype == torch.float32 else 1e-13) * scale


@every_case
def test_the_gram_matrix_is_that_of_the_rows_which_are_orthonormal(name, dim, size, block):
    if dim > 1_000:
        pytest.skip("too many columns to write out")
    ensemble = made(name, dim, size, block)
    rows = as_matrix(ensemble)
    product = torch.from_numpy(ensemble.gram())
    assert torch.allclose(product, rows @ rows.T, atol=1e-6 if name == "gaussian" else 1e-12)
    if ensemble.orthonormal:
        own = product[:size, :size]
        assert torch.allclose(own, torch.eye(size, dtype=torch.float64), atol=1e-12)
    z = torch.randn(5, size, dtype=torch.float64)
    own = torch.stack([rows[i * size : (i + 1) * size] @ rows[i * size : (i + 1) * size].T @ z[i] for i in range(5)])
    assert torch.allclose(ensemble.own(z), own, atol=1e-6)


@pytest.mark.parametrize(("name", "dim", "size", "block"), [case for case in CASES if case[1] < 1_000])
def test_every_coordinate_is_seen_alike(name, dim, size, block):
    """E[GᵀG] = share·I in each part. Five coordinates; false alarm below 1e-5 a case by Student's t."""
    drawn, units = [made(name, dim, size, block, 1, trial) for trial in range(100)], torch.eye(dim, dtype=torch.float64)
    for share in made(name, dim, size, block).shares:
        for place in torch.linspace(share.start, share.stop - 1, 5).long():
            seen = [float(ensemble.forward(units[place]).square().sum()) for ensemble in drawn]
            low, high = mean_interval(seen, false_alarm=2e-6)
            assert low - 1e-9 <= share.share <= high + 1e-9


@every_case
def test_a_client_needs_no_other_to_draw_its_map(name, dim, size, block):
    v = torch.randn(dim, dtype=torch.float64)
    together = made(name, dim, size, block).forward(v)
    alone = ENSEMBLES[name](dim, size, seeds(5)[3:4], block).forward(v)
    assert torch.equal(alone[0], together[3])


def test_threads_change_no_bit(monkeypatch):
    z = torch.randn(6, 500)
    ensemble = made("srht", 5_000, 500, None, clients=6)
    one = ensemble.adjoint(z)
    monkeypatch.setattr(srht_ensemble, "_WORTH_THREADS", 1)
    assert torch.equal(ensemble.adjoint(z), one)
    assert torch.equal(made("srht", 5_000, 500, None, clients=6).forward(one), ensemble.forward(one))


def test_parts_cover_all_coordinates_and_give_each_its_share():
    for dim, size in ((4096, 10), (4097, 400), (10_000, 1_000), (199_210, 1_992), (2**17, 300), (12_345, 1)):
        shares = made("srht", dim, size, None, clients=1).shares
        assert (shares[0].start, shares[-1].stop) == (0, dim)
        assert all(one.stop == other.start for one, other in pairwise(shares))
        assert sum(share.share * (share.stop - share.start) for share in shares) == pytest.approx(size)
        assert len(shares) == 1 or min(share.share * (share.stop - share.start) for share in shares) >= 8


def test_what_cannot_be_is_refused():
    with pytest.raises(InputError, match="the size of a block must be a power of two, got block = 100"):
        made("srht", 1_000, 100, 100)
    with pytest.raises(InputError, match="block 16 cuts 1,000 coordinates into 62 parts, but 30 coefficients are too few"):
        made("srht", 1_000, 30, 16)
    with pytest.raises(InputError, match="ensemble 'balanced' has no blocks, got block = 64"):
        made("balanced", 1_000, 30, 64)
    with pytest.raises(InputError, match="would store 5 matrices of 10,000 × 1,000,000 numbers, which is too many"):
        made("orthonormal", 1_000_000, 10_000, None)
