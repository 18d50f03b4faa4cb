"""The table and the picture of `audit-property`."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import altair as alt

from sketchfed.attacks import auc, auc_interval
from sketchfed.report import INK, MUTED, PALETTE, save_chart
from sketchfed.runs import Row
from sketchfed_lab.experiments.tables import write_table

HEADINGS = (
    *("data", "share of the batch", "defence", "seen by", "AUC, forest", "95 % interval", "AUC, linear", "95 % interval"),
    *("published", "AUC of each seed, forest", "AUC of each seed, linear", "rounds judged", "accuracy"),
)
PUBLISHED = {"no defence · server": "1.0", "DBCL · client, option I": "0.5", "DBCL · server": "0.726"}
"""Zhang & Wang 2021, App. A.2, on LFW; without a defence the client sees what the server sees."""
PROPERTIES = {"adult": "women", "mnist": "bright images", "cifar10": "warm images"}
JUDGES = ("forest", "linear")
_KINDS = ("with", "without")


def write(rows: Sequence[Row], folder: Path) -> None:
    """table.md and figure.svg, and the table on the terminal."""
    found = list(cells(rows))
    write_table(folder / "table.md", HEADINGS, [_line(cell) for cell in found], printed=(0, 1, 2, 3, 4, 5, 6, 7))
    save_chart(figure(found), folder / "figure.svg")


def cells(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """The runs of all seeds together, for each way to train and each attack on it."""
    groups: dict[tuple[str, float, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["key"]["data"], row["key"]["share"], _defence(row)), []).append(row)
    for data, share, defence in sorted(groups, key=lambda group: (_order(rows, group[0]), -group[1])):
        own = groups[data, share, defence]
        for view in own[0]["attacks"]:
            cell = {"data": data, "share": share, "defence": defence, "view": view}
            for judge in JUDGES:
                scores = [[row["attacks"][view][judge][kind] for kind in _KINDS] for row in own]
                up, down = ([score for each in scores for score in each[place]] for place in (0, 1))
                areas = [auc(*each) for each in scores]
                cell[judge] = {"auc": auc(up, down), "interval": auc_interval(up, down), "seeds": areas}
            yield cell | {"rounds": (len(up), len(down)), "accuracy": sum(row["accuracy"] for row in own) / len(own)}


def _defence(row: Row) -> str:
    key = row["key"]
    name = {"none": "no defence", "dbcl": "DBCL", "sketch": "sketch"}[key["defence"]]
    return name if key["epsilon"] is None else f"{name}, ε = {key['epsilon']:g}"


def _order(rows: Sequence[Row], data: str) -> int:
    return list(dict.fromkeys(row["key"]["data"] for row in rows)).index(data)


def _line(cell: dict[str, Any]) -> list[str]:
    areas = [[f"{cell[judge]['auc']:.3f}", "{:.3f} to {:.3f}".format(*cell[judge]["interval"])] for judge in JUDGES]
    seeds = [", ".join(f"{value:.2f}" for value in cell[judge]["seeds"]) for judge in JUDGES]
    return [
        *(cell["data"], _share(cell["share"]), cell["defence"], cell["view"], *areas[0], *areas[1]),
        *(PUBLISHED.get(_name(cell), "—"), *seeds),
        *("{} with, {} without".format(*cell["rounds"]), f"{cell['accuracy']:.3f}"),
    ]


def _share(share: float) -> str:
    return "all" if share == 1 else str(Fraction(share).limit_denominator(64))


def _name(cell: dict[str, Any]) -> str:
    return f"{cell['defence']} · {cell['view']}"


def figure(found: Sequence[dict[str, Any]]) -> Any:
    """Areas with their intervals: a column a data set, a row a share."""
    names = list(dict.fromkeys(_name(cell) for cell in found))
    places = dict.fromkeys((cell["share"], cell["data"]) for cell in found)
    columns, lines = list(dict.fromkeys(data for _, data in places)), list(dict.fromkeys(share for share, _ in places))
    lines_of_panels = [
        [_panel(found, names, data, share, first=data == columns[0], last=share == lines[-1]) for data in columns]
        for share in lines
    ]
    grid = alt.vconcat(*(alt.hconcat(*panels) for panels in lines_of_panels))
    title = alt.Title(
        "Property inference from the bytes of two clients' runs",
        subtitle=[
            "area under the ROC curve with its 95 % interval; 0.5 is chance",
            "hollow diamonds: published for the same way to train, on other data (Zhang & Wang 2021, App. A.2)",
        ],
    )
    return grid.properties(title=title)


def _panel(found: Sequence[dict[str, Any]], names: list[str], data: str, share: float, *, first: bool, last: bool) -> Any:
    points = [
        {
            "name": _name(cell),
            "judge": judge,
            "kind": cell["defence"].split(",")[0] + (" + noise" if "ε" in cell["defence"] else ""),
            "auc": cell[judge]["auc"],
            "low": cell[judge]["interval"][0],
            "high": cell[judge]["interval"][1],
        }
        for cell in found
        if (cell["data"], cell["share"]) == (data, share)
        for judge in JUDGES
    ]
    shown = {point["name"] for point in points}
    published = [{"name": name, "auc": float(value)} for name, value in PUBLISHED.items() if name in shown]
    blank = alt.Axis(labels=first, ticks=False, domain=False, labelLimit=260)
    down = alt.Y("name:N", title=None, sort=names, scale=alt.Scale(domain=names), axis=blank)
    quarters = alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format=".2~f")
    across = alt.X("auc:Q", title="AUC" if last else None, scale=alt.Scale(domain=[0, 1]), axis=quarters)
    kinds = ["no defence", "DBCL", "sketch", "sketch + noise"]
    colour = alt.Color("kind:N", legend=None, scale=alt.Scale(domain=kinds, range=[INK, PALETTE[1], PALETTE[0], PALETTE[2]]))
    aside = alt.YOffset("judge:N", sort=JUDGES, scale=alt.Scale(paddingOuter=0.4))
    shape = alt.Shape("judge:N", title=None, scale=alt.Scale(domain=JUDGES, range=["circle", "square"]))
    base = alt.Chart(alt.InlineData(values=points))
    chance = alt.Chart(alt.InlineData(values=[{"at": 0.5}])).mark_rule(color=MUTED, strokeDash=[4, 3]).encode(x="at:Q")
    spans = base.mark_rule(strokeWidth=2).encode(alt.X("low:Q"), alt.X2("high:Q"), down, aside, colour)
    dots = base.mark_point(filled=True, size=55, opacity=1).encode(across, down, aside, colour, shape)
    others = alt.Chart(alt.InlineData(values=published)).mark_point(shape="diamond", size=110, color=MUTED, strokeWidth=1.5)
    heading = f"{data}: {PROPERTIES.get(data, 'bright images')}, {_share(share)} of the batch"
    layers = alt.layer(chance, spans, dots, others.encode(across, down))
    return layers.properties(width=215, height=26 * len(names), title=alt.Title(heading, fontSize=12, color=INK))
