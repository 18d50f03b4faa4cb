"""The table and the figure of `quantity-skew`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import altair as alt

from sketchfed.report import INK, PALETTE, save_chart
from sketchfed.runs import Row
from sketchfed_lab.experiments.arms import accuracy
from sketchfed_lab.experiments.intervals import Points
from sketchfed_lab.experiments.tables import shown_size, write_table

LAST = 5
"""An accuracy is the mean of this many scores, because scores go up and down from round to round. Tuning does the same."""
BASELINE = "equal"

Place = tuple[str, int, str]
"""Spread, dim/size and weighting."""
Runs = Mapping[Place, Mapping[int, Row]]
"""The runs of each place, by seed."""

HEADINGS = (
    *(
        "spread",
        "size",
        "weights",
        "local rate",
        "global rate",
        "accuracy",
        "points against equal",
        "more than without a sketch",
    ),
    *("small clients", "points against equal, small", "mean of clients", "points against equal, clients"),
)


def write(rows: Sequence[Row], folder: Path) -> None:
    """Write table.md and figure.svg, and print the table."""
    runs: dict[Place, dict[int, Row]] = {}
    for row in rows:
        key = row["key"]
        runs.setdefault((key["spread"], key["inverse_ratio"], key["weighting"]), {})[key["seed"]] = row
    write_table(folder / "table.md", HEADINGS, [_line(runs, place) for place in runs], printed=(0, 1, 2, 3, 4, 5, 6, 7))
    save_chart(figure(runs), folder / "figure.svg")


def on_test(row: Row) -> float:
    """The accuracy on the test set, in points."""
    return 100 * accuracy(row, last=LAST)


def small(row: Row) -> float:
    """The accuracy on the examples of the smallest clients, in points. A model that diverged has none."""
    return 100 * float(row.get("small", 0.0))


def clients(row: Row) -> float:
    """The mean accuracy of clients on their own examples, in points."""
    return 100 * float(row.get("clients", 0.0))


MEASURES = (on_test, small, clients)


def _line(runs: Runs, place: Place) -> list[str]:
    spread, inverse, weighting = place
    key = next(iter(runs[place].values()))["key"]
    cells = [spread, shown_size(inverse), weighting, f"{key['local_rate']:g}", f"{key['global_rate']:g}"]
    for measure in MEASURES:
        found = [measure(row) for row in runs[place].values()]
        cells.append(f"{mean(found):.1f}" + (f" ± {stdev(found):.1f}" if len(found) > 1 else ""))
        cells.append("" if weighting == BASELINE else str(gap(runs, place, measure)))
        if measure is on_test:
            cells.append("" if weighting == BASELINE or inverse == 1 else str(change(runs, place)))
    return cells


def gap(runs: Runs, place: Place, measure: Callable[[Row], float]) -> Points:
    """How many points more a weighting has than equal weights, seed by seed."""
    equal = runs[(*place[:2], BASELINE)]
    return Points(tuple(measure(row) - measure(equal[seed]) for seed, row in runs[place].items() if seed in equal))


def change(runs: Runs, place: Place) -> Points:
    """How many points more a weighting gains on the test set through a sketch than with whole updates, seed by seed."""
    spread, _, weighting = place
    dense = (spread, 1, weighting)
    shared = runs[place].keys() & runs[dense].keys()
    gaps = [gap({**runs, each: {seed: runs[each][seed] for seed in sorted(shared)}}, each, on_test) for each in (place, dense)]
    return Points(tuple(after - before for after, before in zip(*(each.values for each in gaps), strict=True)))


def figure(runs: Runs) -> Any:
    """Mean accuracy of each weighting against rounds: a panel for each spread and size."""
    weightings = list(dict.fromkeys(weighting for _, _, weighting in runs))
    colours = alt.Scale(domain=weightings, range=[INK, *PALETTE[: len(weightings) - 1]])
    rows = []
    for spread in dict.fromkeys(spread for spread, _, _ in runs):
        beside = []
        for inverse in sorted({inverse for _, inverse, _ in runs}):
            points = [
                {"round": curves[0][0], "weights": weighting, "accuracy": mean(point[2] for point in curves)}
                for weighting in weightings
                for curves in zip(*(row["curve"] for row in runs[spread, inverse, weighting].values()), strict=False)
            ]
            chart = alt.Chart(alt.InlineData(values=points)).mark_line(clip=True, strokeWidth=1.6)
            chart = chart.encode(
                alt.X("round:Q", title="round"),
                alt.Y("accuracy:Q", scale=alt.Scale(domain=[0.7, 0.89], nice=False), title="test accuracy"),
                alt.Color("weights:N", scale=colours, title=None),
            )
            title = alt.Title(f"{spread}, size {shown_size(inverse)}", fontSize=12, color=INK)
            beside.append(chart.properties(width=320, height=200, title=title))
        rows.append(alt.hconcat(*beside))
    subtitle = "mean test accuracy over seeds, each weighting with its tuned rates"
    return alt.vconcat(*rows).properties(title=alt.Title("Clients with more and fewer examples", subtitle=subtitle))
