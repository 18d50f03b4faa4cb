import numpy as np
import scipy.stats
import torch

from sketchfed import PublicSeed
from sketchfed.kernels import normals


def row(number: int, columns: int) -> np.ndarray:
    out = np.empty(columns, np.float32)
    normals.fill(PublicSeed(5).stream, number, 0, out)
    return out


def test_normals_are_normal():
    """Kolmogorov–Smirnov on a million draws, and the correlation of neighbours; false alarm below 4e-6."""
    drawn = row(3, 2**20).astype(np.float64)
    assert scipy.stats.kstest(drawn, "norm").pvalue > 1e-6
    for lag in (1, 2, 3):
        z = (drawn[lag:] * drawn[:-lag]).mean() * np.sqrt(drawn.size - lag)
        assert abs(z) < scipy.stats.norm.isf(0.5e-6)


def test_normals_reach_into_the_tails():
    """Among 4 million draws the largest is beyond 4.5 and below 6.7 standard deviations; false alarm below 1e-5."""
    assert 4.5 < np.abs(row(0, 2**22)).max() < 6.7


def test_rows_and_strips_are_independent_addresses():
    whole = row(9, 4096)
    part = np.empty(1024, np.float32)
    normals.fill(PublicSeed(5).stream, 9, 2048, part)
    assert np.array_equal(part, whole[2048:3072])
    assert not np.array_equal(whole[:1024], row(10, 1024))


def test_every_bit_is_the_same_in_numba_and_torch():
    rows = torch.tensor([0, 1, 2**31 - 2])
    twin = normals.normals_twin(PublicSeed(5).stream, rows=rows, columns=2**18)
    for number, drawn in zip(rows.tolist(), twin.numpy(), strict=True):
        assert np.array_equal(drawn, row(number, 2**18))
