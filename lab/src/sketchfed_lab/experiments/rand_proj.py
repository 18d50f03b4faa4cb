"""Errors of mean estimators over many independent rounds, as Jiang et al. 2023 simulate them, beside what theory says."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sketchfed import PublicSeed
from sketchfed.codecs import Codec, correlation_of, example_vectors, make_codec, squared_errors
from sketchfed.report import with_error
from sketchfed.runs import read_rows
from sketchfed_lab.experiments.tables import write_table

ESTIMATORS: dict[str, tuple[str, str | None]] = {
    "Rand-k": ("rand_k", None),
    "Rand-k-Spatial (Max)": ("rand_k_spatial", "max"),
    "Rand-Proj-Spatial (Max)": ("rand_proj_spatial", "max"),
    "Rand-k-Spatial (Opt)": ("rand_k_spatial", "known"),
    "Rand-Proj-Spatial": ("rand_proj_spatial", "known"),
}
"""The paper's names: which codec each is, and what it believes of the correlation."""

_ROUNDING = 1e-6

Row = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One point of a figure. `correlation` is what was asked for; base vectors come as near as they can."""

    estimator: str
    dim: int
    clients: int
    size: int
    correlation: float
    vectors: str
    trials: int
    seed: int


def sizes(dim: int, clients: int, fills: Sequence[float]) -> list[int]:
    """The k with n·k nearest below these shares of dim, each once.

    >>> sizes(1024, 21, [0.2, 0.4, 0.9])
    [9, 19, 43]
    """
    return sorted({max(1, int(fill * dim / clients)) for fill in fills})


def make_estimator(estimator: str, *, dim: int, clients: int, size: int, correlation: float) -> Codec:
    """The codec that the paper calls so, told the true correlation if it is one that knows it."""
    name, belief = ESTIMATORS[estimator]
    options: dict[str, Any] = {} if belief is None else {"correlation": correlation if belief == "known" else belief}
    return make_codec(name, dim=dim, size=size, clients=clients, **options)


def measure(cell: Cell) -> Row:
    """Mean and standard error of ‖estimate − mean‖² over independent rounds, and the closed form for the same vectors."""
    x = example_vectors(cell.vectors, clients=cell.clients, dim=cell.dim, correlation=cell.correlation, seed=cell.seed)
    exact = correlation_of(x)
    codec = make_estimator(cell.estimator, dim=cell.dim, clients=cell.clients, size=cell.size, correlation=exact)
    seed = PublicSeed(cell.seed).child(cell.estimator).child("clients", cell.clients).child("size", cell.size)
    errors = squared_errors(codec, x, trials=cell.trials, seed=seed.child("correlation", round(1000 * cell.correlation)))
    return {
        "key": asdict(cell),
        "correlation": exact,
        "error": mean(errors),
        "standard_error": stdev(errors) / math.sqrt(len(errors)),
        "predicted": codec.mse(float(x.double().square().sum()), exact),
    }


def run_all(cells: Sequence[T], compute: Callable[[T], Row], path: Path, *, processes: int, title: str) -> list[Row]:
    """What `compute` makes of all cells, in their order; what the file already has is not computed again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {_name(row["key"]): row for row in read_rows(path)}
    missing = [cell for cell in cells if _name(asdict(cell)) not in done]  # type: ignore[call-overload]
    bar = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*bar, console=Console(), transient=True) as progress, path.open("a") as file:
        task = progress.add_task(title, total=len(cells), completed=len(cells) - len(missing))
        for row in _computed(missing, compute, processes):
            done[_name(row["key"])] = row
            file.write(json.dumps(row) + "\n")
            file.flush()
            progress.advance(task)
    rows = [done[_name(asdict(cell))] for cell in cells]  # type: ignore[call-overload]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def _computed(cells: Sequence[T], compute: Callable[[T], Row], processes: int) -> Iterator[Row]:
    if processes == 1:
        yield from map(compute, cells)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        try:
            for future in as_completed([pool.submit(compute, cell) for cell in cells]):
                yield future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)  # what fails once will fail again
            raise


def _name(key: dict[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


def deviation(row: Row) -> float:
    """How many standard errors the measured error lies above the predicted one.

    Where every trial has the same error, as that of a reflection has, rounding to float32 is what is left.
    """
    return float((row["error"] - row["predicted"]) / max(row["standard_error"], _ROUNDING * row["predicted"]))


def agreement(rows: Sequence[Row]) -> str:
    """A sentence: how many of the points lie within two and three standard errors of theory."""
    apart = sorted(abs(deviation(row)) for row in rows)
    within = [sum(value <= limit for value in apart) for limit in (2, 3)]
    return (
        f"Of {len(apart)} points, {within[0]} lie within two standard errors of the prediction and {within[1]} within three; "
        f"the farthest is {apart[-1]:.1f} away."
    )


def write_comparison(path: Path, rows: Sequence[Row], estimators: Sequence[str]) -> None:
    """A line for each n, k and R: measured and predicted error of every estimator side by side."""
    found: dict[tuple[int, int, float], dict[str, Row]] = {}
    for row in rows:
        key = row["key"]
        found.setdefault((key["clients"], key["size"], key["correlation"]), {})[key["estimator"]] = row
    lines = []
    for (clients, size, _), by in found.items():
        line = [str(clients), str(size), f"{round(by[estimators[0]]['correlation'], 3) + 0.0:g}"]
        for estimator in estimators:
            row = by[estimator]
            line += [with_error(row["error"], row["standard_error"]), f"{row['predicted']:.4g}"]
        lines.append(line)
    headings = ["n", "k", "R", *(heading for name in estimators for heading in (name, "predicted"))]
    write_table(path, headings, lines, printed=(0, 1, 2, *range(3, len(headings), 2)))


def points(rows: Sequence[Row]) -> list[Row]:
    """What a figure shows of the rows, with two standard errors either way."""
    return [
        {
            **row["key"],
            "R": row["correlation"],
            "error": row["error"],
            "low": max(row["error"] - 2 * row["standard_error"], row["error"] / 10),
            "high": row["error"] + 2 * row["standard_error"],
        }
        for row in rows
    ]


def predicted(estimator: str, *, dim: int, clients: int, size: int, correlation: float) -> float:
    """The closed form for vectors whose square norms sum to their number."""
    error = make_estimator(estimator, dim=dim, clients=clients, size=size, correlation=correlation).mse(clients, correlation)
    assert error is not None
    return error
