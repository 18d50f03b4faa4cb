"""How a kernel is compiled, and where it runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numba
from torch import Tensor

Function = Callable[..., Any]

_twins_forced: ContextVar[bool] = ContextVar("twins_forced", default=False)


def kernel(function: Function) -> Function:
    """Compile on first call, keep on disk, release the GIL.

    Where numba cannot keep anything (neither the package's folder nor a home can be written) it compiles anew each time.
    """
    try:
        compiled = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
        _tie_to_all_sources(compiled)
        return compiled
    except (RuntimeError, AttributeError):
        return numba.njit(nogil=True, error_model="numpy")(function)


def _tie_to_all_sources(compiled: Any) -> None:
    """Have numba throw away what it kept when any kernel file changes.

    By itself it looks at the file of the function only, and would go on using a callee that another file has changed: after
    an upgrade two parties could draw different sketches from one seed.
    """
    file = compiled._cache._cache_file
    file._source_stamp = (file._source_stamp, _all_sources())


@cache
def _all_sources() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


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
