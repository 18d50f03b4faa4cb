"""Working memory that a thread keeps from one kernel call to the next.

Fresh memory costs a page fault every few kilobytes, which for long vectors takes as long as the transform that uses it.
"""

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from sketchfed.kernels.pages import aligned

_MOST_KEPT = 2**26


class _Kept(threading.local):
    memory: npt.NDArray[np.uint8] = np.empty(0, np.uint8)


_kept = _Kept()


def scratch(count: int, dtype: Any) -> npt.NDArray[Any]:
    """An aligned array of undefined content, valid until this thread asks again. Up to 64 MiB are kept for next time."""
    wanted = count * np.dtype(dtype).itemsize
    if _kept.memory.size >= wanted:
        return _kept.memory[:wanted].view(dtype)
    memory = aligned(wanted, np.uint8)
    if wanted <= _MOST_KEPT:
        _kept.memory = memory
    return memory.view(dtype)
