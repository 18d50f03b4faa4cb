"""What the benchmarks share: one thread, interleaved timing, a table, a line of JSON a measurement."""

import gc
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import numpy.typing as npt
import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from sketchfed.report import MUTED
from sketchfed.training import one_thread as one_thread

Repeat = Callable[[int], object]
"""A contestant: called with n, it does its work n times."""


def repeated(work: Callable[[], object]) -> Repeat:
    """A contestant from something called from Python: the price of the call belongs to what its user pays."""

    def repeat(times: int) -> None:
        for _ in range(times):
            work()

    return repeat


def race(contestants: Mapping[str, Repeat], *, rounds: int, turn: float) -> dict[str, float]:
    """CPU seconds of one piece of work of each contestant: the least over rounds in which they take turns.

    A turn repeats the work for about `turn` seconds, so that the clock's own cost vanishes. What disturbs a machine for
    a while disturbs all contestants of a round, and the least of several rounds is what the work costs undisturbed.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        times = {name: _times_for(repeat, turn) for name, repeat in contestants.items()}
        best = dict.fromkeys(contestants, float("inf"))
        for _ in range(rounds):
            for name, repeat in contestants.items():
                best[name] = min(best[name], cpu_seconds(repeat, times[name]) / times[name])
        return best
    finally:
        if collecting:
            gc.enable()


def _times_for(repeat: Repeat, seconds: float) -> int:
    repeat(1)  # compiles, draws what is kept, touches the pages
    times = 1
    while (taken := cpu_seconds(repeat, times)) < seconds / 2:
        times *= 2 if taken < seconds / 20 else max(2, round(seconds / taken))
    return times


def cpu_seconds(repeat: Repeat, times: int) -> float:
    """CPU seconds that all threads of this process spend while the contestant works."""
    start = time.process_time()
    repeat(times)
    return time.process_time() - start


def zeros(count: int) -> npt.NDArray[np.float32]:
    """Torch's own kind of memory, which begins on a cache line. Adding zeros takes as long as adding anything else."""
    return torch.zeros(count).numpy()


def machine() -> dict[str, str]:
    """What a ratio may depend on: the processor and the versions of what was timed."""
    described = {"cpu": _cpu_model(), "system": f"{platform.system()} {platform.machine()}", "cores": str(os.cpu_count())}
    described["python"] = platform.python_version()
    for package in ("sketchfed", "numba", "numpy", "torch", "scipy"):
        try:
            described[package] = version(package)
        except PackageNotFoundError:
            described[package] = "not installed"
    return described


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """How long `what` took; `facts` holds dim, size and whatever else tells measurements of a topic apart.

    `ratio` is this time divided by that of `over` in the same race, and must be `at_most` or `at_least` something if that
    was asked.
    """

    topic: str
    what: str
    seconds: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    over: str | None = None
    ratio: float | None = None
    at_most: float | None = None
    at_least: float | None = None

    @property
    def met(self) -> bool | None:
        if self.ratio is None or (self.at_most is None and self.at_least is None):
            return None
        return (self.at_least or 0) <= self.ratio <= (self.at_most or math.inf)

    def row(self) -> dict[str, Any]:
        own = {name: value for name, value in asdict(self).items() if value is not None and name != "facts"}
        return {**own, **self.facts} | ({} if self.met is None else {"met": self.met})


def append_jsonl(path: Path, measurements: Iterable[Measurement]) -> None:
    """One JSON object a measurement, each with the date and the machine, so that files can be joined and cut freely."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stamp = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine()}
    with path.open("a", encoding="utf-8") as file:
        for measurement in measurements:
            file.write(json.dumps({**measurement.row(), **stamp}, ensure_ascii=False) + "\n")


def progress(console: Console) -> Progress:
    """A progress bar that draws only when told to: a refreshing thread would be timed along with the work."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, auto_refresh=False, transient=True)


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]], *, caption: str | None = None) -> Table:
    """First column to the left, the others to the right."""
    made = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    made.title_justify = made.caption_justify = "left"
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number else "left")
    for row in rows:
        made.add_row(*row)
    return made


def judged(measurement: Measurement) -> str:
    """A ratio as a cell, marked by whether its target was met; plain if nothing was asked."""
    ratio = measurement.ratio or 0.0
    text = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
    if measurement.met is None:
        return text
    return f"[green]{text}[/green]" if measurement.met else f"[bold red]{text} ✗[/bold red]"


def human_seconds(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def human_dim(dim: int) -> str:
    """Powers of two as such.

    >>> human_dim(1024), human_dim(1000)
    ('2^10', '1,000')
    """
    return f"2^{dim.bit_length() - 1}" if dim & (dim - 1) == 0 else f"{dim:,}"


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a panel: values over logarithms of dim. Dashed lines are what was asked for or would be ideal."""

    label: str
    points: Mapping[int, float]
    colour: str = MUTED
    dashed: bool = False


def panel(lines: Sequence[Line], *, title: str, subtitle: str, values: str) -> alt.LayerChart:
    """Lines over dim, both axes logarithmic, each with its name at its right end instead of a legend."""
    points = [
        {"line": number, "dashed": line.dashed, "log": log, "value": value, "colour": line.colour}
        for number, line in enumerate(lines)
        for log, value in sorted(line.points.items())
    ]
    logs = sorted({log for line in lines for log in line.points})
    heights = [height for line in lines for height in line.points.values()]
    names = " : ".join(f"datum.value == {log} ? '{human_dim(1 << log)}'" for log in logs)
    even = [log for log in logs if log % 2 == 0]
    across = alt.Axis(values=even, labelExpr=f"{names} : ''", labelFlush=False, grid=False)
    upward = alt.Axis(values=[step * 10**power for power in range(-3, 6) for step in (1, 2, 5)], format="~g")
    x = alt.X("log:Q", title="dim", axis=across, scale=alt.Scale(domain=[logs[0], logs[-1]], nice=False))
    scale = alt.Scale(type="log", domain=[min(heights) / 1.15, max(heights) * 1.15], nice=False)
    y = alt.Y("value:Q", title=values, scale=scale, axis=upward)
    colour = alt.Color("colour:N", scale=None)
    base = alt.Chart(alt.InlineData(values=points)).encode(x=x, y=y, color=colour, detail="line:N")
    drawn: list[Any] = [
        base.transform_filter("datum.dashed").mark_line(strokeDash=[4, 3], strokeWidth=1.3, opacity=0.8),
        base.transform_filter("!datum.dashed").mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=24)),
        alt.Chart(alt.InlineData(values=_labels(lines, heights)))
        .mark_text(align="left", dx=8, fontSize=11)
        .encode(x=x, y=y, color=colour, text="label:N"),
    ]
    return alt.LayerChart(layer=drawn, title=alt.Title(title, subtitle=subtitle), width=380, height=280)


def _labels(lines: Sequence[Line], heights: Sequence[float]) -> list[dict[str, Any]]:
    """Names where the lines end, pushed apart upwards so that no two overlap."""
    gap = (1.3 * max(heights) / min(heights)) ** 0.055  # as much of the panel's height as a line of text takes
    placed: list[dict[str, Any]] = []
    floor = 0.0
    for line in sorted((line for line in lines if line.label), key=lambda line: line.points[max(line.points)]):
        floor = max(line.points[max(line.points)], floor * gap)
        placed.append({"label": line.label, "log": max(line.points), "value": floor, "colour": line.colour})
    return placed
