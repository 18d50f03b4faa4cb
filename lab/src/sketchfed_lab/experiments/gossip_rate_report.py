"""The table and the figure of `gossip-rate`."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import altair as alt

from sketchfed.report import INK, MUTED, PALETTE, save_chart
from sketchfed.runs import Row
from sketchfed_lab.experiments.intervals import CONFIDENCE, reach
from sketchfed_lab.experiments.tables import shown_size, write_table

Place = tuple[str, int, str, int]
"""Graph, nodes, arm and dim/size."""

HEADINGS = (
    *("graph", "nodes", "gap", "arm", "size", "γ", "speed × dim/size", "in theory", "measured/theory"),
    *("paper's bound", "numbers against dense"),
)


def write(rows: Sequence[Row], folder: Path) -> None:
    """Write table.md, findings.md and figure.svg, and print the table."""
    runs: dict[Place, list[Row]] = {}
    for row in rows:
        key = row["key"]
        runs.setdefault((key["graph"], key["nodes"], key["arm"], key["inverse_ratio"]), []).append(row)
    places = sorted(runs, key=lambda place: -runs[place][0]["gap"])
    write_table(folder / "table.md", HEADINGS, [_line(runs, place) for place in places], printed=(0, 1, 2, 3, 4, 5, 6, 7, 8))
    (folder / "findings.md").write_text(_findings(runs))
    save_chart(figure(runs), folder / "figure.svg")


def speed(factor: float) -> float:
    """−ln of the factor of a round: how fast the disagreement shrinks. Negative if it grows."""
    return -math.log(factor) if factor > 1e-9 else math.inf


def _speeds(own: Sequence[Row]) -> list[float]:
    return [speed(row["measured"]) for row in own]


def _line(runs: Mapping[Place, Sequence[Row]], place: Place) -> list[str]:
    graph, nodes, arm, inverse = place
    own = runs[place]
    first, found = own[0], _speeds(own)
    theory = speed(first["theory"])
    cells = [graph, str(nodes), f"{first['gap']:.4f}", arm, shown_size(inverse), f"{first['mixing']:.3g}"]
    if math.isinf(theory):
        return [*cells, "one round", "one round", "", "", ""]
    cells += [f"{inverse * mean(found):.4g}{_with(inverse * reach(found, CONFIDENCE))}", f"{inverse * theory:.4g}"]
    cells.append(f"{mean(found) / theory:.3f}{_with(reach([each / theory for each in found], CONFIDENCE))}")
    cells.append("" if first["bound"] is None else f"{inverse * speed(first['bound']):.3g}")
    dense = runs.get((graph, nodes, "dense", 1))
    usual = speed(dense[0]["theory"]) if dense else math.inf
    more = usual / (inverse * mean(found)) if mean(found) > 0 and math.isfinite(usual) else math.inf
    return [*cells, "" if arm == "dense" or math.isinf(more) else f"{more:.2f}"]


def _with(half: float) -> str:
    return f" ± {half:.2g}" if math.isfinite(half) else ""


def _findings(runs: Mapping[Place, Sequence[Row]]) -> str:
    """What the README quotes: how far measurements are from theory, and what agreement costs."""
    lines = ["# Measured against theory\n"]
    for arm in dict.fromkeys(place[2] for place in runs):
        for inverse in sorted({place[3] for place in runs if place[2] == arm}):
            own = {place: rows for place, rows in runs.items() if place[2:] == (arm, inverse)}
            finite = {place: speed(rows[0]["theory"]) for place, rows in own.items() if math.isfinite(speed(rows[0]["theory"]))}
            ratios = [mean(_speeds(own[place])) / theory for place, theory in finite.items()]
            said = f"- {arm}, size {shown_size(inverse)}: measured/theory from {min(ratios):.3f} to {max(ratios):.3f}"
            grows = sum(mean(_speeds(own[place])) < 0 for place in finite)
            said += f"; grows on {grows} of {len(own)} graphs"
            costs = {place: float(cell) for place in finite if (cell := _line(runs, place)[-1])}
            if costs:
                said += f"; numbers against dense from {min(costs.values()):.2f} to {max(costs.values()):.2f}"
            bounds = [rows[0]["bound"] for rows in own.values()]
            if bounds[0] is not None:
                times = [mean(_speeds(rows)) / speed(rows[0]["bound"]) for rows in own.values()]
                said += f"; as fast as the bound times {min(times):.2f} to {max(times):.1f}"
            lines.append(said + ".")
    return "\n".join(lines) + "\n"


def figure(runs: Mapping[Place, Sequence[Row]]) -> Any:
    """Speed × dim/size against the spectral gap: measured points over the lines of theory where it depends on the gap only."""
    arms = [arm for arm in dict.fromkeys(place[2] for place in runs) if "γ = p" not in arm]
    colours = alt.Scale(domain=arms, range=[INK, *PALETTE[: len(arms) - 1]])
    shown = [place for place in runs if place[2] in arms]
    points = [
        {
            **{"gap": runs[place][0]["gap"], "arm": place[2], "size": shown_size(place[3])},
            **{"measured": place[3] * mean(_speeds(runs[place])), "theory": place[3] * speed(runs[place][0]["theory"])},
        }
        for place in shown
        if math.isfinite(speed(runs[place][0]["theory"]))
    ]
    points = [each for each in points if each["measured"] > 0 and each["theory"] > 0]
    x = alt.X("gap:Q", scale=alt.Scale(type="log", domain=[0.002, 1.2], nice=False), title="spectral gap 1 − |λ₂|")
    scale = alt.Scale(type="log", domain=[1e-7, 3], nice=False)
    base = alt.Chart(alt.InlineData(values=points)).encode(x, alt.Color("arm:N", scale=colours, title=None))
    measured = base.mark_point(filled=True, size=42, opacity=0.75, clip=True).encode(
        alt.Y("measured:Q", scale=scale, title="speed × dim/size"),
        alt.Shape("size:N", title="size", scale=alt.Scale(range=["circle", "square", "triangle-up"])),
    )
    theory = base.mark_tick(thickness=1.5, size=16, clip=True).encode(alt.Y("theory:Q", scale=scale))
    gaps = [10 ** (-2.7 + 2.7 * at / 60) for at in range(60)]
    line = alt.Chart(alt.InlineData(values=[{"gap": gap, "speed": -math.log(1 - gap)} for gap in gaps if gap < 0.99]))
    lines = line.mark_line(color=MUTED, strokeWidth=1, strokeDash=[4, 3], clip=True).encode(x, alt.Y("speed:Q", scale=scale))
    title = alt.Title(
        "How fast nodes agree",
        subtitle="points: measured, mean over seeds; ticks: theory for that graph; dashed: −ln(1 − gap), D-PSGD",
    )
    return (lines + theory + measured).properties(width=520, height=380, title=title)
