"""What the experiment `theory` makes of its curves: means, table and figures."""

import math
from pathlib import Path
from typing import Any

import altair as alt
from torch import Tensor

from sketchfed.planner import DENSE
from sketchfed.report import MUTED, PALETTE, save_chart

Row = dict[str, Any]

PROBLEMS = {"logistic": "logistic regression, μ > 0", "linear": "least squares, μ = 0"}
THEOREMS = (("published", "exact α"), ("sharpened", "curvature"))
"""Rules by the theorem whose bound they are compared with."""
COLOURS = {
    "published": PALETTE[1],
    "exact α": PALETTE[3],
    "sharpened": PALETTE[2],
    "curvature": PALETTE[4],
    "tuned": PALETTE[0],
}


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """The mean of the runs and its standard error, which is 0 for the one run without sketches."""
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(values.mean()), error


def thinned(curve: list[tuple[int, float, float, float]], points: int = 12) -> list[list[float]]:
    """At most this many points of a curve, evenly spaced on a logarithmic axis, to four digits."""
    last = curve[-1][0]
    marks = {min(range(len(curve)), key=lambda i: abs(curve[i][0] - last ** (k / (points - 1)))) for k in range(points)}
    return [[curve[i][0], *(float(f"{value:.4g}") for value in curve[i][1:])] for i in sorted(marks)]


def arm(row: Row) -> str:
    """The rule by which a row chose its step size, with the target where there are several."""
    return f"tuned, {100 * row['fraction']:g} %" if row["rule"] == "tuned" else str(row["rule"])


def relative(rows: list[Row]) -> dict[tuple[str, int, str, int, str], float]:
    """Coefficients that a client sends until the target, as a multiple of sending everything under the same rule."""
    dense = {
        (r["problem"], r["local_steps"], arm(r)): r["rounds"] * r["dim"] for r in rows if r["family"] == DENSE and r["rounds"]
    }
    return {
        (r["problem"], r["local_steps"], r["family"], r["size"], arm(r)): r["rounds"] * r["size"] / dense[key]
        for r in rows
        if (key := (r["problem"], r["local_steps"], arm(r))) in dense and r["rounds"]
    }


def markdown(rows: list[Row], constants: list[Row], settings: Row) -> str:
    """One table a problem and number of local steps."""
    kept = ", ".join(f"{key} = {value}" for key, value in settings.items())
    lines = [f"Settings: {kept}.", ""]
    ratios = relative(rows)
    for name, title in PROBLEMS.items():
        found = next(c for c in constants if c["problem"] == name)
        shown = ", ".join(f"{key} {found[key]:.4g}" for key in found if key != "problem" and found[key] is not None)
        lines += [f"## {title[0].upper()}{title[1:]}", "", f"Measured constants: {shown}.", ""]
        for steps in settings["local_steps"]:
            chosen = [row for row in rows if row["problem"] == name and row["local_steps"] == steps]
            arms = list(dict.fromkeys(arm(row) for row in chosen))
            lines += [
                f"{steps} local step{'s' if steps > 1 else ''}; rounds to the target and, in brackets, coefficients sent "
                "relative to sending everything under the same rule:",
                "",
                "| family | size | " + " | ".join(arms) + " | measured/bound, published | sharpened |",
                "| --- " + "| ---: " * (len(arms) + 3) + "|",
            ]
            for family, size in dict.fromkeys((row["family"], row["size"]) for row in chosen):
                here = {arm(row): row for row in chosen if (row["family"], row["size"]) == (family, size)}
                cells = [_cell(here.get(a), ratios.get((name, steps, family, size, a))) for a in arms]
                cells += [f"{max(here[rule]['worst'] for rule in group if rule in here):.3g}" for group in THEOREMS]
                lines.append(f"| {family} | {size} | " + " | ".join(cells) + " |")
            lines.append("")
    return "\n".join(lines)


def _cell(row: Row | None, ratio: float | None) -> str:
    if row is None or row["rounds"] is None:
        return "not reached" if row else "–"
    return f"{row['rounds']:,}" + ("" if ratio is None or row["family"] == DENSE else f" ({ratio:.2f}×)")


def save_figures(rows: list[Row], folder: Path) -> None:
    save_chart(communication(rows), folder / "communication.svg")
    save_chart(bounds(rows), folder / "bounds.svg")


def communication(rows: list[Row]) -> Any:
    """Coefficients to the target relative to sending everything, against size/dim, a line for each rule."""
    values = [
        {
            "panel": _panel(problem, steps),
            "family": family,
            "fraction": size / rows[0]["dim"],
            "ratio": ratio,
            "step size": name,
        }
        for (problem, steps, family, size, name), ratio in relative(rows).items()
        if family != DENSE
    ]
    arms = list(dict.fromkeys(value["step size"] for value in values))
    arms.sort(key=lambda name: list(COLOURS).index(name.split(",")[0]))
    colours = alt.Scale(domain=arms, range=[COLOURS[name.split(",")[0]] for name in arms])
    dashes = alt.Scale(
        domain=arms, range=[[5, 3] if name == arms[-1] and name.startswith("tuned") else [1, 0] for name in arms]
    )
    fractions = sorted({value["fraction"] for value in values})
    axis = alt.Axis(values=fractions, format=".2~g")
    base = alt.Chart().encode(
        x=alt.X("fraction:Q", scale=alt.Scale(type="log", domain=[fractions[0] / 1.2, 1.2]), title="size/dim", axis=axis),
        y=alt.Y("ratio:Q", scale=alt.Scale(type="log"), title="coefficients sent / dense"),
        color=alt.Color("step size:N", scale=colours),
    )
    lines = base.mark_line(strokeWidth=2).encode(strokeDash=alt.StrokeDash("step size:N", scale=dashes))
    points = base.mark_point(size=35, opacity=0.7).encode(shape=alt.Shape("family:N"))
    rule = alt.Chart().mark_rule(color=MUTED, strokeDash=[2, 3]).encode(y=alt.datum(1))
    layered = alt.layer(
        rule, lines.transform_filter("datum.family == 'srht'"), points, data=alt.InlineData(values=values)
    ).properties(width=300, height=200)
    title = alt.Title(
        "With theory's step sizes sketching costs what it saves; with larger ones it saves",
        subtitle="Communication to the target relative to dense under the same rule. Lines: srht; points: every family",
    )
    return layered.facet(_facet(values), columns=2).properties(title=title)


def bounds(rows: list[Row]) -> Any:
    """Measured loss beside its bound for one size of srht, under the published and the sharpened theorem."""
    size = sorted({row["size"] for row in rows if row["family"] == "srht"})[1]
    values = [
        {
            "panel": _panel(row["problem"], row["local_steps"]),
            "round": number,
            "what": what,
            "value": value,
            "rule": row["rule"],
        }
        for row in rows
        if row["family"] == "srht" and row["size"] == size and row["rule"] in ("published", "sharpened")
        for number, mean, _, bound in row["curve"]
        for what, value in (("measured", mean), ("bound", bound))
    ]
    colours = alt.Scale(domain=["published", "sharpened"], range=[COLOURS["published"], COLOURS["sharpened"]])
    chart = (
        alt.Chart(alt.InlineData(values=values))
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("round:Q", scale=alt.Scale(type="log"), title="round"),
            y=alt.Y("value:Q", scale=alt.Scale(type="log"), title="f − f(w*)"),
            color=alt.Color("rule:N", scale=colours, title="theorem and step size"),
            strokeDash=alt.StrokeDash(
                "what:N", scale=alt.Scale(domain=["measured", "bound"], range=[[1, 0], [5, 3]]), title=None
            ),
        )
        .properties(width=300, height=200)
    )
    title = alt.Title(
        "Every bound holds, with much to spare",
        subtitle=f"srht, size {size} of {rows[0]['dim']}, at the largest step size that each theorem admits",
    )
    return chart.facet(_facet(values), columns=2).resolve_scale(x="independent", y="independent").properties(title=title)


def _facet(values: list[Row]) -> Any:
    return alt.Facet("panel:N", title=None, sort=list(dict.fromkeys(value["panel"] for value in values)))


def _panel(problem: str, steps: int) -> str:
    return f"{PROBLEMS[problem]}, {steps} local step{'s' if steps > 1 else ''}"
