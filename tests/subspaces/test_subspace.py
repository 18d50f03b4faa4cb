from dataclasses import replace

import numpy as np
import pytest
import torch

from odds import mean_interval
from sketchfed import PublicSeed
from sketchfed.errors import InputError
from sketchfed.subspaces import UPDATES, Basis, IncrementalSvd, Subspace

DIM, SIZE = 157, 12


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def after(rounds, *, rule="incremental_svd", dtype=torch.float64, dim=DIM, size=SIZE, **options):
    made = UPDATES[rule](**options)
    subspace = made.begin(dim=dim, size=size, seed=PublicSeed(3), dtype=dtype)
    for number in range(rounds):
        subspace = made.updated(subspace, sensed=normal(size, seed=number, dtype=dtype))
    return subspace


def dense(subspace):
    return subspace.adjoint(torch.eye(subspace.size, dtype=torch.float64)).T


@pytest.mark.parametrize("rule", UPDATES)
@pytest.mark.parametrize("rounds", [0, 1, 3, 30])
class TestAnySubspace:
    def test_columns_are_orthonormal(self, rule, rounds):
        s = dense(after(rounds, rule=rule))
        torch.testing.assert_close(s.T @ s, torch.eye(SIZE, dtype=torch.float64), rtol=0, atol=1e-12)

    def test_apply_is_the_transpose_of_adjoint(self, rule, rounds):
        subspace, x, y = after(rounds, rule=rule), normal(2, 3, DIM), normal(2, 3, SIZE, seed=1)
        torch.testing.assert_close(subspace.apply(x), x @ dense(subspace), rtol=0, atol=1e-12)
        torch.testing.assert_close((subspace.apply(x) * y).sum(), (x * subspace.adjoint(y)).sum(), rtol=0, atol=1e-11)

    def test_the_diagonal_is_that_of_the_projection(self, rule, rounds):
        subspace = after(rounds, rule=rule)
        torch.testing.assert_close(subspace.diagonal(), dense(subspace).square().sum(1), rtol=0, atol=1e-13)

    def test_the_energy_of_what_is_kept_is_on_the_diagonal(self, rule, rounds):
        subspace = after(rounds, rule=rule)
        energy = dense(subspace)[:, : subspace.kept].square().sum(1)
        torch.testing.assert_close(torch.from_numpy(subspace.kept_energy()), energy, rtol=0, atol=1e-13)
        torch.testing.assert_close(subspace.expected_diagonal().sum(), torch.tensor(SIZE, dtype=torch.float64))

    def test_it_survives_as_tensors_bit_for_bit(self, rule, rounds):
        subspace = after(rounds, rule=rule, dtype=torch.float32)
        twin = Subspace.from_tensors({name: t.clone() for name, t in subspace.tensors().items()}, seed=subspace.seed)
        for number in range(20):
            sensed = normal(SIZE, seed=number, dtype=torch.float32)
            assert torch.equal(subspace.adjoint(sensed), twin.adjoint(sensed))
            subspace, twin = (UPDATES[rule]().updated(one, sensed=sensed) for one in (subspace, twin))
        assert all(torch.equal(t, twin.tensors()[name]) for name, t in subspace.tensors().items())


def test_a_basis_that_fills_the_subspace_leaves_no_probes():
    subspace = after(3, rule="history_pca", energy=1.0)
    assert subspace.kept == SIZE
    assert subspace.probes is None
    torch.testing.assert_close(subspace.diagonal().sum(), torch.tensor(SIZE, dtype=torch.float64))


def test_float32_comes_within_its_rounding():
    exact, rounded = after(30), after(30, dtype=torch.float32)
    x = normal(5, DIM)
    torch.testing.assert_close(rounded.apply(x.float()), exact.apply(x).float(), rtol=0, atol=1e-4)
    torch.testing.assert_close(rounded.diagonal(), exact.diagonal().float(), rtol=0, atol=1e-5)
    assert rounded.apply(x).dtype == torch.float64


def test_the_energy_is_kept_track_of_through_a_thousand_updates():
    """In float32 and through 200 compressions, with gradients along a few coordinates in half of the rounds."""
    rule, few = IncrementalSvd(), torch.zeros(2_000).index_fill(0, torch.arange(20), 1.0)
    subspace = rule.begin(dim=2_000, size=20, seed=PublicSeed(3))
    for number in range(1_000):
        estimate = normal(2_000, seed=number, dtype=torch.float32) * (10 * few if number % 2 else 1)
        subspace = rule.updated(subspace, estimate=estimate)
    exact = subspace.basis.to_tensor().double().square().sum(1)
    assert exact.max() > 0.3
    torch.testing.assert_close(torch.from_numpy(subspace.energy), exact, rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.from_numpy(replace(subspace, energy=np.empty(0)).kept_energy()), exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("coordinates", [2, 12, 60])
def test_the_diagonal_is_expected_to_be_its_mean_over_draws(coordinates):
    """Within 1 %, for kept directions along a few or all of 60 coordinates. False alarm below 1e-6: t bounds, a union of 60.

    With 1,500 draws, a mean that is off by 0.21 standard deviations more is found with probability 0.99.
    """
    rows = normal(2, 60) * (torch.arange(60) < coordinates)
    basis = Basis.from_tensor(torch.linalg.qr(rows.T)[0], capacity=6)
    subspace = Subspace(size=8, seed=PublicSeed(3), basis=basis, kept=2, values=np.ones(2))
    drawn = torch.stack([replace(subspace, draw=draw).diagonal() for draw in range(1_500)])
    for expected, found in zip(subspace.expected_diagonal().tolist(), drawn.T, strict=True):
        low, high = mean_interval(found.tolist(), false_alarm=1e-6 / 60)
        assert low <= 1.01 * expected
        assert high >= 0.99 * expected


def test_probes_that_the_sketch_deals_in_runs(monkeypatch):
    """Beyond so many buckets the sketch works in runs, and the diagonal has to know."""
    monkeypatch.setattr("sketchfed.sketches.balanced._BUCKETS_AT_ONCE", 3)
    subspace = after(4)
    assert len(subspace.probes.sketch.runs) == 4
    torch.testing.assert_close(subspace.diagonal(), dense(subspace).square().sum(1), rtol=0, atol=1e-13)


def test_captured_is_a_share_of_energy():
    subspace = after(5)
    assert subspace.captured(dense(subspace) @ normal(SIZE)) == pytest.approx(1)
    x = normal(DIM)
    assert subspace.captured(x - dense(subspace) @ (x @ dense(subspace))) == pytest.approx(0, abs=1e-20)


def test_a_vector_is_sketched_to_the_same_bits_alone_and_among_others():
    subspace, x = after(7, dtype=torch.float32), normal(6, DIM, dtype=torch.float32)
    assert torch.equal(subspace.apply(x)[4], subspace.apply(x[4]))


@pytest.mark.parametrize("rule", UPDATES)
@pytest.mark.parametrize("rounds", [0, 5, 30])
def test_an_update_leaves_a_subspace_as_it_was(rule, rounds):
    subspace = after(rounds, rule=rule)
    before = dense(subspace)
    first, other, again = (dense(UPDATES[rule]().updated(subspace, sensed=normal(SIZE, seed=seed))) for seed in (1, 2, 1))
    assert torch.equal(dense(subspace), before)
    assert torch.equal(first, again)
    assert not torch.allclose(first, other) or not UPDATES[rule]().tracked(SIZE)


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("apply", torch.zeros(DIM + 1), "shape"),
        ("apply", torch.zeros(DIM, dtype=torch.int64), "int64"),
        ("adjoint", torch.zeros(()), "shape"),
        ("adjoint", torch.full((SIZE,), float("inf")), "infinite"),
    ],
)
def test_what_does_not_fit_is_refused(method, value, message):
    with pytest.raises(InputError, match=message):
        getattr(after(2), method)(value)


@pytest.mark.parametrize(
    "spoilt",
    [
        {"rotation": torch.zeros(3, 3, dtype=torch.float64)},
        {"values": torch.zeros(9, dtype=torch.float64)},
        {"energy": torch.zeros(DIM - 1, dtype=torch.float64)},
        {"energy": torch.full((DIM,), float("inf"), dtype=torch.float64)},
        {"rows": torch.full((4, DIM), float("nan"))},
        {"rows": torch.zeros(4, DIM, dtype=torch.int32)},
        {"counts": torch.tensor([SIZE, 99, 4, 9])},
        {"counts": torch.tensor([SIZE, 4, -1, 9])},
        {"counts": torch.tensor([SIZE, 4, 4, 3])},
        {"counts": torch.tensor([SIZE, 4, 4, 10**12])},
        {"counts": torch.tensor([SIZE])},
        {"counts": torch.tensor([DIM, 4, 4, 9])},
    ],
)
def test_tensors_that_are_no_subspace_are_refused(spoilt):
    with pytest.raises(InputError):
        Subspace.from_tensors(after(4, dtype=torch.float32).tensors() | spoilt, seed=PublicSeed(3))


@pytest.mark.parametrize("size", [0, DIM // 2 + 1])
def test_sizes_without_room_are_refused(size):
    with pytest.raises(InputError, match="Use a size from 1 to 78"):
        replace(after(0), size=size)
