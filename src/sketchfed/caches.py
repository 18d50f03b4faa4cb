"""Results that are computed once and then shared by everybody in this process.

Clients of one process use the same sketches, terms and signatures, so a simulation computes each of them once. A client on a
machine of its own has nothing to share: `clear_caches` puts a process in its place.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

__all__ = ["cached", "clear_caches"]

_Result = TypeVar("_Result")

_CACHES: "list[_lru_cache_wrapper[Any]]" = []


def cached(*, maxsize: int) -> "Callable[[Callable[..., _Result]], _lru_cache_wrapper[_Result]]":
    """`functools.lru_cache`, for functions of a module, whose results `clear_caches` can forget."""

    def decorate(function: Callable[..., _Result]) -> "_lru_cache_wrapper[_Result]":
        made = lru_cache(maxsize=maxsize)(function)
        _CACHES.append(made)
        return made

    return decorate


def clear_caches() -> None:
    """Forget what functions with `cached` have computed. Results stay the same: what is needed again is computed again.

    Use it to time the work of one client in a process that plays many, or to free memory between runs.
    """
    for made in _CACHES:
        made.cache_clear()
