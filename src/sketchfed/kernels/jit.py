"""How a kernel is compiled, and where it runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numba
from torch import Tensor

Function = Callable[..., Any]

_twins_forced: ContextVar[bool] = ContextVar("twins_forced", default=False)


def kernel(function: Function) -> Function:
    """Compile on first call, keep on disk, release the GIL.

    Numba refuses to cache when neither the package's folder nor a home can be written: then it compiles anew each time.
    """
    try:
        return numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:
        return numba.njit(nogil=True, error_model="numpy")(function)


def inlined(function: Function) -> Function:
    """A piece of a kernel that is copied into its caller, so that the caller's loop can be vectorised around it."""
    return numba.njit(inline="always", error_model="numpy")(function)


def on_cpu(x: Tensor) -> bool:
    """Whether the numba kernel, rather than its torch twin, works on this tensor."""
    return x.device.type == "cpu" and not _twins_forced.get()


@contextmanager
def forced_twins() -> Iterator[None]:
    """Run the torch twins on the CPU too: how tests compare them with the kernels."""
    token = _twins_forced.set(True)
    try:
        yield
    finally:
        _twins_forced.reset(token)
