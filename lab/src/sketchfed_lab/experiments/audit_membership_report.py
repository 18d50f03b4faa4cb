"""The table and the picture of `audit-membership`."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from sketchfed.report import INK, MUTED, PALETTE, save_chart
from sketchfed.runs import Row
from sketchfed_lab.experiments.tables import write_table

HEADINGS = (
    *("data", "sent", "claimed ε", "sought", "attack", "AUC", "95 % interval", "TPR at 1 % FPR", "TPR at 5 % FPR"),
    *("proven ε, each seed", "refuted", "training accuracy", "accuracy"),
)
UNBOUNDED = "none"
ATTACKS = ("members, loss", "members, alignment", "canaries, loss", "canaries, alignment")


def write(rows: Sequence[Row], folder: Path) -> None:
    """table.md and figure.svg, and the table on the terminal."""
    found = list(cells(rows))
    write_table(folder / "table.md", HEADINGS, [_line(cell) for cell in found], printed=(0, 1, 2, 3, 4, 5, 6, 9))
    save_chart(figure(found), folder / "figure.svg")


def cells(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """The mean over seeds of each attack on each way to train; its interval is that of independent runs."""
    groups: dict[tuple[str, str, float | None], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["key"]["data"], row["key"]["form"], row["key"]["epsilon"]), []).append(row)
    for (data, form, epsilon), own in groups.items():
        for attack in ATTACKS:
            found = [row["attacks"][attack] for row in own]
            area = _mean([each["auc"] for each in found])
            reach = math.sqrt(sum((each["high"] - each["low"]) ** 2 for each in found)) / 2 / len(found)
            yield {
                "data": data,
                "form": form,
                "epsilon": epsilon,
                "attack": attack,
                "auc": area,
                "low": max(0.0, area - reach),
                "high": min(1.0, area + reach),
                "rates": [_mean([each[f"tpr {rate:g}"] for each in found]) for rate in (0.01, 0.05)],
                "lower": [each["lower"] for each in found if "lower" in each],
                "accuracies": [_mean([row[name] for row in own]) for name in ("training accuracy", "accuracy")],
            }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _line(cell: dict[str, Any]) -> list[str]:
    bounds, epsilon = cell["lower"], cell["epsilon"]
    refuted = "—" if not bounds or epsilon is None else f"{sum(bound > epsilon for bound in bounds)} of {len(bounds)}"
    return [
        cell["data"],
        {"whole": "whole updates", "sketch": "sketches"}[cell["form"]],
        UNBOUNDED if epsilon is None else f"{epsilon:g}",
        *cell["attack"].split(", "),
        f"{cell['auc']:.3f}",
        f"{cell['low']:.3f} to {cell['high']:.3f}",
        *(f"{rate:.3f}" for rate in cell["rates"]),
        ", ".join(f"{bound:.2f}" for bound in bounds) or "—",
        refuted,
        *(f"{share:.3f}" for share in cell["accuracies"]),
    ]


def figure(found: Sequence[dict[str, Any]]) -> Any:
    """Above the areas, below the largest ε that canaries prove, against the ε that is claimed; a column a data set."""
    columns = [_column(found, data) for data in dict.fromkeys(cell["data"] for cell in found)]
    areas, proven = (alt.hconcat(*(column[place] for column in columns)) for place in (0, 1))
    title = alt.Title(
        "Membership inference against the claimed ε",
        subtitle=[
            "mean over seeds; above, areas under ROC curves with 95 % intervals: 0.5 is chance",
            "below, the largest ε that canaries prove in one run of any seed, with confidence 95 %: a true claim lies above it",
        ],
    )
    return alt.vconcat(areas, proven).properties(title=title)


def _column(found: Sequence[dict[str, Any]], data: str) -> tuple[Any, Any]:
    own = [cell for cell in found if cell["data"] == data]
    claims = [
        _claim(epsilon) for epsilon in sorted({cell["epsilon"] for cell in own}, key=lambda e: math.inf if e is None else e)
    ]
    points = [
        {
            "claim": _claim(cell["epsilon"]),
            "attack": cell["attack"],
            "sent": {"whole": "whole updates", "sketch": "sketches"}[cell["form"]],
            "auc": cell["auc"],
            "low": cell["low"],
            "high": cell["high"],
            "proven": max(cell["lower"], default=None),
        }
        for cell in own
    ]
    claimed = [
        {"claim": _claim(epsilon), "proven": epsilon} for epsilon in {cell["epsilon"] for cell in own} if epsilon is not None
    ]
    across = alt.X("claim:N", title=None, sort=claims, axis=alt.Axis(labelAngle=0, grid=False))
    last = alt.X("claim:N", title="claimed ε", sort=claims, axis=alt.Axis(labelAngle=0, grid=False))
    colour = alt.Color("attack:N", title=None, sort=ATTACKS, scale=alt.Scale(domain=list(ATTACKS), range=PALETTE[:4]))
    shape = alt.Shape("sent:N", title=None, scale=alt.Scale(domain=["whole updates", "sketches"], range=["circle", "square"]))
    aside = alt.XOffset("place:N", sort=[f"{attack}, {sent}" for attack in ATTACKS for sent in ("whole updates", "sketches")])
    for point in points:
        point["place"] = f"{point['attack']}, {point['sent']}"
    base = alt.Chart(alt.InlineData(values=points))
    shown = alt.Scale(domain=[0.4, 1], clamp=True, zero=False)
    half = alt.Chart(alt.InlineData(values=[{"at": 0.5}])).mark_rule(color=MUTED, strokeDash=[4, 3])
    half = half.encode(alt.Y("at:Q", scale=shown))
    area = alt.Y("auc:Q", title="AUC", scale=shown)
    spans = base.mark_rule(strokeWidth=1.5).encode(across, alt.Y("low:Q", scale=shown), alt.Y2("high:Q"), aside, colour)
    dots = base.mark_point(filled=True, size=45, opacity=1).encode(across, area, aside, colour, shape)
    heading = alt.Title(data, fontSize=12, color=INK)
    above = alt.layer(half, spans, dots).properties(width=380, height=230, title=heading)
    canaries = alt.Chart(alt.InlineData(values=[point for point in points if point["proven"] is not None]))
    level = alt.Y(
        "proven:Q",
        title="ε (claims: black bars)",
        scale=alt.Scale(type="symlog", constant=1),
        axis=alt.Axis(values=[0, 1, 3, 8, 30]),
    )
    proven = canaries.mark_point(filled=True, size=45, opacity=1).encode(last, level, aside, colour, shape)
    bars = alt.Chart(alt.InlineData(values=claimed)).mark_tick(color=INK, thickness=2, width=56).encode(last, level)
    return above, alt.layer(bars, proven).properties(width=380, height=180)


def _claim(epsilon: float | None) -> str:
    return UNBOUNDED if epsilon is None else f"{epsilon:g}"
