"""The decompositions that every party repeats, against numpy's."""

import numpy as np
import pytest

from sketchfed.kernels import small
from sketchfed.kernels.secular import rank_one


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def test_products_and_triangular_systems():
    a, b = normal(5, 7), normal(7, 3, seed=1)
    np.testing.assert_allclose(small.product(a, b), a @ b, atol=1e-14)
    gram = a @ a.T
    lower = small.cholesky(gram)
    np.testing.assert_allclose(lower, np.linalg.cholesky(gram), atol=1e-13)
    np.testing.assert_allclose(lower @ small.solve_lower(lower, a), a, atol=1e-13)
    np.testing.assert_allclose(lower.T @ small.solve_upper(lower, a), a, atol=1e-13)


@pytest.mark.parametrize(("m", "k", "n"), [(1, 200, 90), (30, 1, 32), (8, 64, 8), (33, 130, 65), (20, 0, 20)])
def test_products_of_any_shape_are_summed_in_order(m, k, n):
    a, b = normal(m, k), normal(k, n, seed=1)
    expected = np.zeros((m, n))
    for one, other in zip(a.T, b, strict=True):
        expected += one[:, None] * other
    assert (small.product(a, b) == expected).all()


def test_a_matrix_that_is_nearly_singular_has_no_factor():
    assert np.isnan(small.cholesky(np.ones((3, 3)))[0, 0])


@pytest.mark.parametrize("size", [1, 2, 30])
def test_orthonormal_columns_as_numpy_finds_them(size):
    a = normal(size + 1, size)
    q, r = small.orthonormal(a)
    theirs, factor = np.linalg.qr(a)
    np.testing.assert_allclose(q, theirs * np.sign(np.diag(factor)), atol=1e-12)
    np.testing.assert_allclose(q @ r, a, atol=1e-12)
    assert (np.diag(r) >= 0).all()


@pytest.mark.parametrize("a", [np.outer(normal(8), normal(7, seed=1)), np.zeros((8, 7))], ids=["rank one", "zero"])
def test_dependent_columns_are_completed_to_orthonormal_ones(a):
    q, r = small.orthonormal(a)
    np.testing.assert_allclose(q @ r, a, atol=1e-13)
    np.testing.assert_allclose(q.T @ q, np.eye(7), atol=1e-14)
    assert np.abs(r[1:]).max() < 1e-14


SPECTRA = {
    "spread": (10.0 ** -np.arange(12), normal(12)),
    "descending": (np.sort(np.abs(normal(12)))[::-1].copy(), normal(12, seed=1)),
    "all zero": (np.zeros(12), normal(12)),
    "all equal": (np.full(12, 0.3), normal(12)),
    "nearly equal": (1 + 1e-15 * np.arange(12), normal(12)),
    "half zero": (np.repeat([2.0, 0.0], 6), normal(12)),
    "a term with zeros": (np.arange(12.0), np.where(np.arange(12) % 3, normal(12), 0)),
    "a tiny term": (np.arange(12.0), 1e-12 * normal(12)),
    "a huge term": (np.arange(12.0), 1e9 * normal(12)),
    "no term": (np.arange(12.0), np.zeros(12)),
    "entries of all sizes": (10.0 ** normal(12), normal(12) * 10.0 ** (4 * normal(12, seed=1))),
    "one": (np.array([2.0]), np.array([3.0])),
    "many": (np.append(np.sort(np.abs(normal(199)))[::-1], 0), 0.1 * normal(200, seed=1)),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_eigenvectors_after_a_rank_one_change(name):
    diagonal, z = SPECTRA[name]
    matrix = np.diag(diagonal) + np.outer(z, z)
    values, vectors = rank_one(diagonal, z)
    scale = max(np.abs(matrix).max(), 1e-300)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(len(z)), atol=1e-14)
    np.testing.assert_allclose(matrix @ vectors / scale, vectors * values / scale, atol=1e-14)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix)[::-1], atol=1e-14 * scale)
    assert (np.diff(values) <= 0).all()
