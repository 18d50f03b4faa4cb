"""The table and the picture of `audit-neighbours`."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import altair as alt

from sketchfed.attacks import auc, auc_interval
from sketchfed.report import INK, MUTED, PALETTE, save_chart
from sketchfed.runs import Row
from sketchfed_lab.experiments.intervals import CONFIDENCE, reach
from sketchfed_lab.experiments.tables import write_table

CHANGES = (
    "case",
    "examples",
    "two messages",
    "message, round 1",
    "message, later",
    "all, round 1",
    "all, later",
    "all, last",
    "ε",
)
IMAGES = ("case", "round", "victims", "mean image", "message, matching", "all, matching", "all, division")
PROPERTIES = ("case", "updates", "message", "all messages", "accuracy of the run")
TWO, MESSAGE, ALL = "two messages", "one message", "all messages"


def write(rows: Sequence[Row], folder: Path) -> None:
    """table.md and figure.svg, and the tables on the terminal."""
    path, written = folder / "table.md", []
    for title, headings, lines in (
        ("Cosines with the true change, mean over seeds, with an interval of 95 %", CHANGES, _change_lines(rows)),
        ("PSNR of images in dB: median, and lowest to highest", IMAGES, _image_lines(rows)),
        ("Area under the ROC curve for a property of one image, with an interval of 95 %", PROPERTIES, _property_lines(rows)),
    ):
        write_table(path, headings, lines, printed=range(len(headings)))
        written.append(f"## {title}\n\n{path.read_text()}")
    path.write_text("\n".join(written))
    save_chart(figure(rows), folder / "figure.svg")


def _groups(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["key"]["case"], row["key"]["batch"]), []).append(row)
    return found


def _change_lines(rows: Sequence[Row]) -> list[list[str]]:
    lines = []
    for (case, batch), group in _groups(rows).items():
        last = max(line[1] for line in group[0]["cosines"])
        later = range(1, last)
        wanted = ((TWO, later), (MESSAGE, (0,)), (MESSAGE, later), (ALL, (0,)), (ALL, later), (ALL, (last,)))
        found = [_spread([cosine_of(row, *each) for row in group]) for each in wanted]
        epsilon = group[0]["epsilon"]
        lines.append([case, str(batch), *found, "—" if epsilon is None else f"{max(row['epsilon'] for row in group):.1f}"])
    return lines


def cosine_of(row: Row, estimate: str, rounds: Sequence[int], place: int = 3) -> float:
    """The mean cosine of an estimate over some rounds and all watched nodes; NaN if there is none."""
    found = [line[place] for line in row["cosines"] if line[0] == estimate and line[1] in rounds]
    return mean(found) if found else math.nan


def _spread(values: Sequence[float]) -> str:
    if any(math.isnan(value) for value in values):
        return "—"
    around = reach(values, CONFIDENCE)
    return f"{mean(values):.3f}" + (f" ± {around:.3f}" if math.isfinite(around) else "")


def _image_lines(rows: Sequence[Row]) -> list[list[str]]:
    lines = []
    for (case, _), group in _groups(rows).items():
        for index in dict.fromkeys(group[0].get("images", {}).get("rounds", [])):
            values = [
                _decibels(group, name, index)
                for name in ("mean image", f"{MESSAGE}, matching", f"{ALL}, matching", f"{ALL}, division")
            ]
            shown = ["—" if not each else f"{median(each):.1f} ({min(each):.1f} to {max(each):.1f})" for each in values]
            lines.append([case, str(index + 1), str(len(values[0])), *shown])
    return lines


def _decibels(group: Sequence[Row], name: str, index: int) -> list[float]:
    """PSNR of the victims of one round, over all seeds."""
    return [
        value
        for row in group
        for at, value in zip(row["images"]["rounds"], row["images"]["psnr"].get(name, []), strict=False)
        if at == index
    ]


def _property_lines(rows: Sequence[Row]) -> list[list[str]]:
    lines = []
    for (case, _), group in _groups(rows).items():
        if "property" not in group[0]:
            continue
        areas = [_area(group, name) for name in (MESSAGE, ALL)]
        count = sum(len(row["property"]["truths"]) for row in group)
        lines.append([case, str(count), *areas, f"{mean(row['accuracy'] for row in group):.3f}"])
    return lines


def _area(group: Sequence[Row], name: str) -> str:
    kinds: dict[bool, list[float]] = {True: [], False: []}
    for row in group:
        for score, truth in zip(row["property"]["scores"].get(name, []), row["property"]["truths"], strict=False):
            kinds[truth].append(score)
    if not all(kinds.values()):
        return "—"
    low, high = auc_interval(kinds[True], kinds[False])
    return f"{auc(kinds[True], kinds[False]):.2f} ({low:.2f} to {high:.2f})"


# The picture --------------------------------------------------------------------------------------------------------------

SHOWN = {
    "gossip dense ring": "D-PSGD, ring",
    "dbcl 0.5 complete": "DBCL ½, complete",
    "dbcl 0.5 ring": "DBCL ½, ring",
    "dbcl 0.25 complete": "DBCL ¼, complete",
    "dbcl 0.25 ring": "DBCL ¼, ring",
    "gossip 0.25 complete": "gossip ¼, complete",
    "dbcl 0.5 complete 8": "DBCL ½, noise, ε = 8",
}


def figure(rows: Sequence[Row]) -> Any:
    """Cosines with the true change by round above, and some images below."""
    groups = {case: group for (case, batch), group in _groups(rows).items() if batch == 1 and case in SHOWN}
    shown = {case: groups[case] for case in SHOWN if case in groups}
    points = [
        {
            "case": SHOWN[case],
            "estimate": estimate,
            "round": index + 1,
            "cosine": mean(cosine_of(row, estimate, (index,)) for row in group),
        }
        for case, group in shown.items()
        for estimate in (TWO, ALL)
        for index in sorted({line[1] for line in group[0]["cosines"]})
        if not math.isnan(cosine_of(group[0], estimate, (index,)))
    ]
    colour = alt.Color(
        "estimate:N",
        scale=alt.Scale(domain=[TWO, ALL], range=[MUTED, PALETTE[0]]),
        legend=alt.Legend(title=None, orient="top", direction="horizontal"),
    )
    across = alt.X("round:Q", axis=alt.Axis(grid=False, tickMinStep=1, format="d"))
    down = alt.Y("cosine:Q", scale=alt.Scale(domain=[-0.1, 1]), axis=alt.Axis(values=[0, 0.5, 1]))
    panels = []
    for case in shown:
        own = alt.InlineData(values=[point for point in points if point["case"] == SHOWN[case]])
        title = alt.Title(SHOWN[case], fontSize=11, color=INK, frame="group")
        chart = alt.Chart(own).mark_line(point=True, strokeWidth=2).encode(across, down, colour)
        panels.append(chart.properties(width=130, height=110, title=title))
    title = alt.Title(
        "What a neighbour knows of a local change",
        subtitle="cosine of the estimate with the true change; one example in a step; below: images of rounds 1 and 6",
    )
    parts = [alt.concat(*panels, columns=4, spacing=14), *([_pictures(shown)] if shown else [])]
    return alt.vconcat(*parts, spacing=20).properties(title=title)


def _pictures(shown: dict[str, list[Row]]) -> Any:
    """The images of one neighbour, and what the best attack on each case made of them."""
    side, cells = 44, []
    for case, group in shown.items():
        pictures = group[0]["images"]["pictures"]
        name = f"{ALL}, division" if f"{ALL}, division" in pictures else f"{MESSAGE}, matching"
        for column, pairs in ((SHOWN[case], pictures[name]), ("original", pictures["original"])):
            for victim, picture in enumerate(pairs[::2]):  # those of node 1, whom all of these attackers hear
                if picture is not None and (column != "original" or case == next(iter(shown))):
                    cells.append({"column": column, "victim": victim, "url": f"data:image/png;base64,{picture}"})
    order = ["original", *(SHOWN[case] for case in shown)]
    axis = alt.Axis(orient="bottom", title=None, labelAngle=-35, domain=False, ticks=False, grid=False)
    chart = alt.Chart(alt.InlineData(values=cells)).mark_image(width=side, height=side)
    return chart.encode(alt.X("column:N", sort=order, axis=axis), alt.Y("victim:N", axis=None), url="url:N").properties(
        width=(side + 12) * len(order), height=(side + 6) * 2
    )
