"""The table and the picture of `codecs-at-equal-bytes`."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import altair as alt

from sketchfed.report import INK, PALETTE, save_chart, shown_bytes
from sketchfed.runs import Row
from sketchfed_lab.experiments.arms import accuracy
from sketchfed_lab.experiments.tables import write_table

Group = tuple[str, int, str]
HEADINGS = ("spread", "budget", "method", "numbers", "bits", "accuracy", "loss", "a reply", "down", "rate", "rounds", "seeds")
LAST = 3  # scores that a final accuracy is the mean of
SPREADS = {"iid": "IID", "dirichlet": "Dirichlet(0.3)"}
KINDS = {
    "sketches": ("sketched", "iterative", "rand_proj_spatial"),
    "random coordinates": ("rand_k", "rand_k_spatial", "wangni", "induced"),
    "largest coordinates": ("top_k", "fetchsgd"),
    "few bits each": ("qsgd", "sign", "eden", "correlated"),
    "dense": ("dense",),
}


def write(rows: Sequence[Row], folder: Path, *, participants: int) -> None:
    """table.md, figure.svg and curves.svg, and the table on the terminal."""
    groups = _grouped(rows)
    ordered = sorted(groups, key=lambda group: (group[0] != "iid", group[1], -_accuracy(groups[group])))
    lines = [_line(group, groups[group], participants) for group in ordered]
    write_table(folder / "table.md", HEADINGS, lines, printed=(0, 1, 2, 5, 7))
    save_chart(figure(groups), folder / "figure.svg")
    save_chart(curves(groups, participants), folder / "curves.svg")


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
            {"method": group[2], "spread": SPREADS[group[0]], "accuracy": accuracy(row, last=LAST), "seed": row["key"]["seed"]}
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
        color = alt.Color(
            "spread:N",
            title=None,
            scale=alt.Scale(domain=[SPREADS[spread] for spread in spreads], range=[PALETTE[0], PALETTE[1]]),
        )
        dots = base.mark_point(filled=True, size=45, opacity=0.85).encode(
            x,
            y,
            color,
            alt.Shape("out:N", legend=None, scale=alt.Scale(domain=[False, True], range=["circle", "triangle-left"])),
        )
        dense = [{"spread": SPREADS[spread], "accuracy": _dense(groups, spread)} for spread in spreads]
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


def curves(groups: dict[Group, list[Row]], participants: int) -> Any:
    """Accuracy against the bytes that a participant has sent, of the best method of each kind at each budget."""
    kinds = {name: kind for kind, names in KINDS.items() for name in names}
    best: dict[tuple[str, int, str], Group] = {}
    for group, found in groups.items():
        place = (group[0], group[1], kinds[group[2].partition(",")[0]])
        if place not in best or _accuracy(found) > _accuracy(groups[best[place]]):
            best[place] = group
    points: list[dict[str, Any]] = [
        {"spread": spread, "line": f"{group[2]} {inverse}", "kind": kind}
        | {
            "bytes": mean(point[3] for point in at) / participants,
            "accuracy": mean(_smoothed(row, number) for row in groups[group]),
        }
        for (spread, inverse, kind), group in best.items()
        for number, at in enumerate(zip(*(row["curve"] for row in groups[group]), strict=False))
    ]
    panels = []
    for spread in dict.fromkeys(point["spread"] for point in points):
        own = [point for point in points if point["spread"] == spread]
        highest = max(point["accuracy"] for point in own)
        domain = [highest - 0.25, highest + 0.01]
        chart = (
            alt.Chart(alt.InlineData(values=own))
            .mark_line(clip=True, strokeWidth=1.8)
            .encode(
                alt.X("bytes:Q", title="bytes up, a participant of every round", scale=alt.Scale(type="log", nice=False)).axis(
                    format="~s", tickCount=5, grid=False
                ),
                alt.Y("accuracy:Q", title="test accuracy", scale=alt.Scale(domain=domain, nice=False)).axis(tickCount=6),
                alt.Color("kind:N", title=None, scale=alt.Scale(domain=list(KINDS), range=[*PALETTE[:4], INK])),
                detail="line:N",
            )
        )
        panels.append(chart.properties(width=400, height=260, title=alt.Title(SPREADS[spread], fontSize=12, color=INK)))
    return alt.hconcat(*panels).properties(
        title=alt.Title(
            "Accuracy against bytes up",
            subtitle="at each budget the best codec of each kind; means over seeds and the last three scores",
        )
    )


def _smoothed(row: Row, number: int) -> float:
    return float(mean(point[2] for point in row["curve"][max(0, number + 1 - LAST) : number + 1]))
