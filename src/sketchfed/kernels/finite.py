"""Whether a tensor holds NaN or infinity, at the price of reading it once."""

import numpy as np
import torch
from torch import Tensor

from sketchfed.kernels.jit import kernel, on_cpu

_EXPONENT = {torch.float32: (np.int32, np.int32(0x7F800000)), torch.float64: (np.int64, np.int64(0x7FF0000000000000))}


@kernel
def _some_exponent_is_full(bits, exponent):
    found = False
    for i in range(bits.size):
        found |= bits[i] & exponent == exponent
    return found


def all_finite(t: Tensor) -> bool:
    """For contiguous float32 or float64: no value has all bits of its exponent set, as NaN and infinity have."""
    if not on_cpu(t):
        return bool(torch.isfinite(t).all())
    integer, exponent = _EXPONENT[t.dtype]
    return not _some_exponent_is_full(t.numpy().reshape(-1).view(integer), exponent)
