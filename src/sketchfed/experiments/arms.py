"""Many runs as one experiment: in parallel, each result appended as it comes, and what is there is not run again."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One run of an experiment: what tells it apart, and its configuration."""

    key: Mapping[str, Any]
    tables: Mapping[str, Any]

    @property
    def name(self) -> str:
        return json.dumps(dict(self.key), sort_keys=True)


Row = dict[str, Any]
"""A result: `key`, that of its arm, and what was measured.

Of training that is `curve`, lists of round, loss, accuracy, and uplink, downlink and broadcast bytes, `diverged`,
`captured`, the shares of a gradient's energy where sketches are adaptive, and `epsilon` where privacy was accounted for.
"""


def run_arms(
    arms: Sequence[Arm],
    path: Path,
    *,
    processes: int = 2,
    title: str = "runs",
    compute: Callable[[Arm], Row] | None = None,
) -> list[Row]:
    """The results of all arms, in their order; those found in the file are taken from there.

    An arm is trained as its tables say unless `compute`, a function of a module, does something else with it.
    """
    done = {json.dumps(row["key"], sort_keys=True): row for row in read_rows(path)}
    missing = [arm for arm in arms if arm.name not in done]
    bar = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*bar, console=Console(), transient=True) as progress, path.open("a") as file:
        task = progress.add_task(title, total=len(arms), completed=len(arms) - len(missing))
        for row in _computed(missing, processes, compute or _compute):
            done[json.dumps(row["key"], sort_keys=True)] = row
            file.write(json.dumps(row) + "\n")
            file.flush()
            progress.advance(task)
    return [done[arm.name] for arm in arms]


def read_rows(path: Path) -> list[Row]:
    """The results in a file; a last line that was cut off is as if it were not there."""
    rows: list[Row] = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    if path.exists():
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def _computed(arms: Sequence[Arm], processes: int, compute: Callable[[Arm], Row]) -> Iterator[Row]:
    if processes == 1:
        yield from map(compute, arms)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(compute, arm) for arm in arms]):
            yield future.result()


def _compute(arm: Arm) -> Row:
    from sketchfed.errors import DivergedError
    from sketchfed.runs import run

    lines: list[dict[str, Any]] = []
    diverged = False
    tables = {**arm.tables, "engine": {"workers": 1, **arm.tables.get("engine", {})}}
    try:
        run(tables, on_round=lines.append)
    except DivergedError:
        diverged = True
    fields = ("round", "loss", "accuracy", "uplink_bytes", "downlink_bytes", "broadcast_bytes")
    curve = [[_short(line[field]) for field in fields] for line in lines if line["loss"] is not None]
    seconds = lines[-1]["seconds"] if lines else 0.0
    row = {"key": dict(arm.key), "diverged": diverged, "curve": curve, "seconds": seconds}
    shares = [_short(line["captured"]) for line in lines if line["captured"] is not None]
    row |= {"captured": shares} if shares else {}
    spent = lines[-1]["epsilon"] if lines else None
    return row if spent is None else row | {"epsilon": spent}


def _short(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value


def accuracy(row: Row, *, last: int = 1) -> float:
    """The mean accuracy over the last so many scores; 0 for what diverged."""
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
