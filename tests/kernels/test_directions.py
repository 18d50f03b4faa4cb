import numpy as np
import pytest

from sketchfed.kernels import directions

TOLERANCE = {np.float32: 2e-4, np.float64: 1e-11}


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def dtype(request):
    return request.param


def normal(*shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dim", [1, 63, 64, 4096, 9001])
def test_products_with_rows_agree_with_numpy(dim, dtype):
    rows, x, factors = normal(13, dim, dtype=dtype), normal(3, dim, dtype=dtype, seed=1), normal(3, 13, dtype=dtype, seed=2)
    inner, out, gram = np.empty((3, 13)), np.ones((3, dim), dtype), np.empty((13, 13))
    directions.inner(rows, x, inner)
    directions.combine(rows, factors, out)
    directions.gram(rows, gram)
    near = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype] * np.sqrt(dim)}
    np.testing.assert_allclose(inner, x @ rows.T, **near)
    np.testing.assert_allclose(out, 1 + factors @ rows, **near)
    np.testing.assert_allclose(gram, rows @ rows.T, **near)


def test_what_is_removed_is_gone_from_the_inner_products(dtype):
    rows, x, factors = normal(9, 5000, dtype=dtype), normal(5000, dtype=dtype, seed=1), normal(9, dtype=dtype, seed=2)
    rest, after = x.copy(), np.empty(9)
    directions.remove(rows, factors, rest, after)
    np.testing.assert_allclose(rest, x - factors @ rows, rtol=0, atol=TOLERANCE[dtype])
    np.testing.assert_allclose(after, rows @ rest, rtol=0, atol=100 * TOLERANCE[dtype])


@pytest.mark.parametrize("dim", [5, 64, 1501])
def test_rows_are_turned_and_squared(dim, dtype):
    rows, matrix = normal(9, dim, dtype=dtype), normal(4, 9, dtype=dtype, seed=1)
    before, turned, squares = rows.copy(), np.zeros((6, dim), dtype), np.ones(dim, dtype)
    directions.squares(rows, matrix, squares)
    directions.turn(rows, matrix, turned)
    np.testing.assert_allclose(turned[:4], matrix @ rows, rtol=0, atol=TOLERANCE[dtype])
    np.testing.assert_allclose(squares, 1 + np.square(matrix @ rows).sum(0), rtol=TOLERANCE[dtype])
    assert (turned[4:] == 0).all()
    assert (rows == before).all()


def test_no_rows_change_nothing(dtype):
    rows, x, out, inner = np.empty((0, 70), dtype), normal(2, 70, dtype=dtype), np.ones((2, 70), dtype), np.empty((2, 0))
    directions.combine(rows, np.empty((2, 0), dtype), out)
    directions.inner(rows, x, inner)
    assert (out == 1).all()


def test_a_vector_meets_the_same_bits_alone_and_among_others(dtype):
    rows, x = normal(7, 9001, dtype=dtype), normal(5, 9001, dtype=dtype, seed=1)
    together, alone = np.empty((5, 7)), np.empty((1, 7))
    directions.inner(rows, x, together)
    directions.inner(rows, x[3:4], alone)
    assert (together[3] == alone[0]).all()
    directions.inner(rows[5:6], x[:1], one := np.empty((1, 1)))
    assert one[0, 0] == together[0, 5]
