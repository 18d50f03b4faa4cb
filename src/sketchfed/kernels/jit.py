"""How a kernel is compiled, and where it runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import numba
from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., object])

_twins_forced: ContextVar[bool] = ContextVar("twins_forced", default=False)


def kernel(function: Function) -> Function:
    """Compile on first call, keep on disk, release the GIL.

    Numba refuses to cache when neither the package's folder nor a home can be written: then it compiles anew each time.
    """
    try:
        return numba.njit(nogil=True, cache=True, error_model="numpy")(function)  # type: ignore[no-any-return]
    except RuntimeError:
        return numba.njit(nogil=True, error_model="numpy")(function)  # type: ignore[no-any-return]


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
