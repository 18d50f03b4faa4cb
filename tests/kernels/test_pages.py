"""Memory for long vectors."""

import gc

import pytest
import torch

from sketchfed.kernels.jit import forced_twins
from sketchfed.kernels.pages import copy_of, empty_like, used_again

LONG = 2**20 + 5  # numbers: just above 4 MiB


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("shape", [(3,), (LONG,), (2, LONG // 2)])
def test_a_copy_holds_the_same_numbers_in_memory_of_its_own(shape, dtype):
    x = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    copy = copy_of(x)
    assert torch.equal(copy, x)
    assert (copy.dtype, copy.shape, copy.is_contiguous()) == (dtype, x.shape, True)
    copy.zero_()
    assert x.any()


def test_a_copy_of_a_slice_and_of_what_has_a_gradient_is_a_plain_tensor():
    x = torch.rand(LONG, 2, requires_grad=True)
    copy = copy_of(x[:, 1])
    assert torch.equal(copy, x[:, 1].detach())
    assert copy.is_contiguous()
    assert not copy.requires_grad


def test_long_vectors_begin_with_a_cache_line():
    assert all(empty_like(torch.zeros(1), LONG + i).data_ptr() % 64 == 0 for i in range(5))


def test_within_the_context_memory_is_used_again_but_never_while_somebody_holds_it():
    like = torch.zeros(1)
    with used_again():
        first = empty_like(like, LONG)
        place, part = first.data_ptr(), first[10:20].numpy()
        del first
        assert empty_like(like, LONG).data_ptr() != place, "a slice of it is still there"
        del part
        held = [empty_like(like, LONG), empty_like(like, LONG + 1)]
        assert held[0].data_ptr() == place
        assert len({each.data_ptr() for each in [*held, empty_like(like, LONG)]}) == 3


def test_nothing_is_kept_after_the_context():
    like = torch.zeros(1)
    with used_again(), used_again():
        empty_like(like, LONG)
    vector = empty_like(like, LONG)
    del vector
    gc.collect()
    from sketchfed.kernels import pages

    assert pages._spare._memory is None


def test_other_devices_allocate_for_themselves():
    with forced_twins():
        assert torch.equal(copy_of(torch.ones(LONG)), torch.ones(LONG))
