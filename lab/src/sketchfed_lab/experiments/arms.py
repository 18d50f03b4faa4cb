"""Many runs as one experiment, with a progress bar, and what reports read from their results."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sketchfed.runs import Case, Row, sweep, trained


def run_arms(
    arms: Sequence[Case],
    path: Path,
    *,
    processes: int = 2,
    title: str = "runs",
    compute: Callable[[Case], Row] = trained,
) -> list[Row]:
    """The results of all arms, in their order; those found in the file are taken from there.

    An arm is trained as its tables say unless `compute`, a function of a module, does something else with it.
    """
    bar = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*bar, console=Console(), transient=True) as progress:
        task = progress.add_task(title, total=len(arms))
        return sweep(arms, path, processes=processes, compute=compute, on_row=lambda _: progress.advance(task))


def accuracy(row: Row, *, last: int = 1) -> float:
    """The mean accuracy of the last `last` scores; 0 for a run that diverged."""
    scores = [point[2] for point in row["curve"][-last:]]
    return sum(scores) / len(scores) if scores and not row["diverged"] else 0.0


def arrival(row: Row, target: float) -> list[Any] | None:
    """The point of the curve at which the target accuracy was first reached."""
    return next((point for point in row["curve"] if point[2] >= target), None)


def best_of(rows: Sequence[Row], by: Sequence[str], score: Callable[[Row], Any]) -> dict[tuple[Any, ...], Row]:
    """For each combination of the key's fields in `by`, the row with the highest score."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        group = tuple(row["key"][field] for field in by)
        if group not in found or score(row) > score(found[group]):
            found[group] = row
    return found
