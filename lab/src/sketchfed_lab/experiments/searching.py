"""The one rule by which experiments look for settings: go to better neighbours until there are none."""

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

Place = TypeVar("Place", bound=Hashable)
Point = TypeVar("Point", bound=Hashable)


def searched(
    starts: Mapping[Place, Point],
    *,
    near: Callable[[Point], Sequence[Point]],
    scores: Callable[[Sequence[tuple[Place, Point]]], Sequence[float]],
    tries: int = sys.maxsize,
) -> dict[Place, Point]:
    """The point with the highest score for each place.

    A search begins at the point in `starts`, and tries the neighbours of the best point so far. It ends when all of them are
    known, or after `tries` points. `scores` measures many points at a time, so that they can be run in parallel.
    """
    known: dict[Place, dict[Point, float]] = {place: {} for place in starts}
    best: dict[Place, Point] = {}
    wanted: list[tuple[Place, Point]] = list(starts.items())
    while wanted:
        for (place, point), score in zip(wanted, scores(wanted), strict=True):
            known[place][point] = score
        wanted = []
        for place, own in known.items():
            best[place] = max(own, key=own.__getitem__)
            wanted += [(place, point) for point in near(best[place]) if point not in own][: tries - len(own)]
    return best


def halves_and_doubles(point: tuple[float, ...]) -> list[tuple[float, ...]]:
    """The neighbours of a point: one of its numbers is twice or half as large."""
    return [
        tuple(factor * value if other == place else value for other, value in enumerate(point))
        for place in range(len(point))
        for factor in (2.0, 0.5)
    ]
