"""The table and the figure of `diameter`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from sketchfed.report import MUTED, PALETTE, save_chart, shown_bytes
from sketchfed.runs import Row
from sketchfed_lab.experiments.tables import write_table

Place = tuple[str, int]
"""Kind of graph and diameter."""
Served = Mapping[tuple[int, int], Row]
"""The runs with a server, by the number of clients and the seed."""

HEADINGS = (
    *("graph", "diameter", "nodes", "links", "height of the tree", "steps of a round", "2 · diameter"),
    *("messages of a link, each way", "numbers of a message", "bits of a number in sums"),
    *("bytes of a round", "the same over 2(n − 1)", "busiest link", "busiest node", "bytes with a server"),
    *("all nodes equal", "the server's bits"),
)


def write(rows: Sequence[Row], folder: Path) -> None:
    """Write table.md and figure.svg, and print the table."""
    served = {(row["key"]["nodes"], row["key"]["seed"]): row for row in rows if "diameter" not in row["key"]}
    runs: dict[Place, list[Row]] = {}
    for row in rows:
        if "diameter" in row["key"]:
            runs.setdefault((row["key"]["kind"], row["key"]["diameter"]), []).append(row)
    lines = [_line(place, own, served) for place, own in runs.items()]
    write_table(folder / "table.md", HEADINGS, lines, printed=(0, 1, 2, 5, 6, 8, 10, 14, 15, 16))
    save_chart(figure(runs), folder / "figure.svg")


def equal_everywhere(own: Sequence[Row]) -> bool:
    """Whether all nodes held the same bits after every round."""
    return all(row["consensus"] == 0 for row in own)


def as_with_a_server(own: Sequence[Row], served: Served) -> bool:
    """Whether the weights after the last round have the bits of those of a run with a server."""
    return all(row["weights"] == served[row["key"]["nodes"], row["key"]["seed"]]["weights"] for row in own)


def _line(place: Place, own: Sequence[Row], served: Served) -> list[str]:
    kind, diameter = place
    most = {name: max(row[name] for row in own) for name in ("steps", "messages", "numbers", "bits", "total", "node", "edge")}
    nodes = own[0]["key"]["nodes"]
    cells = [kind, str(diameter), str(nodes), str(own[0]["edges"]), str(own[0]["radius"]), f"{most['steps']:g}"]
    cells += [str(2 * diameter), str(most["messages"]), str(most["numbers"]), str(most["bits"]), shown_bytes(most["total"])]
    cells += [shown_bytes(most["total"] / (2 * (nodes - 1))), shown_bytes(most["edge"]), shown_bytes(most["node"])]
    cells.append(shown_bytes(served[nodes, own[0]["key"]["seed"]]["total"]))
    return [*cells, _yes(equal_everywhere(own)), _yes(as_with_a_server(own, served))]


def _yes(found: bool) -> str:
    return "yes" if found else "no"


def figure(runs: Mapping[Place, Sequence[Row]]) -> Any:
    """Steps and bytes of a round against the diameter."""
    kinds = list(dict.fromkeys(kind for kind, _ in runs))
    colours = alt.Scale(domain=kinds, range=PALETTE[: len(kinds)])
    points = [
        {
            **{"graph": kind, "diameter": diameter, "steps": max(row["steps"] for row in own)},
            **{"kB": max(row["total"] for row in own) / 2 / (own[0]["key"]["nodes"] - 1) / 1000},
        }
        for (kind, diameter), own in runs.items()
    ]
    x = alt.X("diameter:Q", scale=alt.Scale(type="log", base=2, domain=[1.8, 72], nice=False), title="diameter")
    base = alt.Chart(alt.InlineData(values=points)).mark_point(filled=True, size=46, opacity=0.85)
    base = base.encode(
        x, alt.Color("graph:N", scale=colours, title=None), alt.Shape("graph:N", scale=alt.Scale(domain=kinds), title=None)
    )
    log = alt.Scale(type="log", base=2, domain=[1.8, 140], nice=False)
    bounds = [{"diameter": at, "steps": times * at, "line": times} for times in (1, 2) for at in (2, 64)]
    line = alt.Chart(alt.InlineData(values=bounds)).mark_line(color=MUTED, strokeWidth=1, strokeDash=[4, 3])
    line = line.encode(x, alt.Y("steps:Q", scale=log), alt.Detail("line:N"))
    steps = line + base.encode(alt.Y("steps:Q", scale=log, title="steps of a round"))
    size = base.encode(alt.Y("kB:Q", scale=alt.Scale(domain=[0, 1.1], nice=False), title="kB of a round over 2(n − 1)"))
    title = alt.Title("Sums along a tree", subtitle="left: dashed lines are the diameter and twice the diameter")
    return alt.hconcat(*(each.properties(width=300, height=240) for each in (steps, size))).properties(title=title)
