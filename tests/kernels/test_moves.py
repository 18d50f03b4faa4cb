import pytest
import torch

from sketchfed.kernels.jit import forced_twins
from sketchfed.kernels.moves import step_, subtract_if_finite

TYPES = [torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("length", [1, 7, 64, 1_001])
def test_a_step_has_the_bits_of_a_product_and_a_sum(dtype, length):
    weights, direction = torch.randn(2, length, dtype=dtype)
    expected = direction * 0.1 + weights
    twin = direction.clone()
    with forced_twins():
        assert torch.equal(step_(weights, 0.1, twin), expected)
    assert step_(weights, 0.1, direction) is direction
    assert torch.equal(direction, expected)


def test_vectors_that_a_kernel_cannot_take_are_moved_by_torch():
    pairs = torch.randn(2, 50, 2)
    weights, direction = pairs[0, :, 0], pairs[1, :, 0]
    difference = weights - direction
    assert subtract_if_finite(weights, direction)
    assert torch.equal(weights, difference)
    expected = direction * 0.5 + weights
    assert torch.equal(step_(weights, 0.5, direction), expected)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_difference_tells_whether_the_first_vector_was_finite(dtype, bad):
    for place in (0, 31, 99):
        after, before = torch.randn(2, 100, dtype=dtype)
        difference, spoiled = after - before, after.clone()
        spoiled[place] = bad
        assert not subtract_if_finite(spoiled, before)
        assert subtract_if_finite(after, before)
        assert torch.equal(after, difference)
