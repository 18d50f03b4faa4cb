"""Working memory that a thread keeps from one kernel call to the next.

Fresh memory costs a page fault every few kilobytes, which for long vectors takes as long as the transform that uses it.
"""

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

_ALIGNMENT = 64  # a cache line: vector loads that straddle two of them are slower
_MOST_KEPT = 2**28


class _Kept(threading.local):
    memory: npt.NDArray[np.uint8] = np.empty(0, np.uint8)


_kept = _Kept()


def scratch(count: int, dtype: Any) -> npt.NDArray[Any]:
    """An aligned array of undefined content, valid until this thread asks again. Up to 256 MiB are kept for next time."""
    wanted = count * np.dtype(dtype).itemsize
    if _kept.memory.size >= wanted:
        return _kept.memory[:wanted].view(dtype)
    memory = np.empty(wanted + _ALIGNMENT, np.uint8)
    memory = memory[-memory.ctypes.data % _ALIGNMENT :]
    if wanted <= _MOST_KEPT:
        _kept.memory = memory
    return memory[:wanted].view(dtype)
