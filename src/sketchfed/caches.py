"""Results that are computed once and then shared by everybody in this process.

Clients of one process use the same sketches, terms and signatures, so a simulation computes each of them once. A client on a
machine of its own has nothing to share: `clear_caches` puts a process in its place.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

__all__ = ["cached", "cached_within", "clear_caches"]

_Result = TypeVar("_Result")

_CACHES: "list[_lru_cache_wrapper[Any] | _KeptWithin[Any]]" = []


def cached(*, maxsize: int) -> "Callable[[Callable[..., _Result]], _lru_cache_wrapper[_Result]]":
    """`functools.lru_cache`, for functions of a module, whose results `clear_caches` can forget."""

    def decorate(function: Callable[..., _Result]) -> "_lru_cache_wrapper[_Result]":
        made = lru_cache(maxsize=maxsize)(function)
        _CACHES.append(made)
        return made

    return decorate


def cached_within(*, room: int) -> "Callable[[Callable[..., _Result]], _KeptWithin[_Result]]":
    """Like `cached`, for functions that return tuples of tensors. The latest results are kept, as many as fit into `room`
    bytes, and the last one in any case.
    """
    return lambda function: _KeptWithin(function, room)


class _KeptWithin(Generic[_Result]):
    """A function with its latest results."""

    def __init__(self, function: Callable[..., _Result], room: int) -> None:
        self._function, self._room, self._size = function, room, 0
        self._kept: OrderedDict[tuple[object, ...], _Result] = OrderedDict()
        self._lock = Lock()
        _CACHES.append(self)

    def __call__(self, *arguments: object) -> _Result:
        with self._lock:
            if arguments not in self._kept:
                self._kept[arguments] = found = self._function(*arguments)
                self._size += _bytes(found)
                while self._size > self._room and len(self._kept) > 1:
                    self._size -= _bytes(self._kept.popitem(last=False)[1])
            self._kept.move_to_end(arguments)
            return self._kept[arguments]

    def cache_clear(self) -> None:
        """Forget all results."""
        with self._lock:
            self._kept.clear()
            self._size = 0


def _bytes(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def clear_caches() -> None:
    """Forget what functions with `cached` have computed. Results stay the same: what is needed again is computed again.

    Use it to time the work of one client in a process that plays many, or to free memory between runs.
    """
    for made in _CACHES:
        made.cache_clear()
