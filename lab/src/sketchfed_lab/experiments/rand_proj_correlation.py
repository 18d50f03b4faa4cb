"""Jiang et al. 2023, Figures 3 and 6: errors against the degree of correlation, measured beside the closed form."""

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

SHOWN = {"Rand-k": MUTED, "Rand-k-Spatial (Opt)": PALETTE[3], "Rand-Proj-Spatial": PALETTE[0]}
_STEPS = 40  # of a predicted curve


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Three estimators at every n, at k for which n·k is a share of dim in `fills`, and at R = share·(n − 1)."""

    dim: int
    clients: list[int]
    fills: list[float]
    correlation_shares: list[float]
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
            correlation=round(share * (clients - 1), 6),
            vectors=settings.vectors,
            trials=settings.trials,
            seed=settings.seed,
        )
        for clients in settings.clients
        for size in sizes(settings.dim, clients, settings.fills)
        for share in settings.correlation_shares
        for estimator in SHOWN
    ]


def run(settings: Settings, folder: Path) -> None:
    """Measure (results.jsonl), then write table.md and figure.svg."""
    rows = run_all(cells(settings), measure, folder / "results.jsonl", processes=settings.processes, title="errors against R")
    write_comparison(folder / "table.md", rows, list(SHOWN))
    save_chart(figure(rows), folder / "figure.svg")
    Console().print(agreement(rows), f"Written: {folder}/table.md, figure.svg, results.jsonl")


def figure(rows: list[Row]) -> Any:
    """A panel for each n and k: lines are predictions, dots what was measured, bars two standard errors either way."""
    shown = points(rows)
    numbers = sorted({point["clients"] for point in shown})
    grid = []
    for clients in numbers:
        own = [point for point in shown if point["clients"] == clients]
        ks = sorted({point["size"] for point in own})
        panels = [_panel([p for p in own if p["size"] == k], first=k == ks[0], last=clients == numbers[-1]) for k in ks]
        grid.append(alt.hconcat(*panels))
    key = rows[0]["key"]
    return alt.vconcat(*grid).properties(
        title=alt.Title(
            "Projections use correlation better than coordinates do, by as much as the closed form says",
            subtitle=f"dim {key['dim']:,}, {key['vectors']} vectors. Lines: closed form; dots: mean of {key['trials']:,} "
            "trials ± 2 standard errors",
        )
    )


def _panel(shown: list[Row], *, first: bool, last: bool) -> Any:
    """One n and k: error against R."""
    one = shown[0]
    shape = {name: one[name] for name in ("dim", "clients", "size")}
    most = one["clients"] - 1
    places = [most * (1 - (1 - step / _STEPS) ** 2) for step in range(_STEPS + 1)]  # closer where curves are steep
    curves = [{"estimator": e, "R": r, "error": predicted(e, **shape, correlation=r)} for e in SHOWN for r in places]
    x = alt.X("R:Q", title="R" if last else None, scale=alt.Scale(nice=False), axis=alt.Axis(tickCount=5))
    y = alt.Y("error:Q", title="squared error" if first else None, axis=alt.Axis(tickCount=5, minExtent=32))
    color = alt.Color(
        "estimator:N",
        scale=alt.Scale(domain=list(SHOWN), range=list(SHOWN.values())),
        legend=alt.Legend(title=None, orient="top"),
    )
    lines = alt.Chart(alt.InlineData(values=curves)).mark_line(strokeWidth=1.5).encode(x, y, color)
    dots = alt.Chart(alt.InlineData(values=shown)).mark_circle(size=45, opacity=1).encode(x, y, color)
    bars = alt.Chart(alt.InlineData(values=shown)).mark_rule(strokeWidth=1.5)
    layers = alt.layer(lines, bars.encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), color), dots)
    return layers.properties(width=170, height=150, title=alt.Title(f"n = {one['clients']}, k = {one['size']}", fontSize=12))
