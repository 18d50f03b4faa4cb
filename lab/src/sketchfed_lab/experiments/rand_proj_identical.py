"""Jiang et al. 2023, Figure 2 and Theorem 4.3: errors when all clients hold the same vector."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
from rich.console import Console

from sketchfed.report import MUTED, PALETTE, save_chart
from sketchfed_lab.experiments.rand_proj import (
    Cell,
    Row,
    agreement,
    measure,
    points,
    predicted,
    run_all,
    sizes,
    write_comparison,
)

SHOWN = {"Rand-k": MUTED, "Rand-k-Spatial (Max)": PALETTE[3], "Rand-Proj-Spatial (Max)": PALETTE[0]}

TICKS = [digit * 10.0**power for power in range(-3, 4) for digit in (1, 3)]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Three estimators at every n, at k for which n·k is a share of dim in `fills`; R = n − 1."""

    dim: int
    clients: list[int]
    fills: list[float]
    vectors: str
    trials: int
    seed: int
    processes: int


def cells(settings: Settings) -> list[Cell]:
    return [
        Cell(
            estimator=estimator,
            dim=settings.dim,
            clients=clients,
            size=size,
            correlation=clients - 1,
            vectors=settings.vectors,
            trials=settings.trials,
            seed=settings.seed,
        )
        for clients in settings.clients
        for size in sizes(settings.dim, clients, settings.fills)
        for estimator in SHOWN
    ]


def bound(dim: int, clients: int, size: int, deficient: float = 0.0) -> float:
    """Theorem 4.3: the error is at most dim/((1 − δ)nk + δk) − 1 times ‖x‖², if S lacks rank with probability δ.

    >>> bound(1024, 8, 64), round(bound(1024, 8, 64, 0.01), 4)
    (1.0, 1.0177)
    """
    return dim / ((1 - deficient) * clients * size + deficient * size) - 1


def run(settings: Settings, folder: Path) -> None:
    """Measure (results.jsonl), then write table.md and figure.svg."""
    rows = run_all(cells(settings), measure, folder / "results.jsonl", processes=settings.processes, title="identical vectors")
    write_comparison(folder / "table.md", rows, list(SHOWN))
    save_chart(figure(rows), folder / "figure.svg")
    Console().print(agreement(rows), f"Written: {folder}/table.md, figure.svg, results.jsonl")


def figure(rows: list[Row]) -> Any:
    """A panel for each n: lines are predictions, dots what was measured, bars two standard errors either way."""
    shown = points(rows)
    numbers = sorted({point["clients"] for point in shown})
    limits = (0.8 * min(point["low"] for point in shown), 1.25 * max(point["high"] for point in shown))
    panels = [_panel([point for point in shown if point["clients"] == n], limits, first=n == numbers[0]) for n in numbers]
    key = rows[0]["key"]
    return alt.hconcat(*panels).properties(
        title=alt.Title(
            "Identical vectors: every projection adds to what is known, coordinates repeat each other",
            subtitle=f"dim {key['dim']:,}. Lines: closed form, for Rand-Proj-Spatial the bound of Theorem 4.3; dots: mean of "
            f"{key['trials']:,} trials ± 2 standard errors",
        )
    )


def _panel(shown: list[Row], limits: tuple[float, float], *, first: bool) -> Any:
    """One n: error against k."""
    dim, clients = shown[0]["dim"], shown[0]["clients"]
    curves = [
        {"estimator": e, "size": k, "error": predicted(e, dim=dim, clients=clients, size=k, correlation=clients - 1)}
        for e in SHOWN
        for k in range(min(p["size"] for p in shown), max(p["size"] for p in shown) + 1)
    ]
    log = alt.Scale(type="log", domain=limits, nice=False)
    x = alt.X("size:Q", title="k", scale=alt.Scale(nice=False, zero=False, padding=8), axis=alt.Axis(tickCount=5))
    y = alt.Y("error:Q", title="squared error" if first else None, scale=log, axis=alt.Axis(values=TICKS, minExtent=28))
    color = alt.Color(
        "estimator:N",
        scale=alt.Scale(domain=list(SHOWN), range=list(SHOWN.values())),
        legend=alt.Legend(title=None, orient="top"),
    )
    lines = alt.Chart(alt.InlineData(values=curves)).mark_line(strokeWidth=1.5).encode(x, y, color)
    dots = alt.Chart(alt.InlineData(values=shown)).mark_circle(size=45, opacity=1).encode(x, y, color)
    bars = alt.Chart(alt.InlineData(values=shown)).mark_rule(strokeWidth=1.5)
    layers = alt.layer(lines, bars.encode(x, alt.Y("low:Q", scale=log), alt.Y2("high:Q"), color), dots)
    return layers.properties(width=190, height=220, title=alt.Title(f"n = {clients}", fontSize=12))
