"""The clock of a contestant: wall time of each round, and the CPU time of its whole tree of processes."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any


class Laps:
    """Called once at the start or at the end of a first round, and then at the end of each round.

    The first `skipped` rounds after that are not counted. CPU time is read before the first counted round and after the last
    one, so that reading it is part of none.
    """

    def __init__(self, *, skipped: int, rounds: int) -> None:
        self._first, self._last = skipped, skipped + rounds
        self._ends: list[float] = []
        self.facts: dict[str, Any] = {}
        """What else the contestant tells of itself."""
        self._before: float | None = None
        self._after: float | None = None

    def __call__(self) -> None:
        place = len(self._ends)
        if place == self._first:
            self._before = tree_seconds()
        self._ends.append(time.perf_counter())
        if place == self._last:
            self._after = tree_seconds()

    @property
    def seconds(self) -> Sequence[float]:
        """Wall time of each counted round."""
        return [end - start for start, end in pairwise(self._ends[self._first : self._last + 1])]

    @property
    def cpu_seconds(self) -> float | None:
        """Mean CPU time of a counted round, of this process and all that it started. None where the system does not tell."""
        if self._before is None or self._after is None:
            return None
        return (self._after - self._before) / (self._last - self._first)


def tree_seconds() -> float | None:
    """CPU seconds of this process and of all processes below it, dead or alive, where Linux tells them."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = entry.read_text().rpartition(")")[2].split()
            pid = int(entry.parent.name)
            parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))  # its own, and of those it waited for
    if os.getpid() not in ticks:
        return None
    return sum(count for pid, count in ticks.items() if _below(pid, parents)) / os.sysconf("SC_CLK_TCK")


def _below(pid: int, parents: dict[int, int]) -> bool:
    """Whether a process is this one or was started by it or below it."""
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()
