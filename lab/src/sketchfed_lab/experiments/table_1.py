"""Song et al. 2023, Table 1: the second moment of every sketch family, measured beside what was published."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import altair as alt
import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor

from sketchfed import PublicSeed
from sketchfed.report import MUTED, PALETTE, save_chart
from sketchfed.sketches import SKETCHES, Sketch, make_sketch

VARIANTS: dict[str, tuple[str, dict[str, object]]] = {name: (name, {}) for name in SKETCHES.built_in} | {
    "srht, cosine": ("srht", {"transform": "cosine"}),
    "srht, blocks": ("srht", {"block": 256}),
}
PUBLISHED_A: dict[str, str] = {
    "gaussian": "3", "srht": "2", "ams": "2", "count": "3", "sparse": "2", "sparse_blocks": "2", "sampling": "dim",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much is measured: every family at every size, `trials` independent sketches each."""

    dim: int
    sizes: list[int]
    trials: int
    seed: int


def vectors(settings: Settings) -> dict[str, Tensor]:
    """Unit vectors of different shapes: what is worst for one family is harmless for another."""
    generator = torch.Generator().manual_seed(settings.seed)
    spike, ramp = torch.zeros(settings.dim, dtype=torch.float64), 1 / torch.arange(1, settings.dim + 1, dtype=torch.float64)
    spike[settings.dim // 3] = 1
    heavy = ramp * torch.randint(0, 2, (settings.dim,), generator=generator).mul(2).sub(1)
    shapes = {
        "one coordinate": spike,
        "flat": torch.ones(settings.dim, dtype=torch.float64),
        "normal": torch.randn(settings.dim, generator=generator, dtype=torch.float64),
        "power law": heavy[torch.randperm(settings.dim, generator=generator)],
    }
    return {name: vector / vector.norm() for name, vector in shapes.items()}


def measure(label: str, size: int, settings: Settings) -> Iterator[dict[str, Any] | None]:
    """Yield None after every trial and, at the end, what was measured."""
    name, options = VARIANTS[label]
    named = vectors(settings)
    h = torch.stack(list(named.values()))
    gram = h @ h.T
    seed = PublicSeed(settings.seed).child(label, size)
    moments, products, total = [], [], torch.zeros_like(h)
    sketch: Sketch
    for trial in range(settings.trials):
        sketch = make_sketch(name, dim=settings.dim, size=size, seed=seed.child("trial", trial), **options)
        y = sketch.apply(h)
        restored = sketch.adjoint(y)
        moments.append(restored.square().sum(1))
        products.append(y @ y.T)
        total += restored
        yield None
    alphas = torch.stack(moments) - 1
    variances = size * (torch.stack(products) - gram).square()  # E(gᵀRᵀRh)² − (gᵀh)², with the known mean taken off first
    worst, pair = int(alphas.mean(0).argmax()), divmod(int(variances.mean(0).argmax()), len(named))
    # ‖mean − h‖² is (E‖RᵀRh‖² − 1)/trials for an unbiased sketch: 1 within noise, and growing with trials for a biased one.
    bias = settings.trials * (total / settings.trials - h).square().sum(1) / alphas.mean(0).clamp(min=1e-12)
    yield {
        "family": label,
        "dim": settings.dim,
        "size": size,
        "trials": settings.trials,
        "published_alpha": sketch.alpha if name in PUBLISHED_A else None,
        "exact_alpha": sketch.exact_alpha,
        "alpha": float(alphas.mean(0)[worst]),
        "alpha_error": float(alphas.std(0)[worst]) / math.sqrt(settings.trials),
        "alpha_vector": list(named)[worst],
        "bias": float(bias.max()),
        "published_a": PUBLISHED_A.get(name),
        "a": float(variances.mean(0)[pair]),
        "a_error": float(variances.std(0)[pair]) / math.sqrt(settings.trials),
        "a_vectors": [list(named)[i] for i in pair],
    }


def run(settings: Settings, folder: Path) -> None:
    """Measure, write results.jsonl, table.md and figure.svg into the folder, and print the table."""
    console = Console()
    folder.mkdir(parents=True, exist_ok=True)
    cases = [(label, size) for size in settings.sizes for label in VARIANTS]
    rows: list[dict[str, Any]] = []
    bar = (TextColumn("{task.description:22}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*bar, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(cases) * settings.trials)
        for label, size in cases:
            progress.update(task, description=label)
            for row in measure(label, size, settings):
                if row is None:
                    progress.advance(task)
                else:
                    rows.append(row)
    with (folder / "results.jsonl").open("w") as file:
        file.writelines(json.dumps({**row, "seed": settings.seed}) + "\n" for row in rows)
    (folder / "table.md").write_text(_markdown(rows, settings))
    save_chart(figure(rows), folder / "figure.svg")
    for size in settings.sizes:
        console.print(_table([row for row in rows if row["size"] == size], settings, size))
    console.print("α: E‖RᵀRh‖² = (1 + α)‖h‖², for the worst of four vectors h. a: Def. 4.1, for the worst pair.")
    console.print(f"written: {folder}/table.md, figure.svg, results.jsonl")


HEADINGS = ("family", "size", "α published", "α exact", "α measured", "bias", "a published", "a measured", "a worst for")


def _cells(row: dict[str, Any]) -> list[str]:
    published = row["published_alpha"]
    return [
        row["family"],
        str(row["size"]),
        "–" if published is None else f"{published:,.0f}",
        f"{row['exact_alpha']:.2f}",
        _with_error(row["alpha"], row["alpha_error"]),
        f"{row['bias']:.2f}",
        row["published_a"] or "–",
        _with_error(row["a"], row["a_error"]),
        " · ".join(dict.fromkeys(row["a_vectors"])),
    ]


def _with_error(value: float, error: float) -> str:
    digits = 2 if value < 100 else 0
    return f"{value:,.{digits}f} ± {error:.{digits}f}"


def _title(settings: Settings) -> str:
    return f"Song et al. 2023, Table 1, at dim {settings.dim:,}: {settings.trials:,} sketches a row, seed {settings.seed}"


def _table(rows: list[dict[str, Any]], settings: Settings, size: int) -> Table:
    """The columns that fit a terminal."""
    title = f"Song et al. 2023, Table 1: {settings.dim:,} → {size:,}, {settings.trials:,} sketches"
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    shown = [HEADINGS.index(heading) for heading in HEADINGS if heading not in ("size", "bias", "a worst for")]
    for column in shown:
        table.add_column(HEADINGS[column].replace(" ", "\n"), justify="right" if column else "left", no_wrap=True)
    for row in rows:
        cells = _cells(row)
        table.add_row(*(cells[column] for column in shown))
    return table


def _markdown(rows: list[dict[str, Any]], settings: Settings) -> str:
    lines = ["| " + " | ".join(HEADINGS) + " |", "| --- " + "| ---: " * 7 + "| --- |"]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
    kept = ", ".join(f"{key} = {value}" for key, value in asdict(settings).items())
    return f"{_title(settings)}.\nErrors are one standard error. Settings: {kept}.\n\n" + "\n".join(lines) + "\n"


def figure(rows: list[dict[str, Any]]) -> Any:
    """Two panels for the smallest size: α·size/dim and the coordinate-wise a, measured, exact and published."""
    size = min(row["size"] for row in rows)
    shown = [row for row in rows if row["size"] == size]
    dim = shown[0]["dim"]
    moments = [
        {
            "family": row["family"],
            "measured": row["alpha"] * size / dim,
            "error": row["alpha_error"] * size / dim,
            "exact": row["exact_alpha"] * size / dim,
            "published": None if row["published_alpha"] is None else row["published_alpha"] * size / dim,
        }
        for row in shown
    ]
    products = [
        {
            "family": row["family"],
            "measured": row["a"],
            "error": row["a_error"],
            "published": dim if row["published_a"] == "dim" else row["published_a"] and float(row["published_a"]),
        }
        for row in shown
    ]
    title = alt.Title(
        "Second moments stay below the published bounds; sampling alone fails coordinate by coordinate",
        subtitle=f"dim {dim:,}, size {size:,}, {shown[0]['trials']:,} sketches a family; bars are ± 3 standard errors",
    )
    left = _panel(moments, "α · size/dim: growth of the second moment", labels=True)
    right = _panel(products, "a: worst error of one inner product (Def. 4.1)", labels=False)
    return alt.hconcat(left, right).properties(title=title)


def _panel(values: list[dict[str, Any]], title: str, *, labels: bool) -> Any:
    colours = alt.Scale(domain=["measured", "exact", "published"], range=[PALETTE[0], PALETTE[3], MUTED])
    spread = [value | _interval(value["measured"], value["error"]) for value in values]
    families = alt.Y(
        "family:N", sort=[value["family"] for value in values], axis=alt.Axis(title=None, labels=labels, ticks=labels)
    )
    base = alt.Chart(alt.InlineData(values=spread)).encode(y=families)
    scale = alt.Scale(type="log")

    def layer(mark: Any, field: str) -> Any:
        what = alt.Color("what:N", scale=colours, legend=alt.Legend(title=None) if labels else None)
        shown = mark.transform_filter(f"isValid(datum.{field})").transform_calculate(what=f"'{field}'")
        return shown.encode(x=alt.X(f"{field}:Q", scale=scale, title=title), color=what)

    bars = base.mark_rule(strokeWidth=2, color=PALETTE[0]).encode(x=alt.X("low:Q", scale=scale, title=title), x2="high:Q")
    layers = [bars, layer(base.mark_circle(size=80, opacity=1), "measured")]
    layers += [layer(base.mark_tick(thickness=3, height=20), "published")]
    if "exact" in values[0]:
        layers.insert(0, layer(base.mark_tick(thickness=3, height=20), "exact"))
    return alt.layer(*layers).properties(width=330, height=300)


def _interval(measured: float, error: float) -> dict[str, float]:
    """Three standard errors either way, cut where a logarithmic scale ends."""
    return {"low": max(measured - 3 * error, measured / 10), "high": measured + 3 * error}
