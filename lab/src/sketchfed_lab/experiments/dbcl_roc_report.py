"""The table and the picture of `dbcl-figure-2`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt

from sketchfed.report import INK, MUTED, PALETTE, save_chart, shown_bytes
from sketchfed.runs import Row
from sketchfed_lab.experiments.roc import area, curve, difference
from sketchfed_lab.experiments.tables import write_table

HEADINGS = (
    *("method", "area under the curve", "less that of plain", "accuracy", "loss", "rate", "rounds", "seed"),
    *("test examples", "up, each client", "down, each client"),
)
CLIENTS = 2


def write(rows: Sequence[Row], folder: Path) -> None:
    """table.md and figure.svg, and the table on the terminal. Intervals are DeLong's, 95 %, over test examples."""
    trained = [row for row in rows if not row["diverged"]]
    write_table(folder / "table.md", HEADINGS, [_line(row, trained) for row in rows], printed=(0, 1, 2, 5, 6))
    save_chart(figure(trained), folder / "figure.svg")


def method_name(row: Row) -> str:
    key = row["key"]
    what = "plain" if key["method"] == "plain" else f"sketched, {key['ratio']:g} of the inputs"
    return f"{what}, {key['rounds']:,} rounds"


def _line(row: Row, trained: Sequence[Row]) -> list[str]:
    key = row["key"]
    about = [f"{key['rate']:g}", str(key["rounds"]), str(key["seed"])]
    if row["diverged"]:
        return [method_name(row), "diverged", "—", "—", "—", *about, "—", "—", "—"]
    found, last = area(row["positives"], row["negatives"]), row["curve"][-1]
    return [
        method_name(row),
        f"{found.value:.4f} ± {found.reach():.4f}",
        _against_plain(row, trained),
        f"{last[2]:.4f}",
        f"{last[1]:.4f}",
        *about,
        f"{len(row['positives'])} and {len(row['negatives'])}",
        *(shown_bytes(last[place] / CLIENTS) for place in (3, 4)),
    ]


def _against_plain(row: Row, trained: Sequence[Row]) -> str:
    """Paired by test example, with the plain run of the same seed."""
    plain = [r for r in trained if r["key"]["method"] == "plain" and r["key"]["seed"] == row["key"]["seed"]]
    if row["key"]["method"] == "plain" or not plain:
        return "—"
    gap = difference((row["positives"], row["negatives"]), (plain[0]["positives"], plain[0]["negatives"]))
    return f"{gap.value:+.4f} ± {gap.reach():.4f}"


def figure(rows: Sequence[Row]) -> Any:
    """A curve a run, and the diagonal of guessing."""
    points = []
    for row in rows:
        found = area(row["positives"], row["negatives"])
        label = f"{method_name(row)}: {found.value:.3f} ± {found.reach():.3f}"
        for place, (wrong, right) in enumerate(zip(*curve(row["positives"], row["negatives"]), strict=True)):
            points.append({"method": label, "run": row["key"]["seed"], "place": place, "wrong": wrong, "right": right})
    labels = list(dict.fromkeys(point["method"] for point in points))
    across = alt.X("wrong:Q", title="false positive rate", scale=alt.Scale(domain=[0, 1]))
    down = alt.Y("right:Q", title="true positive rate", scale=alt.Scale(domain=[0, 1]))
    colour = alt.Color("method:N", title="area under the curve, 95 %", scale=alt.Scale(domain=labels, range=[INK, *PALETTE]))
    lines = alt.Chart(alt.InlineData(values=points)).mark_line(strokeWidth=1.6)
    guess = alt.Chart(alt.InlineData(values=[{"wrong": 0, "right": 0}, {"wrong": 1, "right": 1}]))
    return alt.layer(
        guess.mark_line(strokeDash=[5, 4], color=MUTED, strokeWidth=1).encode(across, down),
        lines.encode(across, down, colour.legend(labelLimit=400), alt.Order("place:Q"), detail="run:N"),
    ).properties(
        width=400,
        height=400,
        title=alt.Title(
            "Trucks among cars: training through sketches beside plain training",
            subtitle="CIFAR-10, classes as unequal as the paper's faces; intervals are over test examples",
        ),
    )
