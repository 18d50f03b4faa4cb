"""The table and the picture of `sketch-families`."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import altair as alt

from sketchfed.report import INK, PALETTE, save_chart, shown_bytes
from sketchfed.runs import Row
from sketchfed_lab.experiments.arms import accuracy
from sketchfed_lab.experiments.tables import write_table

Group = tuple[str, str, str, str, int]
HEADINGS = (
    *("data", "spread", "method", "accuracy", "loss", "up", "down", "rounds", "rate", "momentum", "seeds"),
    "rounds to FedAvg's accuracy − 1 %",
)
CLIENTS = 100


def write(rows: Sequence[Row], folder: Path) -> None:
    """table.md and figure.svg, and the table on the terminal."""
    lines = [_line(group, found, rows) for group, found in _grouped(rows).items()]
    write_table(folder / "table.md", HEADINGS, lines, printed=(0, 1, 2, 3, 5, 6))
    save_chart(figure(rows), folder / "figure.svg")


def _grouped(rows: Sequence[Row]) -> dict[Group, list[Row]]:
    groups: dict[Group, list[Row]] = {}
    for row in rows:
        key = row["key"]
        group = (key["data"], key["spread"], key["algorithm"], key["sketch"], key["inverse_ratio"])
        groups.setdefault(group, []).append(row)
    return groups


def method_name(key: dict[str, Any]) -> str:
    if key["algorithm"] == "fedavg":
        return "fedavg, dense"
    return f"{key['sketch'] if key['algorithm'] == 'iterative' else 'fetchsgd'} 1/{key['inverse_ratio']}"


def _line(group: Group, found: Sequence[Row], rows: Sequence[Row]) -> list[str]:
    key, last = found[0]["key"], [row["curve"][-1] for row in found if row["curve"]]
    scores = [accuracy(row, last=3) for row in found]
    spread = f" ± {stdev(scores):.4f}" if len(scores) > 1 else ""
    return [
        key["data"],
        key["spread"],
        method_name(key),
        f"{mean(scores):.4f}{spread}",
        f"{mean(point[1] for point in last):.3f}" if last else "diverged",
        shown_bytes(mean(point[3] for point in last) / CLIENTS) if last else "—",
        shown_bytes(mean(point[4] for point in last) / CLIENTS) if last else "—",
        str(key["rounds"]),
        f"{key['rate']:g}",
        f"{key['momentum']:g}",
        str(len(found)),
        _rounds_to(found, rows),
    ]


def _rounds_to(found: Sequence[Row], rows: Sequence[Row]) -> str:
    """Mean first round within a hundredth of FedAvg's final accuracy of the same place, if all seeds got there."""
    key = found[0]["key"]
    dense = [r for r in rows if r["key"]["algorithm"] == "fedavg" and all(r["key"][k] == key[k] for k in ("data", "spread"))]
    goal = mean(accuracy(row, last=3) for row in dense) - 0.01
    firsts = [next((point[0] for point in row["curve"] if point[2] >= goal), None) for row in found]
    return f"{mean(first for first in firsts if first is not None):.0f}" if None not in firsts else "—"


def figure(rows: Sequence[Row]) -> Any:
    """Accuracy against the bytes a client sent and received, a panel for each place; means over seeds."""
    points = [
        {"place": f"{group[0]}, {group[1]}", "method": method_name(found[0]["key"]), "round": at[0][0]}
        | {"bytes": mean(p[3] + p[4] for p in at) / CLIENTS, "accuracy": mean(p[2] for p in at)}
        | {"family": "fedavg" if group[2] == "fedavg" else group[3] if group[2] == "iterative" else "fetchsgd"}
        for group, found in _grouped(rows).items()
        for at in zip(*(row["curve"] for row in found), strict=False)
    ]
    families = ["fedavg", "fetchsgd", "srht", "balanced", "count"]
    families += sorted({point["family"] for point in points} - set(families))
    panels = []
    for place in dict.fromkeys(point["place"] for point in points):
        own = [point for point in points if point["place"] == place]
        best = max(point["accuracy"] for point in own)
        chart = (
            alt.Chart(alt.InlineData(values=own))
            .mark_line(clip=True, strokeWidth=1.8)
            .encode(
                alt.X(
                    "bytes:Q", title="bytes a client sent and received (mean over all clients)", scale=alt.Scale(type="log")
                ).axis(format="~s", tickCount=5, grid=False),
                alt.Y("accuracy:Q", title="test accuracy", scale=alt.Scale(domain=[best - 0.25, best + 0.01], nice=False)),
                alt.Color("family:N", title=None, scale=alt.Scale(domain=families, range=[INK, *PALETTE[:8]])),
                detail="method:N",
            )
        )
        panels.append(chart.properties(width=380, height=260, title=alt.Title(place, fontSize=12, color=INK)))
    rows_of_panels = [alt.hconcat(*panels[i : i + 2]) for i in range(0, len(panels), 2)]
    return alt.vconcat(*rows_of_panels).properties(
        title=alt.Title(
            "Accuracy against measured bytes",
            subtitle="a line a method and size, means over seeds; smaller sketches lie to the left",
        )
    )
