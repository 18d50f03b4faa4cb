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
from sketchfed_lab.experiments.tables import markdown, shown_size, write_table

Place = tuple[str, int, str, int]
"""Graph, nodes, arm and dim/size."""

DECADES = [10.0**power for power in range(-7, 2)]
HEADINGS = (
    *("graph", "nodes", "gap", "arm", "size", "γ", "speed × dim/size", "by theory", "measured/theory"),
    *("theory, long run", "paper's bound", "numbers against dense"),
)


def write(rows: Sequence[Row], folder: Path) -> None:
    """Write table.md, findings.md and figure.svg, and print the table."""
    runs: dict[Place, list[Row]] = {}
    for row in rows:
        key = row["key"]
        runs.setdefault((key["graph"], key["nodes"], key["arm"], key["inverse_ratio"]), []).append(row)
    places = sorted(runs, key=lambda place: -runs[place][0]["gap"])
    write_table(folder / "table.md", HEADINGS, [_line(runs, place) for place in places], printed=range(9))
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
    expected, theory = speed(first["expected"]), speed(first["theory"])
    cells = [graph, str(nodes), f"{first['gap']:.4f}", arm, shown_size(inverse), f"{first['mixing']:.3g}"]
    if math.isinf(theory):
        return [*cells, "one round", "one round", "", "", "", ""]
    cells += [f"{inverse * mean(found):.4g}{_with(inverse * reach(found, CONFIDENCE))}", f"{inverse * expected:.4g}"]
    cells.append(f"{mean(found) / expected:.3f}{_with(reach([each / expected for each in found], CONFIDENCE))}")
    cells += [f"{inverse * theory:.4g}", "" if first["bound"] is None else f"{inverse * speed(first['bound']):.3g}"]
    return [*cells, _numbers(runs, place)]


def _numbers(runs: Mapping[Place, Sequence[Row]], place: Place) -> str:
    """How many times as many numbers as D-PSGD an arm sends until nodes agree as well, in the long run."""
    dense = runs.get((*place[:2], "dense", 1))
    usual, theory = speed(dense[0]["theory"]) if dense else math.inf, speed(runs[place][0]["theory"])
    if math.isinf(usual) or place[2] == "dense":
        return ""
    return f"{usual / (place[3] * theory):.2f}" if theory > 0 else "never"


def _contains_theory(own: Sequence[Row]) -> bool:
    found = _speeds(own)
    return abs(mean(found) - speed(own[0]["expected"])) <= reach(found, CONFIDENCE)


def _with(half: float) -> str:
    return f" ± {half:.2g}" if math.isfinite(half) else ""


def _findings(runs: Mapping[Place, Sequence[Row]]) -> str:
    """What the README quotes: how far measurements are from theory, and what agreement costs."""
    lines = []
    for arm, inverse in dict.fromkeys(place[2:] for place in runs):
        own = {place: rows for place, rows in runs.items() if place[2:] == (arm, inverse)}
        finite = [place for place, rows in own.items() if math.isfinite(speed(rows[0]["theory"]))]
        off = [abs(mean(_speeds(own[place])) - speed(own[place][0]["expected"])) * inverse for place in finite]
        ratios = [mean(_speeds(own[place])) / speed(own[place][0]["expected"]) for place in finite]
        costs = [_numbers(runs, place) for place in own]
        known = [float(cost) for cost in costs if cost not in ("", "never")]
        cells = [arm, shown_size(inverse), f"{min(ratios):.3f} to {max(ratios):.3f}", f"{max(off):.2g}"]
        cells.append(f"{sum(_contains_theory(own[place]) for place in finite)} of {len(finite)}")
        cells.append(f"{min(known):.2f} to {max(known):.2f}" if known else "")
        cells.append(f"{sum(speed(rows[0]['theory']) < 0 for rows in own.values())} of {len(own)}")
        times = [mean(_speeds(rows)) / speed(rows[0]["bound"]) for rows in own.values() if rows[0]["bound"] is not None]
        lines.append([*cells, f"{min(times):.1f} to {max(times):.1f}" if times else ""])
    headings = (
        "arm",
        "size",
        "measured/theory",
        "largest difference × dim/size",
        "intervals with theory",
        "numbers against dense",
    )
    return "# Over all graphs\n\n" + markdown((*headings, "grows on", "times the paper's bound"), lines)


def figure(runs: Mapping[Place, Sequence[Row]]) -> Any:
    """Speed × dim/size against the spectral gap: measured points over the lines of theory where it depends on the gap only."""
    arms = [arm for arm in dict.fromkeys(place[2] for place in runs) if "γ = p" not in arm]
    colours = alt.Scale(domain=arms, range=[INK, *PALETTE[: len(arms) - 1]])
    shown = [place for place in runs if place[2] in arms]
    points = [
        {
            **{"gap": runs[place][0]["gap"], "arm": place[2], "size": shown_size(place[3])},
            **{"measured": place[3] * mean(_speeds(runs[place])), "theory": place[3] * speed(runs[place][0]["expected"])},
        }
        for place in shown
        if math.isfinite(speed(runs[place][0]["theory"]))
    ]
    points = [each for each in points if each["measured"] > 0 and each["theory"] > 0]
    x = alt.X(
        "gap:Q",
        scale=alt.Scale(type="log", domain=[0.002, 1.2], nice=False),
        title="spectral gap",
        axis=alt.Axis(values=DECADES),
    )
    scale = alt.Scale(type="log", domain=[5e-7, 3], nice=False)
    base = alt.Chart(alt.InlineData(values=points)).encode(x, alt.Color("arm:N", scale=colours, title=None))
    measured = base.mark_point(filled=True, size=42, opacity=0.75, clip=True).encode(
        alt.Y("measured:Q", scale=scale, title="speed × dim/size", axis=alt.Axis(values=DECADES)),
        alt.Shape("size:N", title="size", scale=alt.Scale(range=["circle", "square", "triangle-up"])),
    )
    theory = base.mark_tick(thickness=1.5, size=16, clip=True).encode(alt.Y("theory:Q", scale=scale))
    gaps = [10 ** (-2.7 + 2.7 * at / 60) for at in range(60)]
    line = alt.Chart(alt.InlineData(values=[{"gap": gap, "speed": -math.log(1 - gap)} for gap in gaps if gap < 0.99]))
    lines = line.mark_line(color=MUTED, strokeWidth=1, strokeDash=[4, 3], clip=True).encode(x, alt.Y("speed:Q", scale=scale))
    title = alt.Title(
        "How fast nodes agree",
        subtitle="points: measured; bars: theory for the same graph and rounds; dashed: −ln(1 − gap), whole models",
    )
    return (lines + theory + measured).properties(width=520, height=380, title=title)
