"""The table and the picture of `batch-norm`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import altair as alt

from sketchfed.report import INK, PALETTE, save_chart, shown_bytes
from sketchfed.runs import Row
from sketchfed_lab.experiments.intervals import reach
from sketchfed_lab.experiments.tables import write_table

CONFIDENCE = 0.95
TITLES = {"features": "images look different", "labels": "classes differ"}
COLORS = {"averaged": INK, "local": PALETTE[0], "GroupNorm": PALETTE[1], "averaged, sketch 1/10": PALETTE[3]}
HEADINGS = (
    *("clients", "arm", "local rate", "a reply", "accuracy on the clients", "against averaged", "of the worst tenth of them"),
    "of the server's own model",
)
Groups = Mapping[tuple[str, str], Sequence[Row]]


def write(rows: Sequence[Row], folder: Path, *, clients: int) -> None:
    """table.md and figure.svg, and the table on the terminal."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["key"]["skew"], row["key"]["arm"]), []).append(row)
    lines = [
        _line(skew, name, groups, clients) for skew, name in sorted(groups, key=lambda place: list(TITLES).index(place[0]))
    ]
    write_table(folder / "table.md", HEADINGS, lines, printed=(0, 1, 2, 4, 5, 6))
    save_chart(figure(groups), folder / "figure.svg")


def _line(skew: str, name: str, groups: Groups, clients: int) -> list[str]:
    found, base = groups[skew, name], groups.get((skew, "averaged"), ())
    start = [TITLES[skew], name, f"{found[0]['key']['local_rate']:g}"]
    if any(row["diverged"] for row in found):
        return [*start, *["diverged"] * (len(HEADINGS) - len(start))]
    last = [row["curve"][-1] for row in found]
    return [
        *start,
        shown_bytes(mean(point[3] / point[0] for point in last) / clients),
        shown([point[2] for point in last]),
        "" if name == "averaged" else against(found, base),
        f"{mean(point[4] for point in last):.3f}",
        f"{mean(point[5] for point in last):.3f}",
    ]


def shown(values: Sequence[float], sign: str = "") -> str:
    """A mean, and the reach of its interval by Student's t if there are several values."""
    return f"{mean(values):{sign}.3f}" + (f" ± {reach(values, CONFIDENCE):.3f}" if len(values) > 1 else "")


def against(found: Sequence[Row], base: Sequence[Row]) -> str:
    """The mean difference of the accuracies of two arms with the same seed, whose clients hold the same images."""
    ends = {row["key"]["seed"]: row["curve"][-1][2] for row in base if not row["diverged"]}
    pairs = [row["curve"][-1][2] - ends[row["key"]["seed"]] for row in found if row["key"]["seed"] in ends]
    return shown(pairs, "+") if pairs else ""


def figure(groups: Groups) -> Any:
    """The accuracy of clients on their own images against rounds, a line a seed, a panel for each kind of clients."""
    names = [name for name in COLORS if any(name == other for _, other in groups)]
    color = alt.Color("arm:N", title=None, scale=alt.Scale(domain=names, range=[COLORS[name] for name in names]))
    panels = []
    for skew, title in TITLES.items():
        points = [
            {"round": point[0], "accuracy": point[2], "arm": name, "seed": row["key"]["seed"]}
            for (own, name), found in groups.items()
            for row in found
            for point in row["curve"]
            if own == skew
        ]
        if not points:
            continue
        chart = (
            alt.Chart(alt.InlineData(values=points))
            .mark_line(strokeWidth=1.6)
            .encode(
                alt.X("round:Q", title="round").axis(grid=False),
                alt.Y("accuracy:Q", title="accuracy on clients' own images", scale=alt.Scale(zero=False)),
                color,
                detail="seed:N",
            )
        )
        panels.append(chart.properties(width=360, height=240, title=alt.Title(title, fontSize=12, color=INK)))
    return alt.hconcat(*panels).properties(title=alt.Title("Three ways with BatchNorm", subtitle="CIFAR-10; a line a seed"))
