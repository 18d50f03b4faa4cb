"""Memory for long vectors: in large pages where the system has them, and used again while a run is under way.

The system clears fresh memory when it is first written to, page by page. In pages of 4 KiB this takes longer than the writing
itself. NumPy asks Linux for pages of 2 MiB, and torch does not. Memory that was used before needs no clearing.
"""

import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sketchfed.kernels.jit import on_cpu

_ALIGNMENT = 64  # a cache line, as torch does: vector loads that straddle two of them are slower
_LEAST = 2**22  # bytes from which NumPy asks for large pages
_LARGEST_BLOCK = 2**25 - 2**16  # bytes: glibc looks at blocks up to 32 MiB, and keeps twice as much as the largest one freed
_TYPES = {torch.float32: np.float32, torch.float64: np.float64}


class _Spare:
    """The memory of one long vector that nobody needs any more. In a round, the next vector of this size soon follows."""

    def __init__(self) -> None:
        self._lock, self._users = Lock(), 0
        self._memory: npt.NDArray[np.uint8] | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._memory = None

    def take(self, size: int) -> npt.NDArray[np.uint8] | None:
        """The memory, if it has this size."""
        with self._lock:
            found = self._memory if self._memory is not None and self._memory.size == size else None
            if found is not None:
                self._memory = None
        return found

    def give(self, memory: npt.NDArray[np.uint8]) -> None:
        # Called wherever the last reference vanishes, perhaps while this very thread holds the lock.
        if self._users and self._lock.acquire(blocking=False):
            self._memory = memory
            self._lock.release()


_spare = _Spare()


@contextmanager
def used_again() -> Iterator[None]:
    """Within this context, the memory of a long vector waits for the next vector of the same size.

    Short tensors are the business of malloc. That of Linux gives the end of its memory back to the system again and again,
    and a training step then waits for pages to be cleared, until it has seen a large block come and go.
    """
    np.empty(_LARGEST_BLOCK, np.uint8)
    with _spare.kept():
        yield


def aligned(count: int, dtype: Any) -> npt.NDArray[Any]:
    """A new array of undefined content that begins with a cache line."""
    return _from_line(np.empty(count * np.dtype(dtype).itemsize + _ALIGNMENT, np.uint8)).view(dtype)


def _from_line(memory: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + memory.size - _ALIGNMENT]


def empty_like(t: Tensor, *shape: int) -> Tensor:
    """A new tensor of undefined content, with the type and on the device of another one."""
    size = math.prod(shape) * t.itemsize
    if not on_cpu(t) or t.dtype not in _TYPES or size < _LEAST:
        return t.new_empty(shape)
    memory = _spare.take(size + _ALIGNMENT)
    if memory is None:
        memory = np.empty(size + _ALIGNMENT, np.uint8)
    array = _from_line(memory).view(_TYPES[t.dtype])
    weakref.finalize(array, _spare.give, memory).atexit = False  # torch holds the array as long as the memory is in use
    return torch.from_numpy(array).view(shape)


def copy_of(t: Tensor) -> Tensor:
    """A contiguous copy of a tensor."""
    return empty_like(t, *t.shape).copy_(t.detach())
