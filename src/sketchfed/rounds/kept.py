"""A cache of the clients' prepared data."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from sketchfed.training import Examples

ROOM = 2**28
"""The size of the cache in bytes."""


class KeptExamples:
    """Caches the examples of the most recently used clients, because preparing them can take longer than training."""

    def __init__(self, examples: Callable[[int], Examples], *, room: int = ROOM) -> None:
        self._examples, self._room = examples, room
        self._kept: OrderedDict[int, Examples] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def __call__(self, client: int) -> Examples:
        with self._lock:
            if client in self._kept:
                self._kept.move_to_end(client)
                return self._kept[client]
        prepared = self._examples(client)
        with self._lock:
            if client not in self._kept:
                self._kept[client] = prepared
                self._size += _bytes(prepared)
            while self._size > self._room:
                self._size -= _bytes(self._kept.popitem(last=False)[1])
        return prepared


def _bytes(examples: Examples) -> int:
    """The size of what was prepared. Data that is handed on as it is takes no room."""
    return examples.x.nbytes + examples.y.nbytes if isinstance(examples, Examples) else 0
