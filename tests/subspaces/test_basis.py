from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from sketchfed.errors import InputError
from sketchfed.subspaces import Basis

DIM = 203


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def orthonormal(rows, columns, seed=0):
    return torch.linalg.qr(normal(rows, columns, seed=seed))[0]


def close(found, expected, tolerance=1e-12):
    torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(expected), rtol=0, atol=tolerance)


def full(rank=5, capacity=5):
    return Basis.from_tensor(orthonormal(DIM, rank), capacity=capacity)


def test_coefficients_and_combinations_are_products_with_the_matrix():
    basis, turn = full(), orthonormal(5, 3, seed=1)
    matrix, x, c = orthonormal(DIM, 5) @ turn, normal(2, 4, DIM, seed=2), normal(2, 4, 3, seed=3)
    turned = basis.rotated(turn.numpy())
    close(turned.to_tensor(), matrix)
    close(turned.coefficients(x), x @ matrix)
    close(turned.combine(c), c @ matrix.T)
    close(torch.tensordot(turned.coefficients(x), c, 3), torch.tensordot(x, turned.combine(c), 3))
    close(basis.to_tensor(), orthonormal(DIM, 5))  # rotated changes nothing of it


def test_an_extended_basis_contains_the_vector():
    basis, x = full(capacity=8), normal(DIM, seed=1)
    before = basis.to_tensor()
    longer, coefficients, norm = basis.extended(x)
    rest = x - before @ (before.T @ x)
    close(coefficients, before.T @ x)
    assert norm == pytest.approx(float(rest.norm()))
    close(longer.to_tensor(), torch.cat([before, rest[:, None] / rest.norm()], 1))


def test_a_vector_inside_adds_no_direction():
    basis = full(capacity=8)
    same, coefficients, norm = basis.extended(basis.combine(torch.arange(5.0, dtype=torch.float64)))
    assert same.rank == 5
    assert norm == 0
    close(coefficients, torch.arange(5.0, dtype=torch.float64))
    assert basis.extended(torch.zeros(DIM)).norm == 0


@pytest.mark.parametrize("capacity", [5, 8], ids=["compressed", "with room"])
def test_directions_that_were_turned_away_come_back_when_a_vector_has_them(capacity):
    """What the rows still span beyond the directions counts as outside, and survives a compression on the way."""
    turned = full(capacity=capacity).rotated(torch.eye(5, 3, dtype=torch.float64).numpy())
    before, away = turned.to_tensor(), orthonormal(DIM, 5)[:, 3:]
    x = before.sum(1) + 2 * away[:, 0] - away[:, 1] + 0.5 * normal(DIM, seed=1)
    longer, coefficients, norm = turned.extended(x)
    rest = x - before @ (before.T @ x)
    close(coefficients, before.T @ x)
    assert norm == pytest.approx(float(rest.norm()))
    close(longer.to_tensor(), torch.cat([before, rest[:, None] / norm], 1))


def test_a_vector_along_a_direction_that_was_turned_away_needs_no_row():
    turned = full(capacity=5).rotated(torch.eye(5, 4, dtype=torch.float64).numpy())
    longer = turned.extended(orthonormal(DIM, 5)[:, 4]).basis
    close(longer.to_tensor(), orthonormal(DIM, 5))


@pytest.mark.parametrize("room", [0, 1, 4])
def test_a_basis_never_changes_whoever_extends_it(room):
    """Whether by appending, by copying since another was appended, or by compressing."""
    basis = full(capacity=5 + room).rotated(orthonormal(5, 3, seed=2).numpy())
    before, made = basis.to_tensor(), []
    for seed in (1, 2, 1):
        longer = basis.extended(normal(DIM, seed=seed)).basis
        longest = longer.rotated(orthonormal(4, 2, seed=3).numpy()).extended(normal(DIM, seed=9)).basis
        made.append((longer, longer.to_tensor(), longest, longest.to_tensor()))
    assert torch.equal(basis.to_tensor(), before)
    for longer, first, longest, second in made:
        assert torch.equal(longer.to_tensor(), first)
        assert torch.equal(longest.to_tensor(), second)
    assert torch.equal(made[0][1], made[2][1])
    assert torch.equal(made[0][3], made[2][3])
    assert not torch.allclose(made[0][1], made[1][1])


def test_a_basis_that_is_extended_again_and_again_is_not_copied():
    basis = full(capacity=8)
    longer = basis.extended(normal(DIM, seed=1)).basis
    other = basis.extended(normal(DIM, seed=2)).basis
    assert np.shares_memory(basis.rows, longer.rows)
    assert not np.shares_memory(basis.rows, other.rows)
    assert np.shares_memory(other.rows, other.extended(normal(DIM, seed=3)).basis.rows)


def test_threads_may_extend_the_same_basis():
    basis = full(capacity=40)
    expected = [basis.extended(normal(DIM, seed=seed)).basis.to_tensor() for seed in range(64)]
    basis = full(capacity=40)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda seed: basis.extended(normal(DIM, seed=seed)).basis, range(64)))
    assert all(torch.equal(one.to_tensor(), there) for one, there in zip(made, expected, strict=True))


def test_a_vector_that_overflows_is_refused():
    with pytest.raises(InputError, match="Scale it down"):
        Basis.empty(dim=DIM, capacity=2).extended(torch.full((DIM,), 1e30))


def test_a_basis_without_room_says_so():
    with pytest.raises(InputError, match="no room for another direction"):
        full().extended(normal(DIM, seed=1))


@pytest.mark.parametrize("x", [torch.zeros(DIM + 1), torch.full((DIM,), float("nan"))], ids=["length", "nan"])
def test_what_cannot_be_appended_is_refused(x):
    with pytest.raises(InputError, match="as many finite numbers"):
        full(capacity=8).extended(x)


@pytest.mark.parametrize(("dim", "updates"), [(203, 1_000), (20_000, 200)])
def test_float32_directions_stay_orthonormal_and_follow_float64_ones(dim, updates):
    """Updates of which each has a nearly dependent vector and an arbitrary turn; every fifth compresses the basis."""
    found = {}
    for dtype in (torch.float32, torch.float64):
        basis = Basis.empty(dim=dim, capacity=15, dtype=dtype)
        for step in range(updates):
            x = normal(dim, seed=step)
            x += 100 * basis.to_tensor().double().sum(1) if step % 10 == 9 else 0
            basis = basis.extended(x.to(dtype)).basis
            if basis.rank > 10:
                basis = basis.rotated(orthonormal(11, 10, seed=step).numpy())
        found[dtype] = basis.to_tensor().double()
        gram = found[dtype].T @ found[dtype]
        close(gram, torch.eye(10, dtype=torch.float64), 1e-6 if dtype == torch.float32 else 1e-13)
    close(found[torch.float32], found[torch.float64], 1e-4)
