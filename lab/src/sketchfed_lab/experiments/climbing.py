"""Tuning on grids without ends: from a start, step by step, to a point whose neighbours are all no better."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from sketchfed.runs import Case, Row
from sketchfed_lab.experiments.arms import accuracy, run_arms
from sketchfed_lab.experiments.searching import searched

Point = tuple[int, ...]
"""A place on each axis. Places are integers, so a point is found again exactly."""


@dataclass(frozen=True)
class Axis:
    """The values of one setting, by their place."""

    value: Callable[[int], float]
    least: int | None = None
    """The first place. None if there is none."""
    most: int | None = None
    """The last place. None if there is none."""

    def __contains__(self, place: int) -> bool:
        return (self.least is None or place >= self.least) and (self.most is None or place <= self.most)


def _half_decades(place: int) -> float:
    """…, 0.03, 0.1, 0.3, 1, 3, …; place 0 is 1."""
    return float(f"{3 if place % 2 else 1}e{place // 2}")


HALF_DECADES = Axis(_half_decades)
DOUBLES = Axis(lambda place: 2.0**place)


def decades(least: int) -> Axis:
    """Powers of ten, from 10^least upwards."""
    return Axis(lambda place: float(f"1e{place}"), least)


def climbed(start: Point, axes: Sequence[Axis], scores: Callable[[Sequence[Point]], Sequence[float]]) -> Point:
    """The point that is reached by going to the best neighbour until no neighbour is better.

    Neighbours differ by one place on one axis. `scores` is called with all new neighbours of a point at once.
    """
    found = searched(
        {0: start},
        near=lambda point: neighbours(point, axes),
        scores=lambda wanted: scores([point for _, point in wanted]),
    )
    return found[0]


def neighbours(point: Point, axes: Sequence[Axis]) -> list[Point]:
    """All points that differ from this one by one place on one axis."""
    moved = [(at, point[at] + step) for at in range(len(axes)) for step in (-1, 1)]
    return [(*point[:at], place, *point[at + 1 :]) for at, place in moved if place in axes[at]]


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How all arms of an experiment are tuned: by the accuracy on held-out examples, the mean over seeds and last scores."""

    path: Path
    seeds: Sequence[int]
    last: int
    processes: int
    compute: Callable[[Case], Row]

    def best(self, start: Point, axes: Mapping[str, Axis], case: Callable[[dict[str, float], int], Case]) -> Point:
        """The point that the search ends at. `case` makes a run of the values at a point, by the axes' names, and a seed."""

        def scores(points: Sequence[Point]) -> list[float]:
            cases = [case(values(point, axes), seed) for point in points for seed in self.seeds]
            rows = run_arms(cases, self.path, processes=self.processes, title="tuning", compute=self.compute)
            found, each = [accuracy(row, last=self.last) for row in rows], len(self.seeds)
            return [mean(found[first : first + each]) for first in range(0, len(found), each)]

        return climbed(start, list(axes.values()), scores)


def values(point: Point, axes: Mapping[str, Axis]) -> dict[str, float]:
    """The settings at a point, by name."""
    return {name: axis.value(place) for place, (name, axis) in zip(point, axes.items(), strict=True)}
