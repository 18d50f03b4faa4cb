"""Nicolas et al. 2025, Lemmas 3.1 and 3.2: what noise costs in all coordinates and in a subspace, and in second moments."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import altair as alt
import torch
from torch import Tensor

from sketchfed import PublicSeed
from sketchfed.report import INK, PALETTE, save_chart, with_error
from sketchfed.subspaces import UPDATES, Subspace
from sketchfed_lab.experiments.rand_proj import Row, run_all
from sketchfed_lab.experiments.tables import write_table


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every rule at the first dim and size, and the first rule with all of them.

    The gradient has norm 1, and noise has `deviation` in each number of a mean. Second moments are means over `trials` rounds
    of noise from `clients` clients.
    """

    rules: list[str]
    dims: list[int]
    sizes: list[int]
    updates: int
    deviation: float
    clients: int
    trials: int
    seed: int
    processes: int


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One subspace."""

    rule: str
    dim: int
    size: int
    updates: int
    deviation: float
    clients: int
    trials: int
    seed: int


def cells(settings: Settings) -> list[Cell]:
    shared = {name: getattr(settings, name) for name in ("updates", "deviation", "clients", "trials", "seed")}
    first, *others = settings.rules
    places = [(first, dim, size) for dim in settings.dims for size in settings.sizes]
    places += [(rule, settings.dims[0], settings.sizes[0]) for rule in others]
    return [Cell(rule=rule, dim=dim, size=size, **shared) for rule, dim, size in places]


FORMS = {
    "as they come": "nothing",
    "exact": "Eq. (11)",
    "expected": "Eq. (11), mean over probes",
    "printed": "as printed, Alg. 1, line 19",
}
"""What is taken off squares: v²·diag(SSᵀ) as it is or as expected, or the a² of one client in every coordinate."""


def measure(cell: Cell) -> Row:
    """Mean squared errors with their standard errors, and what second moments come to, by what is taken off.

    `bias` is theirs, summed over coordinates, as a share of ‖g‖²; `off` the root mean square of what is wrong in a coordinate,
    as a multiple of the noise in it, v²·size/dim on average; `below` the share of coordinates where they are negative.
    """
    seed, variance = PublicSeed(cell.seed).child(cell.rule).child("dim", cell.dim).child("size", cell.size), cell.deviation**2
    draws = torch.Generator().manual_seed(int.from_bytes(seed.child("draws").to_bytes()[:7]))
    subspace = _followed(cell, seed, draws)
    inside = subspace.adjoint(_normal(cell.size, draws))
    inside = inside / inside.norm()
    outside = inside + _beside(subspace, _normal(cell.dim, draws))
    errors: dict[str, list[float]] = {"whole": [], "inside": [], "outside": []}
    squares = torch.zeros(cell.dim, dtype=torch.float64)
    for _ in range(cell.trials):
        noise = cell.deviation * _normal(cell.size, draws)
        found = subspace.adjoint(subspace.apply(inside) + noise)
        errors["whole"].append(_square(cell.deviation * _normal(cell.dim, draws)))
        errors["inside"].append(_square(found - inside))
        errors["outside"].append(_square(subspace.adjoint(subspace.apply(outside) + noise) - outside))
        squares += found.square() / cell.trials
    taken: dict[str, Tensor | float] = {
        "as they come": 0.0,
        "exact": variance * subspace.diagonal(),
        "expected": variance * subspace.expected_diagonal(),
        "printed": variance * cell.clients,
    }
    freed = {form: squares - off for form, off in taken.items()}
    wrong = {form: (left - inside.square()) / (variance * cell.size / cell.dim) for form, left in freed.items()}
    return {
        "key": asdict(cell),
        "errors": {
            name: [_short(mean(values)), _short(stdev(values) / math.sqrt(cell.trials))] for name, values in errors.items()
        },
        "predicted": {name: _short(value) for name, value in _predicted(cell, variance).items()},
        "bias": {form: _short(float(left.sum() - inside.square().sum())) for form, left in freed.items()},
        "off": {form: _short(float(each.square().mean().sqrt())) for form, each in wrong.items()},
        "below": {form: _short(float((left < 0).double().mean())) for form, left in freed.items()},
    }


def _predicted(cell: Cell, variance: float) -> dict[str, float]:
    """Lemma 3.1, and what it leaves out: as much of the gradient lies outside as inside, and is lost."""
    return {"whole": variance * cell.dim, "inside": variance * cell.size, "outside": 1 + variance * cell.size}


def _followed(cell: Cell, seed: PublicSeed, draws: torch.Generator) -> Subspace:
    """The subspace after updates by gradients around a mean."""
    rule, common = UPDATES[cell.rule](), _normal(cell.dim, draws)
    subspace = rule.begin(dim=cell.dim, size=cell.size, seed=seed, dtype=torch.float64)
    for _ in range(cell.updates):
        subspace = rule.updated(subspace, estimate=common + _normal(cell.dim, draws))
    return subspace


def _beside(subspace: Subspace, x: Tensor) -> Tensor:
    """Of norm 1, and orthogonal to the subspace."""
    rest = x - subspace.adjoint(subspace.apply(x))
    return torch.nn.functional.normalize(rest, dim=0)


def _normal(size: int, draws: torch.Generator) -> Tensor:
    return torch.randn(size, generator=draws, dtype=torch.float64)


def _square(x: Tensor) -> float:
    return float(x.square().sum())


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def run(settings: Settings, folder: Path) -> None:
    """Measure (results.jsonl), then write table.md, moments.md and figure.svg."""
    rows = run_all(cells(settings), measure, folder / "results.jsonl", processes=settings.processes, title="lemmas")
    write_table(folder / "table.md", ERRORS, [_errors(row) for row in rows], printed=(0, 1, 2, 3, 4, 5, 6))
    write_table(folder / "moments.md", MOMENTS, [_moments(row) for row in rows], printed=(0, 1, 2, 3, 4, 6))
    save_chart(figure(rows), folder / "figure.svg")


ERRORS = ("rule", "d", "k", "noise in R^d", "σ²d", "noise in S", "σ²k", "half outside S", "1 + σ²k")
MOMENTS = ("rule", "d", "k", *(f"{what}, {form}" for what in ("bias", "off", "negative") for form in FORMS))


def _place(row: Row) -> list[str]:
    return [row["key"]["rule"], *(f"{row['key'][name]:,}" for name in ("dim", "size"))]


def _errors(row: Row) -> list[str]:
    pairs = [(with_error(*row["errors"][name]), f"{row['predicted'][name]:.4g}") for name in ("whole", "inside", "outside")]
    return _place(row) + [cell for pair in pairs for cell in pair]


def _moments(row: Row) -> list[str]:
    biases = [f"{row['bias'][form]:+.3f}" for form in FORMS]
    off, below = [f"{row['off'][form]:,.2f}" for form in FORMS], [f"{100 * row['below'][form]:.1f} %" for form in FORMS]
    return _place(row) + biases + off + below


def figure(rows: Sequence[Row]) -> Any:
    """Errors against the number of noisy numbers, and the bias of second moments."""
    return alt.hconcat(_error_panel(rows), _bias_panel(rows), spacing=40).properties(
        title=alt.Title("What noise costs, and how second moments are freed from it", subtitle=_subtitle(rows))
    )


def _subtitle(rows: Sequence[Row]) -> str:
    key = rows[0]["key"]
    return f"a gradient of norm 1 inside S; noise of deviation {key['deviation']:g} in each number that is sent"


def _error_panel(rows: Sequence[Row]) -> Any:
    kinds = {"whole": ("in R^d", "dim"), "inside": ("in S", "size")}
    points = [
        {"numbers": row["key"][field], "error": row["errors"][kind][0], "noise": label}
        for row in rows
        for kind, (label, field) in kinds.items()
    ]
    ends = [min(point["numbers"] for point in points), max(point["numbers"] for point in points)]
    line = [{"numbers": end, "error": rows[0]["key"]["deviation"] ** 2 * end} for end in ends]
    x = alt.X("numbers:Q", title="noisy numbers: d, or k", scale=alt.Scale(type="log")).axis(
        grid=False, format="~s", tickCount=4
    )
    y = alt.Y("error:Q", title="mean squared error", scale=alt.Scale(type="log")).axis(format="~g", tickCount=4)
    colour = alt.Color(
        "noise:N", title=None, scale=alt.Scale(range=PALETTE[:2][::-1]), sort=[label for label, _ in kinds.values()]
    )
    dots = alt.Chart(alt.InlineData(values=points)).mark_point(filled=True, size=60, opacity=0.9).encode(x, y, colour)
    law = alt.Chart(alt.InlineData(values=line)).mark_line(color=INK, strokeDash=[4, 3], strokeWidth=1).encode(x, y)
    heading = alt.Title("Lemma 3.1: dots measured, line σ² a number", fontSize=12, color=INK)
    return alt.layer(law, dots).properties(width=300, height=240, title=heading)


def _bias_panel(rows: Sequence[Row]) -> Any:
    points = [
        {"form": FORMS[form], "bias": row["bias"][form], "size": str(row["key"]["size"])} for row in rows for form in FORMS
    ]
    sizes = sorted({point["size"] for point in points}, key=int)
    x = alt.X(
        "bias:Q",
        title="bias of the sum of second moments / ‖g‖²",
        scale=alt.Scale(type="symlog", constant=0.1, domain=[-1_500, 2]),
    )
    x = x.axis(values=[-1_000, -100, -10, -1, 0, 1], labelExpr="format(datum.value, ',')")
    y = alt.Y("form:N", title=None, sort=list(FORMS.values())).axis(labelLimit=240)
    colour = alt.Color("size:N", title="k", scale=alt.Scale(domain=sizes, range=PALETTE[2 : 2 + len(sizes)]))
    dots = alt.Chart(alt.InlineData(values=points)).mark_point(filled=True, size=60, opacity=0.8).encode(x, y, colour)
    zero = alt.Chart(alt.InlineData(values=[{"zero": 0}])).mark_rule(color=INK).encode(x="zero:Q")
    heading = alt.Title("Lemma 3.2: what is taken off squares", fontSize=12, color=INK)
    chart = alt.layer(zero, dots).properties(width=330, height=240, title=heading)
    return chart.resolve_scale(color="independent")
