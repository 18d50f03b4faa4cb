"""What is particular to a family."""

import numpy as np
import pytest
import torch

from odds import mean_interval
from sketchfed import PublicSeed
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.sketches import dense, make_sketch

SEED = PublicSeed(7)


@pytest.mark.parametrize(("dim", "size"), [(96, 8), (97, 8), (100, 99), (50_000, 4_999), (100_000, 9_001)])
def test_balanced_buckets_differ_by_at_most_one(dim, size):
    codes = make_sketch("balanced", dim=dim, size=size, seed=SEED)._codes(0, dim)
    loads = np.bincount(codes[0] >> 1, minlength=size)
    assert loads.sum() == dim
    assert loads.max() - loads.min() <= 1


def test_balanced_signs_and_places_are_random_also_beyond_one_run():
    """5 standard deviations of a fair coin, and of the 4,096 places of a run, among 80,000; false alarm below 2e-6."""
    codes = make_sketch("balanced", dim=80_000, size=8_000, seed=SEED)._codes(0, 80_000)[0].astype(np.int64)
    assert abs((codes & 1).sum() - 40_000) < 5 * np.sqrt(20_000)
    first = codes[:40_000] >> 1
    assert abs(first.mean() - 1999.5) < 5 * 4000 / np.sqrt(12) / np.sqrt(len(first))


def test_balanced_is_a_permuted_matrix_with_orthogonal_rows():
    matrix = dense(make_sketch("balanced", dim=96, size=8, seed=SEED))
    assert torch.equal(matrix @ matrix.T, 12 * torch.eye(8, dtype=torch.float64))


@pytest.mark.parametrize("options", [{}, {"transform": "cosine"}, {"block": 16}])
def test_srht_keeps_orthogonal_rows_of_equal_length(options):
    """RRᵀ = (dim/size)·I without padding, so the least possible second moment is reached for every single draw."""
    matrix = dense(make_sketch("srht", dim=64, size=16, seed=SEED, **options))
    assert torch.allclose(matrix @ matrix.T, 4 * torch.eye(16, dtype=torch.float64))


def test_srht_of_full_size_loses_nothing():
    x = torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for options in ({}, {"transform": "cosine"}, {"block": 16}):
        sketch = make_sketch("srht", dim=64, size=64, seed=SEED, **options)
        assert torch.allclose(sketch.adjoint(sketch.apply(x)), x)
        assert sketch.exact_alpha == 0


def test_srht_blocks_do_not_mix():
    matrix = dense(make_sketch("srht", dim=100, size=20, seed=SEED, block=25))
    for part in range(4):
        rows = matrix[5 * part : 5 * part + 5]
        assert torch.count_nonzero(rows) == torch.count_nonzero(rows[:, 25 * part : 25 * part + 25]) > 0


def test_srht_options_are_checked():
    with pytest.raises(UnknownNameError, match=r"no transform named 'fourier'\. Known: hadamard, cosine"):
        make_sketch("srht", dim=10, size=5, seed=SEED, transform="fourier")
    for block in (0, -1, 2.5, True, "8"):
        with pytest.raises(InputError, match="block must be a positive number"):
            make_sketch("srht", dim=10, size=5, seed=SEED, block=block)
    with pytest.raises(InputError, match=r"block 2 cuts dim 10 into 5 parts, but size 3 .* Use block >= 7"):
        make_sketch("srht", dim=10, size=3, seed=SEED, block=2)
    assert make_sketch("srht", dim=10, size=3, seed=SEED, block=7).size == 3


@pytest.mark.parametrize("name", ["sparse", "sparse_blocks"])
def test_sparse_columns_have_just_the_nonzeros_asked_for(name):
    for nonzeros in (1, 3, 8):
        matrix = dense(make_sketch(name, dim=200, size=24, seed=SEED, nonzeros=nonzeros))
        assert (torch.count_nonzero(matrix, 0) == nonzeros).all()
        assert torch.allclose(matrix.square().sum(0), torch.ones(200, dtype=torch.float64))
    for bad in (0, 25, -1, 1.0, True):
        with pytest.raises(InputError, match=r"nonzeros must be an integer from 1 to size = 24"):
            make_sketch(name, dim=200, size=24, seed=SEED, nonzeros=bad)


def test_sparse_blocks_have_one_nonzero_in_each_block():
    matrix = dense(make_sketch("sparse_blocks", dim=200, size=26, seed=SEED, nonzeros=4))
    for start, end in ((0, 6), (6, 13), (13, 19), (19, 26)):
        assert (torch.count_nonzero(matrix[start:end], 0) == 1).all()


def test_sampling_fails_coordinate_by_coordinate_and_no_other_family_does():
    """Remark D.17: size·Var(⟨Re, Re⟩) of one coordinate e is dim − size for sampling, and at most 3 for srht.

    False alarm below 2e-6, by Student's t.
    """
    spread, coordinate = {}, torch.eye(256)[5]
    for name in ("sampling", "srht"):
        kept = [
            float(make_sketch(name, dim=256, size=64, seed=SEED.child(name, t)).apply(coordinate).square().sum())
            for t in range(4_000)
        ]
        spread[name] = mean_interval(64 * (np.array(kept) - 1) ** 2, false_alarm=1e-6)
    assert spread["sampling"][0] <= 256 - 64 <= spread["sampling"][1]
    assert spread["sampling"][0] > 3
    assert spread["srht"][1] <= 3


def test_large_dims_work_end_to_end():
    x = torch.randn(1_000_003, generator=torch.Generator().manual_seed(1))
    for name in ("srht", "count", "balanced", "sparse", "sparse_blocks", "sampling"):
        sketch = make_sketch(name, dim=1_000_003, size=100_001, seed=SEED)
        y = sketch.apply(x)
        assert float(y.square().sum() / x.square().sum()) == pytest.approx(1, abs=0.05)
        back = sketch.adjoint(y)
        assert float(back @ x) == pytest.approx(float(y.square().sum()), rel=1e-3)


def test_buckets_that_overlap_have_no_loads():
    with pytest.raises(InputError, match="'gaussian' sketch are not orthogonal, so its buckets have no loads"):
        _ = make_sketch("gaussian", dim=20, size=4, seed=SEED).loads
