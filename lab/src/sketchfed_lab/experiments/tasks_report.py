"""The tables of the experiments on the three tasks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from sketchfed.report import save_chart
from sketchfed.runs import Row
from sketchfed_lab.experiments import tasks_figures
from sketchfed_lab.experiments.tasks_methods import METHODS, PAPER

Cell = tuple[int, int]

SPLITS = {"iid": "IID", "skewed": "Non-IID"}


def write(task: str, rows: Sequence[Row], settings: Mapping[str, Any], folder: Path) -> None:
    """table.md and the figures; the tables are printed too."""
    text = markdown(rows, settings)
    (folder / "table.md").write_text(text)
    for name, figure in tasks_figures.figures(task, rows).items():
        save_chart(figure, folder / f"{name}.svg")
    Console().print(text, markup=False, highlight=False, soft_wrap=True)


def markdown(rows: Sequence[Row], settings: Mapping[str, Any]) -> str:
    """Errors and losses at equal size and at equal bytes, and times."""
    kept = ", ".join(f"{key} = {value}" for key, value in settings.items() if key != "processes")
    lines = [f"Settings: {kept}.", ""]
    for split in dict.fromkeys(row["key"]["split"] for row in rows if row["key"]["compare"] == "size"):
        lines += [f"## {SPLITS[split]}, at equal size", ""]
        for title, measure in (("Error of the mean: average of the last ten iterations", error), ("Loss at the end", loss)):
            lines += [f"{title}; in bold the least of the paper's five.", "", *_by_cell(rows, split, measure), ""]
    for split in dict.fromkeys(row["key"]["split"] for row in rows if row["key"]["compare"] == "bytes"):
        lines += [f"## {SPLITS[split]}, at equal bytes", "", *_at_equal_bytes(rows, split), ""]
    lines += ["## Time", "", *_times(rows)]
    return "\n".join(lines) + "\n"


def error(row: Row) -> float:
    """The mean square error of the last iterations."""
    return float(row["end"][0])


def loss(row: Row) -> float:
    return float(row["loss"][-1])


def _by_cell(rows: Sequence[Row], split: str, measure: Any) -> list[str]:
    own = [row for row in rows if (row["key"]["compare"], row["key"]["split"]) == ("size", split)]
    cells = sorted({_cell(row) for row in own if row["key"]["size"]})
    lines = _head(["codec", *(f"n = {n}, k = {k}" for n, k in cells)])
    methods = dict.fromkeys(row["key"]["method"] for row in sorted(own, key=_place))
    for method in methods:
        found = {_cell(row): row for row in own if row["key"]["method"] == method}
        entries = []
        for n, k in cells:
            row = found.get((n, k)) or found.get((n, 0))
            best = [measure(other) for other in own if _cell(other) == (n, k) and other["key"]["method"] in PAPER]
            entries.append(_entry(row, measure, bold=row is not None and method in PAPER and measure(row) == min(best)))
        lines.append(_line([method, *entries]))
    return lines


def _entry(row: Row | None, measure: Any, *, bold: bool) -> str:
    if row is None or "refused" in row:
        return "–"
    if "end" not in row:
        return "overflow"
    text = f"{measure(row):.3g}" if measure(row) < 1e4 else f"{measure(row):,.0f}"
    text = f"**{text}**" if bold else text
    return f"{text} ({row['diverged']} overflowed)" if row["diverged"] else text


def _at_equal_bytes(rows: Sequence[Row], split: str) -> list[str]:
    own = [row for row in rows if (row["key"]["compare"], row["key"]["split"]) == ("bytes", split)]
    lines = _head(["clients", "codec", "numbers", "bits", "bytes an iteration", "error", "± (runs)", "loss", "± (runs)"])
    for cell in sorted({_cell(row) for row in own}):
        for row in sorted((row for row in own if _cell(row) == cell and "end" in row), key=error):
            numbers = [str(row["numbers"]), str(row["bits"]), f"{row['bytes'][-1] / len(row['bytes']):.0f}"]
            measured = [row["end"][0], row["end"][1], row["loss"][-1], row["loss_sd"][-1]]
            lines.append(_line([str(cell[0]), row["key"]["method"], *numbers, *(f"{value:.3g}" for value in measured)]))
        refused = [row["key"]["method"] for row in own if _cell(row) == cell and "refused" in row]
        if refused:
            lines.append(_line([str(cell[0]), f"too large: {', '.join(refused)}", *[""] * 7]))
    return lines


def _times(rows: Sequence[Row]) -> list[str]:
    own = [row for row in rows if row["key"]["compare"] == "time" and "encode" in row]
    cells = sorted({_cell(row) for row in own})
    shown = [f"{what}, n = {n}, k = {k}" for n, k in cells for what in ("encode (µs a client)", "decode (ms)")]
    lines = _head(["codec", *shown])
    for method in dict.fromkeys(row["key"]["method"] for row in sorted(own, key=_place)):
        found = {_cell(row): row for row in own if row["key"]["method"] == method}
        entries = [f"{found[cell][what] * scale:.3g}" for cell in cells for what, scale in (("encode", 1e6), ("decode", 1e3))]
        lines.append(_line([method, *entries]))
    return lines


def _cell(row: Row) -> Cell:
    return row["key"]["clients"], row["key"]["size"]


def _place(row: Row) -> int:
    return list(METHODS).index(row["key"]["method"])


def _head(headings: Sequence[str]) -> list[str]:
    return [_line(headings), "| --- " + "| ---: " * (len(headings) - 1) + "|"]


def _line(entries: Sequence[str]) -> str:
    return "| " + " | ".join(entries) + " |"
