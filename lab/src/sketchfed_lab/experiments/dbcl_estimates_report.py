"""The table and the picture of `dbcl-figure-3`."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import altair as alt

from sketchfed.report import INK, MUTED, PALETTE, save_chart
from sketchfed.runs import Row
from sketchfed_lab.experiments.tables import write_table

HEADINGS = (
    *("sketch", "layer", "estimate", "error, round 1", "error, median", "error, last", "cosine, round 1", "cosine, median"),
    *(
        "cosine, last",
        "error of the best multiple, median",
        "step / weights, median",
        "Theorem 1, median",
        "rounds",
        "accuracy",
    ),
)
OPTIONS = {"adjoint": "Option I, adjoint", "pseudo-inverse": "Option II, pseudo-inverse"}
ZEROS, THEOREM = "all zeros", "Theorem 1"


def write(rows: Sequence[Row], folder: Path) -> None:
    """table.md and figure.svg, and the table on the terminal."""
    lines = [line for row in rows if row["estimates"] for line in _lines(row)]
    write_table(folder / "table.md", HEADINGS, lines, printed=(0, 1, 2, 4, 7, 9))
    save_chart(figure(rows), folder / "figure.svg")


def _lines(row: Row) -> list[list[str]]:
    """A line a layer and estimate, and one for a guess of zeros, whose error is always 1."""
    lines = []
    for layer in dict.fromkeys(line[1] for line in row["estimates"]):
        steps = [line for line in row["steps"] if line[1] == layer]
        for option, label in OPTIONS.items():
            own = [line for line in row["estimates"] if line[1:3] == [layer, option]]
            errors, cosines = [line[3] for line in own], [line[4] for line in own]
            best = median(math.sqrt(max(0.0, 1 - value**2)) for value in cosines)
            figures = [f"{value:.3g}" for value in (errors[0], median(errors), errors[-1])]
            figures += [f"{value:.4f}" for value in (cosines[0], median(cosines), cosines[-1], best)]
            expected = option == "adjoint" and steps[0][3] is not None
            figures += [f"{median(s[2] for s in steps):.4f}", f"{median(s[3] for s in steps):.3g}" if expected else "—"]
            lines.append([_name(row), layer, label, *figures, str(len(own)), f"{row['accuracy']:.4f}"])
    rounds = str(len({line[0] for line in row["estimates"]}))
    zeros = [_name(row), layer, ZEROS, *["1"] * 3, *["—"] * 3, "1", "—", "—", rounds, f"{row['accuracy']:.4f}"]
    return [*lines, zeros]


def _name(row: Row) -> str:
    return f"{row['key']['sketch']} {row['key']['ratio']:g}"


def figure(rows: Sequence[Row]) -> Any:
    """Errors above, cosines below, against rounds; a column a family, all sketched layers taken together."""
    columns = [_column(row) for row in rows if row["estimates"]]
    errors, cosines = (alt.hconcat(*(column[place] for column in columns)) for place in (0, 1))
    title = alt.Title(
        "A client's estimates of the server's steps, from two broadcasts",
        subtitle=f"{rows[0]['key']['data']}, all sketched layers; an error of 1 is that of guessing zeros",
    )
    return alt.vconcat(errors, cosines).properties(title=title)


def _column(row: Row) -> tuple[Any, Any]:
    last = row["estimates"][-1][1]  # all layers together come last
    points = [
        {"round": number, "estimate": OPTIONS[option], "error": error, "cosine": value}
        for number, layer, option, error, value in row["estimates"]
        if layer == last
    ]
    expected = [{"round": s[0], "estimate": THEOREM, "error": s[3]} for s in row["steps"] if s[1] == last and s[3] is not None]
    ends = [points[0]["round"], points[-1]["round"]]
    zeros = [{"round": number, "estimate": ZEROS, "error": 1.0, "cosine": 0.0} for number in ends]
    scale = alt.Scale(domain=[*OPTIONS.values(), THEOREM, ZEROS], range=[PALETTE[1], PALETTE[0], INK, MUTED])
    colour = alt.Color("estimate:N", title=None, scale=scale)
    dash = alt.StrokeDash(
        "estimate:N", title=None, scale=alt.Scale(domain=scale.domain, range=[[1, 0], [1, 0], [2, 3], [6, 4]])
    )
    across = alt.X("round:Q", title="round", axis=alt.Axis(grid=False, tickMinStep=1, format="d"))

    def panel(values: list[dict[str, Any]], field: str, title: str, **of_scale: Any) -> Any:
        down = alt.Y(f"{field}:Q", title=title, scale=alt.Scale(**of_scale))
        chart = alt.Chart(alt.InlineData(values=values)).mark_line(strokeWidth=1.5).encode(across, down, colour, dash)
        return chart.properties(width=340, height=210)

    heading = alt.Title(_name(row), fontSize=12, color=INK)
    error = panel(points + zeros + expected, "error", "relative error", type="log").properties(title=heading)
    return error, panel(points + zeros, "cosine", "cosine similarity", zero=True)
