"""The table and the picture of `codecs-at-equal-bytes`."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import altair as alt

from sketchfed.experiments.arms import Row, accuracy
from sketchfed.experiments.tables import write_table
from sketchfed.report.charts import INK, MUTED, PALETTE, save
from sketchfed.report.units import shown_bytes

Group = tuple[str, int, str]
HEADINGS = ("spread", "budget", "method", "numbers", "bits", "accuracy", "loss", "a reply", "down", "rate", "rounds", "seeds")
LAST = 3  # scores that a final accuracy is the mean of


def write(rows: Sequence[Row], folder: Path, *, participants: int) -> None:
    """table.md, figure.svg and curves.svg, and the table on the terminal."""
    groups = _grouped(rows)
    ordered = sorted(groups, key=lambda group: (group[0] != "iid", group[1], -_accuracy(groups[group])))
    lines = [_line(group, groups[group], participants) for group in ordered]
    write_table(folder / "table.md", HEADINGS, lines, printed=(0, 1, 2, 5, 7))
    save(figure(groups), folder / "figure.svg")
    save(curves(groups, participants), folder / "curves.svg")


def _grouped(rows: Sequence[Row]) -> dict[Group, list[Row]]:
    groups: dict[Group, list[Row]] = {}
    for row in rows:
        key = row["key"]
        groups.setdefault((key["spread"], key["inverse"], key["method"]), []).append(row)
    return groups


def _accuracy(found: Sequence[Row]) -> float:
    return mean(accuracy(row, last=LAST) for row in found)


def _line(group: Group, found: Sequence[Row], participants: int) -> list[str]:
    key, last = found[0]["key"], [row["curve"][-1] for row in found if row["curve"]]
    scores = [accuracy(row, last=LAST) for row in found]
    replies = participants * key["rounds"]
    return [
        key["spread"],
        _budget(group[1]),
        group[2],
        f"{key['size']:,}" if key["size"] is not None else "all",
        str(key["bits"] or ("1" if group[2].startswith("sign") else "32")),
        f"{mean(scores):.4f}" + (f" ± {stdev(scores):.4f}" if len(scores) > 1 else ""),
        f"{mean(point[1] for point in last):.3f}" if last else "diverged",
        f"{mean(point[3] for point in last) / replies:,.0f} B" if last else "—",
        shown_bytes(mean(point[4] for point in last) / replies) if last else "—",
        f"{key['rate']:g}",
        str(key["rounds"]),
        str(len(found)),
    ]


def _budget(inverse: int) -> str:
    return f"1/{inverse}" if inverse > 1 else "1"


def figure(groups: dict[Group, list[Row]]) -> Any:
    """The final accuracy of every method, a panel for each budget; methods in the order of their means."""
    budgets = sorted({group[1] for group in groups if group[1] > 1})
    spreads = list(dict.fromkeys(group[0] for group in groups))
    methods = list(dict.fromkeys(group[2] for group in groups if group[1] > 1))
    order = sorted(methods, key=lambda m: -mean(_accuracy(found) for group, found in groups.items() if group[2] == m))
    low = min(0.6, min(_dense(groups, spread) for spread in spreads) - 0.1)
    panels = []
    for inverse in budgets:
        points = [
            {"method": group[2], "spread": group[0], "accuracy": accuracy(row, last=LAST), "seed": row["key"]["seed"]}
            for group, found in groups.items()
            for row in found
            if group[1] == inverse
        ]
        shown = [point | {"accuracy": max(low, point["accuracy"]), "out": point["accuracy"] < low} for point in points]
        base = alt.Chart(alt.InlineData(values=shown))
        x = alt.X("accuracy:Q", title="test accuracy", scale=alt.Scale(domain=[low, 0.86], nice=False)).axis(
            format=".2f", tickCount=6
        )
        y = alt.Y("method:N", sort=order, title=None).axis(
            labels=inverse == budgets[0], ticks=False, domain=False, grid=True, labelLimit=240
        )
        color = alt.Color("spread:N", title=None, scale=alt.Scale(domain=spreads, range=[PALETTE[0], PALETTE[1]]))
        dots = base.mark_point(filled=True, size=45, opacity=0.85).encode(
            x,
            y,
            color,
            alt.Shape("out:N", legend=None, scale=alt.Scale(domain=[False, True], range=["circle", "triangle-left"])),
        )
        dense = [{"spread": spread, "accuracy": _dense(groups, spread)} for spread in spreads]
        rules = alt.Chart(alt.InlineData(values=dense)).mark_rule(strokeDash=[4, 3], strokeWidth=1.2).encode(x, color)
        title = alt.Title(f"{_budget(inverse)} of dense", fontSize=12, color=INK)
        panels.append(alt.layer(rules, dots).properties(width=250, height=18 * len(order), title=title))
    return alt.hconcat(*panels).properties(
        title=alt.Title(
            "Accuracy at equal bytes up",
            subtitle="Fashion-MNIST; a dot a seed, dashed lines FedAvg with dense float32; triangles lie further left",
        )
    )


def _dense(groups: dict[Group, list[Row]], spread: str) -> float:
    return _accuracy(groups[spread, 1, "dense"])


KINDS = {
    "sketches": ("sketched", "iterative", "rand_proj_spatial"),
    "random coordinates": ("rand_k", "rand_k_spatial", "wangni", "induced"),
    "largest coordinates": ("top_k", "fetchsgd"),
    "few bits each": ("qsgd", "sign", "eden", "correlated"),
    "dense": ("dense",),
}


def curves(groups: dict[Group, list[Row]], participants: int) -> Any:
    """Accuracy against the bytes that a participant has sent up to a round, a panel for each spread; means over seeds."""
    kinds = {name: kind for kind, names in KINDS.items() for name in names}
    points = [
        {"spread": spread, "line": f"{method} {inverse}", "kind": kinds[method.partition(",")[0]], "round": at[0][0]}
        | {"bytes": mean(p[3] for p in at) / participants, "accuracy": mean(p[2] for p in at)}
        for (spread, inverse, method), found in groups.items()
        for at in zip(*(row["curve"] for row in found), strict=False)
    ]
    panels = []
    for spread in dict.fromkeys(point["spread"] for point in points):
        own = [point for point in points if point["spread"] == spread]
        best = max(point["accuracy"] for point in own)
        chart = (
            alt.Chart(alt.InlineData(values=own))
            .mark_line(clip=True, strokeWidth=1.3, opacity=0.8)
            .encode(
                alt.X("bytes:Q", title="bytes up a participant, all rounds so far", scale=alt.Scale(type="log")).axis(
                    format="~s", tickCount=5, grid=False
                ),
                alt.Y("accuracy:Q", title="test accuracy", scale=alt.Scale(domain=[best - 0.35, best + 0.01], nice=False)),
                alt.Color("kind:N", title=None, scale=alt.Scale(domain=list(KINDS), range=[*PALETTE[:4], MUTED])),
                detail="line:N",
            )
        )
        panels.append(chart.properties(width=400, height=280, title=alt.Title(spread, fontSize=12, color=INK)))
    return alt.hconcat(*panels).properties(
        title=alt.Title("Accuracy against bytes up", subtitle="a line a method and budget, means over seeds")
    )
