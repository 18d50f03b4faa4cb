"""Rotations of any dimension: orthogonal, rebuilt from a seed, and random enough that rotated numbers look normal."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.linalg
import scipy.stats

from odds import mean_interval
from sketchfed import PublicSeed
from sketchfed.codecs.rotation import Rotation
from sketchfed.kernels import philox

SEED = PublicSeed(7)

every_dim = pytest.mark.parametrize("dim", [1, 2, 5, 63, 64, 65, 96, 127, 128, 1000, 4096, 5000, 2**17 + 3])


def normal(dim: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(dim).astype(np.float32)


@every_dim
def test_the_inverse_undoes_it_and_norms_stay(dim):
    rotation, x = Rotation(dim=dim, seed=SEED), normal(dim)
    y = rotation.apply(x)
    assert y.shape == (dim,)
    assert np.allclose(rotation.inverse(y), x, atol=1e-5)
    for start, stop in pairwise(rotation.edges):
        assert np.linalg.norm(y[start:stop]) == pytest.approx(np.linalg.norm(x[start:stop]), rel=1e-5)


@every_dim
def test_pieces_are_powers_of_two_but_for_a_small_rest(dim):
    edges = Rotation(dim=dim, seed=SEED).edges
    widths = np.diff(edges).tolist()
    assert (edges[0], edges[-1]) == (0, dim)
    assert all(width & (width - 1) == 0 for width in widths if width >= 64)
    assert [width for width in widths if width < 64] == ([dim % 64] if dim % 64 else [])
    assert widths == sorted(widths, reverse=True)


def test_it_is_an_orthogonal_matrix():
    rotation = Rotation(dim=199, seed=SEED)
    matrix = np.stack([rotation.apply(row) for row in np.eye(199, dtype=np.float32)])
    assert np.allclose(matrix @ matrix.T, np.eye(199), atol=1e-5)
    assert np.allclose(np.stack([rotation.inverse(row) for row in np.eye(199, dtype=np.float32)]), matrix.T, atol=1e-6)


def test_it_is_what_it_says():
    """Signs and Hadamard's matrix, three times, written out."""
    x = normal(128)
    expected, hadamard = x.astype(np.float64), scipy.linalg.hadamard(128) / np.sqrt(128)
    for turn in range(3):
        signs = philox.bits(SEED.child("signs", turn).words(4), 128)
        expected = hadamard @ (np.where(signs, -1, 1) * expected)
    assert np.allclose(Rotation(dim=128, seed=SEED).apply(x), expected, atol=1e-5)


def test_the_seed_decides():
    x = normal(150)
    assert np.array_equal(Rotation(dim=150, seed=SEED).apply(x), Rotation(dim=150, seed=SEED).apply(x))
    assert not np.allclose(Rotation(dim=150, seed=SEED).apply(x), Rotation(dim=150, seed=SEED.child("next")).apply(x))


def test_a_vector_is_left_as_it_was():
    rotation, x = Rotation(dim=150, seed=SEED), normal(150)
    before = x.copy()
    rotation.inverse(rotation.apply(x))
    assert np.array_equal(x, before)
    y = rotation.apply(x)
    before = y.copy()
    rotation.inverse(y)
    assert np.array_equal(y, before)


SHAPES = {
    "one coordinate": np.eye(4096, dtype=np.float32)[5],
    "two coordinates": np.eye(4096, dtype=np.float32)[[5, 77]].sum(0),
    "flat": np.ones(4096, np.float32),
    "ramp": np.arange(4096, dtype=np.float32),
    "normal": normal(4096),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_rotated_numbers_look_normal_whatever_the_vector(shape):
    """Kolmogorov–Smirnov; false alarm below 1e-6 a shape."""
    x = SHAPES[shape] / np.linalg.norm(SHAPES[shape]) * 64
    assert scipy.stats.kstest(Rotation(dim=4096, seed=SEED).apply(x), scipy.stats.norm.cdf).pvalue > 1e-6


def test_the_rest_is_rotated_uniformly():
    """E Q = 0, E Qᵢⱼ² = 1/n and E Qᵢⱼ⁴ = 3/(n(n + 2)) for uniformly random matrices. False alarm below 3e-6, by Student's t."""
    entries = np.array(
        [Rotation(dim=7, seed=SEED.child("trial", t)).apply(np.eye(7, dtype=np.float32)[3])[2] for t in range(4_000)]
    )
    for power, expected in ((1, 0), (2, 1 / 7), (4, 3 / 63)):
        low, high = mean_interval(entries**power, false_alarm=1e-6)
        assert low <= expected <= high
