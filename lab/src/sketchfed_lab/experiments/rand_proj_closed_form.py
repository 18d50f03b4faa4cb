"""Jiang et al. 2023, Theorem 4.4, and what the paper simulates: β and the error in closed form, for every ensemble."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import altair as alt
import numpy as np
from rich.console import Console
from threadpoolctl import threadpool_limits

from sketchfed import PublicSeed
from sketchfed.codecs import ENSEMBLES, example_vectors, make_codec, squared_errors
from sketchfed.report import INK, PALETTE, save_chart, with_error
from sketchfed_lab.experiments.rand_proj import Row, agreement, run_all, sizes
from sketchfed_lab.experiments.tables import write_table

_ZERO = 1e-9  # eigenvalues below this are none


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every ensemble at the smallest dim, told the truth; SRHT at every dim, with every belief.

    `trials` rounds are for the error, `draws` of S for β.
    """

    dims: list[int]
    clients: list[int]
    fills: list[float]
    correlation_shares: list[float]
    beliefs: list[str]
    trials: int
    draws: int
    seed: int
    processes: int


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One ensemble, one belief, vectors of one correlation."""

    ensemble: str
    belief: str
    dim: int
    clients: int
    size: int
    correlation: float
    trials: int
    draws: int
    seed: int


def cells(settings: Settings) -> list[Cell]:
    return [
        Cell(
            ensemble=ensemble,
            belief=belief,
            dim=dim,
            clients=clients,
            size=size,
            correlation=round(share * (clients - 1), 6),
            trials=settings.trials,
            draws=settings.draws,
            seed=settings.seed,
        )
        for dim in settings.dims
        for clients in settings.clients
        for size in sizes(dim, clients, settings.fills)
        for ensemble in (ENSEMBLES if dim == min(settings.dims) else ["srht"])
        for belief in (["known", *settings.beliefs] if ensemble == "srht" else ["known"])
        for share in settings.correlation_shares
    ]


def measure(cell: Cell) -> Row:
    """Error and β, measured and in closed form."""
    x = example_vectors("normal", clients=cell.clients, dim=cell.dim, correlation=cell.correlation, seed=cell.seed)
    belief: Any = cell.correlation if cell.belief == "known" else cell.belief
    codec = make_codec(
        "rand_proj_spatial", dim=cell.dim, size=cell.size, clients=cell.clients, ensemble=cell.ensemble, correlation=belief
    )
    seed = PublicSeed(cell.seed).child(cell.ensemble).child(cell.belief).child("dim", cell.dim).child("clients", cell.clients)
    seed = seed.child("size", cell.size).child("correlation", round(1000 * cell.correlation))
    errors = squared_errors(codec, x, trials=cell.trials, seed=seed)
    n = cell.clients
    rho = {"none": 0.0, "avg": n / 2 / (n - 1), "max": 1.0, "known": cell.correlation / (n - 1)}[cell.belief]
    traces = [_trace(cell, rho, seed.child("draw", draw)) for draw in range(cell.draws)]
    beta = n * cell.dim / mean(traces)
    return {
        "key": asdict(cell),
        "error": mean(errors),
        "standard_error": stdev(errors) / math.sqrt(len(errors)),
        "predicted": codec.mse(float(x.double().square().sum()), cell.correlation),
        "beta": beta,
        "beta_error": beta * stdev(traces) / mean(traces) / math.sqrt(len(traces)),
        "beta_closed": ENSEMBLES[cell.ensemble].law(n, cell.size / cell.dim, rho).beta(n),
    }


def _trace(cell: Cell, rho: float, seed: PublicSeed) -> float:
    """tr(T(S)†S) of one draw: GGᵀ has the eigenvalues of S that are not zero."""
    maps = ENSEMBLES[cell.ensemble](cell.dim, cell.size, [seed.child("client", client) for client in range(cell.clients)])
    with threadpool_limits(1):
        values = np.linalg.eigvalsh(maps.gram())
    values = values[values > _ZERO]
    return float((values / (1 + rho * (values - 1))).sum())


def run(settings: Settings, folder: Path) -> None:
    """Measure (results.jsonl), then write table.md and figure.svg."""
    rows = run_all(cells(settings), measure, folder / "results.jsonl", processes=settings.processes, title="closed forms")
    write_table(folder / "table.md", HEADINGS, [_line(row) for row in rows], printed=(0, 1, 2, 3, 4, 5, 6, 7))
    save_chart(figure(rows), folder / "figure.svg")
    off = {dim: max(abs(_beta_off(row)) for row in rows if row["key"]["dim"] == dim) for dim in settings.dims}
    Console().print(agreement([row for row in rows if row["predicted"] is not None]))
    Console().print(
        "β in closed form is off by at most", ", ".join(f"{value:.1e} at dim {dim:,}" for dim, value in off.items())
    )


HEADINGS = ("ensemble", "belief", "dim", "n", "k", "R", "error", "predicted", "β measured", "β closed", "off by")


def _line(row: Row) -> list[str]:
    key = row["key"]
    return [
        key["ensemble"],
        key["belief"],
        *(str(key[name]) for name in ("dim", "clients", "size")),
        f"{key['correlation']:g}",
        with_error(row["error"], row["standard_error"]),
        "–" if row["predicted"] is None else f"{row['predicted']:.4g}",
        with_error(row["beta"], row["beta_error"]),
        f"{row['beta_closed']:.4f}",
        f"{_beta_off(row):+.1e}",
    ]


def _beta_off(row: Row) -> float:
    """How far the closed form is from what was measured, relatively."""
    return float(row["beta_closed"] / row["beta"] - 1)


def figure(rows: list[Row]) -> Any:
    """Measured against closed form, a dot a row: β on the left, errors on the right."""
    shown = [
        {
            "ensemble": row["key"]["ensemble"],
            "dim": str(row["key"]["dim"]),
            "beta": 100 * _beta_off(row),
            "ratio": None if not row["predicted"] else 100 * (row["error"] / row["predicted"] - 1),
            "low": None if not row["predicted"] else 100 * ((row["error"] - 2 * row["standard_error"]) / row["predicted"] - 1),
            "high": None if not row["predicted"] else 100 * ((row["error"] + 2 * row["standard_error"]) / row["predicted"] - 1),
            "place": place,
        }
        for place, row in enumerate(rows)
    ]
    dims = sorted({point["dim"] for point in shown}, key=int)
    color = alt.Color("dim:N", scale=alt.Scale(domain=dims, range=PALETTE[: len(dims)]))
    y = alt.Y("ensemble:N", sort=list(ENSEMBLES), title=None)
    spread = alt.YOffset("place:O", scale=alt.Scale(paddingOuter=0.3))
    base = alt.Chart(alt.InlineData(values=shown)).encode(y=y, yOffset=spread, color=color)
    zero = alt.Chart(alt.InlineData(values=[{"zero": 0}])).mark_rule(color=INK).encode(x="zero:Q")
    beta = base.mark_circle(size=30, opacity=1).encode(x=alt.X("beta:Q", title="β: closed form above measured, %"))
    known = base.transform_filter("isValid(datum.ratio)")
    x = alt.X("ratio:Q", title="error: measured above closed form, %, ± 2 standard errors")
    errors = alt.layer(
        zero,
        known.mark_rule(opacity=0.6).encode(x=alt.X("low:Q"), x2="high:Q"),
        known.mark_circle(size=30, opacity=1).encode(x=x),
    )
    panels = [alt.layer(zero, beta), errors]
    return alt.hconcat(*(panel.properties(width=330, height=420) for panel in panels)).properties(
        title=alt.Title("The closed forms agree with simulation", subtitle="a dot for each n, k, R and belief")
    )
