"""Jiang et al. 2023, Figure 7 (Appendix C.3): how often S = Σ GᵢᵀGᵢ lacks rank when the Gᵢ are SRHT."""

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from sketchfed import PublicSeed
from sketchfed.codecs import ENSEMBLES
from sketchfed.errors import InputError
from sketchfed.report import INK, PALETTE, save_chart
from sketchfed_lab.experiments.integer_rank import rank
from sketchfed_lab.experiments.rand_proj import Row, run_all
from sketchfed_lab.experiments.rand_proj_identical import bound
from sketchfed_lab.experiments.tables import write_table


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every n at every dim, with n·k a share of dim in `fills`; `trials` is a number for each of `dims`."""

    dims: list[int]
    trials: list[int]
    clients: list[int]
    fills: list[float]
    seed: int
    processes: int


@dataclass(frozen=True, kw_only=True)
class Cell:
    """n clients with k rows each."""

    dim: int
    clients: int
    size: int
    trials: int
    seed: int


def cells(settings: Settings) -> list[Cell]:
    """All combinations whose k is a whole number."""
    if len(settings.trials) != len(settings.dims):
        raise InputError(
            f"setting 'trials' must be a number for each of the {len(settings.dims)} dims, got {settings.trials!r}."
        )
    return [
        Cell(dim=dim, clients=n, size=int(fill * dim / n), trials=trials, seed=settings.seed)
        for dim, trials in zip(settings.dims, settings.trials, strict=True)
        for n in settings.clients
        for fill in settings.fills
        if (fill * dim / n).is_integer() and fill * dim >= n
    ]


def measure(cell: Cell) -> Row:
    """How often each rank occurred. Ranks are exact: dim·GGᵀ has whole numbers, and the same rank as S."""
    seed = PublicSeed(cell.seed).child("dim", cell.dim).child("clients", cell.clients).child("size", cell.size)
    ranks: Counter[int] = Counter()
    for trial in range(cell.trials):
        own = seed.child("trial", trial)
        maps = ENSEMBLES["srht"](cell.dim, cell.size, [own.child("client", client) for client in range(cell.clients)])
        ranks[rank(np.rint(cell.dim * maps.gram()).astype(np.int64))] += 1
    return {"key": asdict(cell), "ranks": {str(value): count for value, count in sorted(ranks.items(), reverse=True)}}


def deficient(row: Row) -> float:
    """The share of trials in which S had less than n·k as its rank: δ."""
    full = row["key"]["clients"] * row["key"]["size"]
    return 1 - float(row["ranks"].get(str(full), 0) / row["key"]["trials"])


def mean_rank(row: Row) -> float:
    return float(sum(int(value) * count for value, count in row["ranks"].items()) / row["key"]["trials"])


def run(settings: Settings, folder: Path) -> None:
    """Count (results.jsonl), then write table.md and figure.svg."""
    rows = run_all(cells(settings), measure, folder / "results.jsonl", processes=settings.processes, title="ranks")
    write_table(folder / "table.md", HEADINGS, [_line(row) for row in rows], printed=(0, 1, 2, 3, 4, 5, 6))
    save_chart(figure(rows), folder / "figure.svg")


HEADINGS = ("dim", "n", "k", "n·k", "lacking rank", "mean rank", "trials", "dim/mean rank − 1", "bound of Theorem 4.3")


def _line(row: Row) -> list[str]:
    """The last columns are errors for identical vectors, over ‖x‖²: dim/E rank − 1, and what the theorem has for this δ."""
    key, share, average = row["key"], deficient(row), mean_rank(row)
    error = (key["dim"] / average - 1, bound(key["dim"], key["clients"], key["size"], share))
    return [
        *(f"{value:,}" for value in (key["dim"], key["clients"], key["size"], key["clients"] * key["size"])),
        f"{100 * share:.3g} %",
        f"{average:.4g}" if average != round(average) else f"{average:.0f}",
        f"{key['trials']:,}",
        *(f"{value:.4f}" for value in error),
    ]


def figure(rows: list[Row]) -> Any:
    """δ against dim, a line for each n, a panel for each share of dim that n·k is."""
    shown = [
        {
            "dim": row["key"]["dim"],
            "n": str(row["key"]["clients"]),
            "fill": row["key"]["clients"] * row["key"]["size"] / row["key"]["dim"],
            "seen": deficient(row) > 0,
            # Where it never happened, 3/trials is what it is not above, at 95 % confidence.
            "share": deficient(row) or 3 / row["key"]["trials"],
        }
        for row in rows
    ]
    fills = sorted({point["fill"] for point in shown})
    panels = [_panel([p for p in shown if p["fill"] == fill], fill, first=fill == fills[0]) for fill in fills]
    return alt.hconcat(*panels).properties(
        title=alt.Title(
            "S lacks rank often when few clients fill the space, and hardly ever otherwise",
            subtitle="dots: share of trials with rank below n·k; triangles: none in all trials, drawn at 3/trials, a bound "
            "with 95 % confidence; cross: the paper's 2.1 %",
        )
    )


def _panel(shown: list[Row], fill: float, *, first: bool) -> Any:
    scale = alt.Scale(type="log", domain=[2e-5, 1], nice=False)
    axis = alt.Axis(format="~%", values=[1e-4, 1e-3, 0.01, 0.1, 1])
    x = alt.X("dim:O", title="dim", axis=alt.Axis(labelAngle=0))
    y = alt.Y("share:Q", title="lacking rank" if first else None, scale=scale, axis=axis)
    numbers = sorted({point["n"] for point in shown}, key=int)
    color = alt.Color("n:N", title="clients", scale=alt.Scale(domain=numbers, range=PALETTE[: len(numbers)]))
    shape = alt.Shape("seen:N", legend=None, scale=alt.Scale(domain=[True, False], range=["circle", "triangle-down"]))
    base = alt.Chart(alt.InlineData(values=shown))
    layers = [
        base.transform_filter("datum.seen").mark_line(strokeWidth=1, opacity=0.5).encode(x, y, color),
        base.mark_point(size=60, filled=True, opacity=1).encode(x, y, color, shape),
    ]
    if fill == 1:
        published = alt.Chart(alt.InlineData(values=[{"dim": 32, "share": 0.021}]))
        layers.append(published.mark_point(shape="cross", size=110, color=INK, filled=True, opacity=1).encode(x, y))
    return alt.layer(*layers).properties(width=180, height=220, title=alt.Title(f"n·k = {fill:g}·dim", fontSize=12))
