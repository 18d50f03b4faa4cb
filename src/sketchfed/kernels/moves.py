"""Differences and steps of long vectors in one pass each: memory is what takes the time."""

import torch
from torch import Tensor

from sketchfed.kernels.finite import all_finite
from sketchfed.kernels.jit import kernel, on_cpu

_TYPES = (torch.float32, torch.float64)


@kernel
def _subtract(after, before):
    found = False
    for i in range(after.size):
        value = after[i]
        found |= value - value != 0  # true of NaN and infinity only
        after[i] = value - before[i]
    return found


@kernel
def _step(weights, rate, direction):
    for i in range(direction.size):
        direction[i] = rate * direction[i] + weights[i]


def subtract_if_finite(after: Tensor, before: Tensor) -> bool:
    """`after` ← after − before, in place. Returns whether `after` held only finite numbers."""
    if not _together(after, before):
        finite = all_finite(after)
        after.sub_(before)
        return finite
    return not _subtract(after.numpy(), before.numpy())


def step_(weights: Tensor, rate: float, direction: Tensor) -> Tensor:
    """`direction` ← weights + rate·direction, in place.

    The product is rounded before it is added, so every processor gets the same bits.
    """
    if not _together(weights, direction):
        return direction.mul_(rate).add_(weights)
    array = direction.numpy()
    _step(weights.numpy(), array.dtype.type(rate), array)
    return direction


def _together(*tensors: Tensor) -> bool:
    """Whether a kernel can take these vectors: all on the CPU, of one type, and without gaps."""
    shape, dtype = tensors[0].shape, tensors[0].dtype
    alike = all(t.shape == shape and t.dtype == dtype and t.is_contiguous() and on_cpu(t) for t in tensors)
    return alike and dtype in _TYPES and len(shape) == 1
