import numpy as np
import pytest

from sketchfed_lab.experiments.integer_rank import rank


@pytest.mark.parametrize(("rows", "columns", "wanted"), [(1, 1, 1), (5, 5, 5), (5, 9, 3), (9, 5, 4), (40, 40, 39), (64, 64, 0)])
def test_the_rank_of_a_product_is_that_of_its_inner_size(rows, columns, wanted):
    generator = np.random.default_rng(rows)
    matrix = generator.integers(-50, 50, (rows, wanted)) @ generator.integers(-50, 50, (wanted, columns))
    assert rank(matrix) == wanted == (np.linalg.matrix_rank(matrix.astype(float)) if wanted else 0)


def test_integers_of_any_size_and_sign_count_exactly():
    """In floating point the second row is twice the first."""
    large = np.array([[2**40, -1], [2**41, -1]])
    assert rank(large) == 2
    assert rank(np.array([[2**31 - 1, 0], [0, 1]])) == 1  # the prime itself is zero: ranks are lower bounds
    assert rank(np.zeros((3, 4), np.int64)) == 0


def test_the_matrix_is_left_alone():
    matrix = np.arange(9).reshape(3, 3)
    before = matrix.copy()
    assert rank(matrix) == 2
    assert (matrix == before).all()


def test_hadamard_matrices_have_full_rank_with_any_signs():
    generator = np.random.default_rng(7)
    hadamard = np.array([[1]])
    for _ in range(7):
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
        signs = generator.choice([-1, 1], len(hadamard))
        assert rank(hadamard * signs) == len(hadamard)
