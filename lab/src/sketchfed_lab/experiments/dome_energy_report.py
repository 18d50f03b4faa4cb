"""The table and the picture of `dome-energy`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import altair as alt

from sketchfed.report import INK, MUTED, PALETTE, save_chart
from sketchfed.runs import Row
from sketchfed_lab.experiments.tables import write_table

HEADINGS = (
    *("data", "ε", "k", "rule", "captured, first third", "captured, last third", "k/d", "past", "last", "hindsight"),
    *("directions for 90 %", "for 99 %", "cosine", "sampling", "accuracy"),
)
DATA = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}
HINDSIGHT, PAST, RANDOM = "best k directions in hindsight", "best k directions of true gradients before", "k/d"
BIN = 10
"""Rounds that are one point of a line."""
_DASHES = {HINDSIGHT: [6, 3], PAST: [2, 2], RANDOM: [1, 4]}


def write(rows: Sequence[Row], folder: Path) -> None:
    """table.md and figure.svg, and the table on the terminal."""
    write_table(folder / "table.md", HEADINGS, [_line(row) for row in rows], printed=(0, 1, 2, 3, 5, 7, 10, 14))
    save_chart(figure(rows), folder / "figure.svg")


def rule_of(row: Row) -> str:
    """The rule's name, and its options if it was given any.

    >>> rule_of({"key": {"rule": {"name": "incremental_svd", "share": 0.9}}})
    'incremental_svd, share 0.9'
    """
    rule = row["key"]["rule"]
    return ", ".join([rule["name"], *(f"{option} {value}" for option, value in rule.items() if option != "name")])


def _line(row: Row) -> list[str]:
    key, third = row["key"], max(1, len(row["captured"]) // 3)
    last = {name: mean(row[name][-third:]) for name in ("captured", "past", "last", "hindsight", "cosine", "sampling")}
    return [
        key["data"],
        _budget(key["epsilon"]),
        str(key["size"]),
        rule_of(row),
        _percent(mean(row["captured"][:third])),
        _percent(last["captured"]),
        _percent(key["size"] / row["dim"]),
        *(_percent(last[name]) for name in ("past", "last", "hindsight")),
        *map(str, row["ranks"]),
        f"{last['cosine']:.2f}",
        _percent(last["sampling"]),
        f"{row['accuracy']:.3f}" + (" (diverged)" if row["diverged"] else ""),
    ]


def _budget(epsilon: float) -> str:
    return f"{epsilon:g}" if epsilon else "no noise"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def figure(rows: Sequence[Row]) -> Any:
    """Shares against rounds, a panel for each size and ε, a line of panels for each data set."""
    rules = list(dict.fromkeys(rule_of(row) for row in rows))
    places = list(dict.fromkeys((row["key"]["epsilon"], row["key"]["size"]) for row in rows))
    lines: list[Any] = []
    for data in dict.fromkeys(row["key"]["data"] for row in rows):
        panels: list[Any] = []
        for place in places:
            own = [row for row in rows if (row["key"]["data"], row["key"]["epsilon"], row["key"]["size"]) == (data, *place)]
            if own:
                panels.append(_panel(own, rules, first=not panels, named=not lines))
        lines.append(alt.hconcat(*panels, spacing=14))
    title = alt.Title(
        "How much of the true mean gradient's energy the subspace captures",
        subtitle=f"means over {BIN} rounds; broken lines are of the run that captures most in its panel",
    )
    return alt.vconcat(*lines, spacing=12).properties(title=title)


def _panel(rows: Sequence[Row], rules: Sequence[str], *, first: bool, named: bool) -> Any:
    key, best = rows[0]["key"], max(rows, key=lambda row: mean(row["captured"]))
    rounds = len(best["captured"])
    points = [point for row in rows for point in _binned(row["captured"], rule_of(row))]
    points += [*_binned(best["hindsight"], HINDSIGHT), *_binned(best["past"], PAST)]
    points += [{"round": end, "share": key["size"] / best["dim"], "line": RANDOM} for end in (0, rounds)]
    names = [*rules, *_DASHES]
    colours = [*PALETTE[: len(rules)], INK, INK, MUTED]
    legend = alt.Legend(symbolType="stroke", symbolStrokeWidth=2, symbolSize=300, labelLimit=300, orient="bottom", columns=4)
    colour = alt.Color("line:N", title=None, scale=alt.Scale(domain=names, range=colours), legend=legend)
    dashes = alt.Scale(domain=names, range=[*([[1, 0]] * len(rules)), *_DASHES.values()])
    dash = alt.StrokeDash("line:N", title=None, scale=dashes, legend=legend)
    x = alt.X("round:Q", title="round", scale=alt.Scale(domain=[0, rounds], nice=False)).axis(grid=False, tickCount=4)
    scale = alt.Scale(type="log", domain=[0.0004, 1], nice=False)
    y = alt.Y("share:Q", title=DATA.get(key["data"], key["data"]) if first else None, scale=scale)
    y = y.axis(values=[0.001, 0.01, 0.1, 1], format="~%", labels=first)
    chart = alt.Chart(alt.InlineData(values=points)).mark_line(strokeWidth=1.8).encode(x, y, colour, dash)
    budget = f"ε = {key['epsilon']:g}" if key["epsilon"] else "no noise"
    heading = alt.Title(f"{budget}, k = {key['size']}" if named else "", fontSize=12, color=INK)
    return chart.properties(width=205, height=190, title=heading)


def _binned(shares: Sequence[float], line: str) -> Iterable[dict[str, Any]]:
    """Means over a few rounds each, at their middle; what a logarithmic scale cannot show is left out."""
    for start in range(0, len(shares), BIN):
        part = shares[start : start + BIN]
        if mean(part) > 0:
            yield {"round": start + len(part) / 2, "share": mean(part), "line": line}
