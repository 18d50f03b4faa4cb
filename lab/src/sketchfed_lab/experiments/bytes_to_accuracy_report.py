"""The table and the picture of `bytes-to-accuracy`."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import altair as alt

from sketchfed.report import INK, MUTED, PALETTE, save_chart, shown_bytes
from sketchfed.runs import Row
from sketchfed_lab.experiments.arms import arrival
from sketchfed_lab.experiments.tables import write_table

PARTICIPANTS, CLIENTS = 10, 100
HEADINGS = (
    *("task", "target", "method", "setting", "rounds, by seed", "sent by a participant", "fewer"),
    *("broadcast to a participant", "fewer", "received, with catch-up", "fewer"),
)
NAMES = {
    "fedavg": "FedAvg",
    "sketch": "sketch",
    "fedavg-1": "FedAvg, one local epoch",
    "sketch-1": "sketch, one local epoch",
    "prototype": "sketch, the prototype's setting",
}
BASELINES = {"fedavg": "fedavg", "sketch": "fedavg", "fedavg-1": "fedavg-1", "sketch-1": "fedavg-1", "prototype": "fedavg-1"}
"""FedAvg with the same local work: what "fewer" compares with."""


def write(rows: Sequence[Row], folder: Path) -> None:
    """table.md and figure.svg, and the table on the terminal."""
    lines = [line for task in dict.fromkeys(row["key"]["task"] for row in rows) for line in _lines(rows, task)]
    write_table(folder / "table.md", HEADINGS, lines, printed=(0, 2, 4, 5, 6, 9, 10))
    save_chart(figure(rows), folder / "figure.svg")


def _lines(rows: Sequence[Row], task: str) -> list[list[str]]:
    """A line for each method of a task: bytes until the target, means over seeds, and how many times fewer than FedAvg."""
    found = {m: [r for r in rows if (r["key"]["task"], r["key"]["method"]) == (task, m)] for m in NAMES}
    costs = {method: _cost(own) for method, own in found.items() if own}
    lines = []
    for method, cost in costs.items():
        key, ratios = found[method][0]["key"], ["—"] * 3
        dense = costs.get(BASELINES[method], costs["fedavg"])
        if cost is not None and dense is not None:
            ratios = [f"{before / now:,.0f}×" for before, now in zip(dense, cost, strict=True)]
        shown = [shown_bytes(part) for part in cost] if cost is not None else ["not reached"] * 3
        paired = [cell for pair in zip(shown, ratios, strict=True) for cell in pair]
        lines.append([task, f"{key['target']:.0%}", NAMES[method], _setting(key), _rounds(found[method]), *paired])
    return lines


def _cost(rows: Sequence[Row]) -> tuple[float, float, float] | None:
    """Bytes until the target: sent by a client in all rounds, broadcast, and received for a participation with catch-up."""
    points = [arrival(row, row["key"]["target"]) for row in rows]
    if any(point is None for point in points):
        return None
    reached = [point for point in points if point is not None]
    sent = mean(point[3] / PARTICIPANTS for point in reached)
    received = mean(point[4] / PARTICIPANTS for point in reached)
    return sent, mean(point[5] for point in reached), received


def _rounds(rows: Sequence[Row]) -> str:
    points = [(arrival(row, row["key"]["target"]), row["curve"][-1]) for row in rows]
    return ", ".join(str(there[0]) if there else f"> {last[0]} ({last[2]:.3f})" for there, last in points)


def _setting(key: dict[str, Any]) -> str:
    local = f"local rate {key['local_rate']:g}, {key['local_epochs']} epoch{'s' * (key['local_epochs'] > 1)}"
    if "ratio" not in key:
        return local
    return f"size/dim 1/{1 / key['ratio']:.4g}, {key['bits']} bits, global rate {key['global_rate']:g}, {local}"


def figure(rows: Sequence[Row]) -> Any:
    """Accuracy against bytes sent and received, a line a seed, a panel a task and direction."""
    looks = dict(zip(NAMES, (INK, PALETTE[0], MUTED, PALETTE[1], PALETTE[3]), strict=True))
    present = [method for method in NAMES if any(row["key"]["method"] == method for row in rows)]
    colors = alt.Scale(domain=[NAMES[method] for method in present], range=[looks[method] for method in present])
    panels = []
    for task in dict.fromkeys(row["key"]["task"] for row in rows):
        own = [row for row in rows if row["key"]["task"] == task]
        target, best = own[0]["key"]["target"], max(point[2] for row in own for point in row["curve"])
        beside = []
        for direction, column in (("sent", 3), ("received, with catch-up", 4)):
            points = [
                {"bytes": point[column] / CLIENTS, "accuracy": point[2], "method": NAMES[row["key"]["method"]]}
                | {"seed": row["key"]["seed"]}
                for row in own
                for point in row["curve"]
                if point[column]
            ]
            lines = (
                alt.Chart(alt.InlineData(values=points))
                .mark_line(clip=True, strokeWidth=1.6)
                .encode(
                    alt.X("bytes:Q", scale=alt.Scale(type="log"), title=f"bytes {direction}, mean over all clients").axis(
                        format="~s"
                    ),
                    alt.Y("accuracy:Q", scale=alt.Scale(domain=[best - 0.2, best + 0.005], nice=False), title="test accuracy"),
                    alt.Color("method:N", scale=colors, title=None),
                    detail="seed:N",
                )
            )
            rule = (
                alt.Chart(alt.InlineData(values=[{"target": target}]))
                .mark_rule(strokeDash=[4, 4], color=INK)
                .encode(y="target:Q")
            )
            beside.append((lines + rule).properties(width=360, height=220, title=alt.Title(task, fontSize=12, color=INK)))
        panels.append(alt.hconcat(*beside))
    title = alt.Title("Bytes to an accuracy", subtitle="a line a seed; dashed: the target")
    return alt.vconcat(*panels).properties(title=title)
