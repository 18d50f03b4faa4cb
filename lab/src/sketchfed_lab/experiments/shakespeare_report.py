"""The table and the picture of `shakespeare`."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import altair as alt

from sketchfed.report import INK, MUTED, PALETTE, save_chart, shown_bytes
from sketchfed.runs import Row
from sketchfed_lab.experiments.intervals import reach
from sketchfed_lab.experiments.tables import write_table

CONFIDENCE = 0.95
COLORS = {"dense": INK, "1/10": PALETTE[0], "1/10, 4 bits": PALETTE[1], "1/100": PALETTE[3]}


def write(
    rows: Sequence[Row],
    folder: Path,
    *,
    clients: int,
    budgets: Sequence[int],
    counts: Mapping[str, float],
) -> None:
    """table.md and figure.svg, and the table on the terminal."""
    groups = _grouped(rows)
    rounds = rows[0]["key"]["rounds"]
    headings = [
        *("arm", "local rate", "global rate", f"sent in {rounds} rounds", "fewer", "received with the model"),
        f"perplexity after {rounds} rounds",
        *(f"after {shown_bytes(budget)} sent" for budget in budgets),
    ]
    dense = _sent(groups["dense"][0], clients) if "dense" in groups else math.nan
    lines = []
    for name, found in groups.items():
        sent, key = _sent(found[0], clients), found[0]["key"]
        lines.append(
            [
                *(name, f"{key['local_rate']:g}", f"{key['global_rate']:g}", shown_bytes(sent)),
                f"{dense / sent:,.0f}×" if name != "dense" else "",
                shown_bytes(mean(row["curve"][-1][4] for row in found) / clients),
                shown([_perplexity(row["curve"][-1]) for row in found]),
                *(_after(found, budget, clients) for budget in budgets),
            ]
        )
    blank = [""] * (len(headings) - 7)
    lines += [[f"counts: {name}", *[""] * 5, f"{value:.2f}", *blank] for name, value in counts.items()]
    write_table(folder / "table.md", headings, lines, printed=(0, 3, 4, 6, *range(7, len(headings))))
    save_chart(figure(groups, clients, counts), folder / "figure.svg")


def _grouped(rows: Sequence[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["key"]["arm"], []).append(row)
    return groups


def _perplexity(point: Sequence[Any]) -> float:
    return math.exp(min(point[1], 700.0))


def _sent(row: Row, clients: int) -> float:
    """Bytes that a client sends, the mean over all clients."""
    return float(row["curve"][-1][3] / clients)


def _after(found: Sequence[Row], budget: int, clients: int) -> str:
    """The perplexity of the last score at which clients have sent at most this many bytes, on average."""
    within = [[point for point in row["curve"] if point[3] / clients <= budget] for row in found]
    if not all(within):
        return "no score yet"
    ended = all(len(points) == len(row["curve"]) for points, row in zip(within, found, strict=True))
    return shown([_perplexity(points[-1]) for points in within]) + (" (the end)" if ended else "")


def shown(values: Sequence[float]) -> str:
    """A mean, and the reach of its interval by Student's t if there are several values."""
    return f"{mean(values):.2f}" + (f" ± {reach(values, CONFIDENCE):.2f}" if len(values) > 1 else "")


def figure(groups: Mapping[str, Sequence[Row]], clients: int, counts: Mapping[str, float]) -> Any:
    """Perplexity against bytes sent and against rounds, a line a seed."""
    points = [
        {"sent": point[3] / clients, "round": point[0], "perplexity": _perplexity(point)}
        | {"arm": name, "seed": row["key"]["seed"]}
        for name, found in groups.items()
        for row in found
        for point in row["curve"]
    ]
    color = alt.Color(
        "arm:N", title=None, scale=alt.Scale(domain=list(groups), range=[COLORS.get(name, MUTED) for name in groups])
    )
    low = math.floor(min(point["perplexity"] for point in points))
    y = alt.Y("perplexity:Q", title="test perplexity", scale=alt.Scale(domain=[low, 20], nice=False, zero=False))
    axes = (
        alt.X("sent:Q", title="bytes sent by a client, mean over all", scale=alt.Scale(type="log", nice=False)).axis(
            format="~s", grid=False, tickCount=4
        ),
        alt.X("round:Q", title="round").axis(grid=False),
    )
    rules = [{"perplexity": value, "counts": name} for name, value in counts.items() if low < value < 20]
    panels = []
    for x in axes:
        lines = (
            alt.Chart(alt.InlineData(values=points)).mark_line(clip=True, strokeWidth=1.6).encode(x, y, color, detail="seed:N")
        )
        rule = alt.Chart(alt.InlineData(values=rules)).mark_rule(strokeDash=[4, 4], color=MUTED).encode(y="perplexity:Q")
        panels.append((lines + rule).properties(width=360, height=240))
    return alt.hconcat(*panels).properties(
        title=alt.Title("Perplexity on Shakespeare", subtitle="a line a seed; dashed: counts of a character after another")
    )
