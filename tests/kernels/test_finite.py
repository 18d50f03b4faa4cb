import pytest
import torch

from sketchfed.kernels.finite import all_finite
from sketchfed.kernels.jit import forced_twins


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_value_is_seen_wherever_it_is(dtype, bad):
    for place in (0, 7, 63, 99):
        x = torch.zeros(4, 25, dtype=dtype)
        x.view(-1)[place] = bad
        assert not all_finite(x)
        with forced_twins():
            assert not all_finite(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_largest_and_smallest_numbers_are_finite(dtype):
    info = torch.finfo(dtype)
    x = torch.tensor([info.max, info.min, info.tiny, info.smallest_normal / 4, -0.0, 1.0], dtype=dtype)
    assert all_finite(x)
    assert all_finite(x[:0])
