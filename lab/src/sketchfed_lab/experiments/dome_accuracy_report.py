"""The tables and the picture of accuracy at equal ε and equal bytes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import altair as alt
from rich.console import Console

from sketchfed.report import INK, MUTED, PALETTE, save_chart, shown_bytes, shown_epsilon
from sketchfed.runs import Row
from sketchfed_lab.experiments.arms import accuracy
from sketchfed_lab.experiments.private_accuracy_report import DATA, INSECURE, Contrast
from sketchfed_lab.experiments.tables import write_table

LAST = 3  # scores that an accuracy is the mean of, as in tuning
WHOLE = ("DP-FedAvg", "DP-Adam", "DP-Adam, not de-biased", "DP-Adam, smooth", "DP-Adam, centred")
RANDOM, BEST = "random sketch", "fresh, centred"
LOOKS = {
    "DP-FedAvg": MUTED,
    "DP-Adam": INK,
    "DP-Adam, not de-biased": "#a5adb8",
    "DP-Adam, smooth": "#f4a259",
    RANDOM: PALETTE[0],
    "private_iterative": PALETTE[7],
    "fresh": PALETTE[6],
    "fresh, mean removed": "#9ad1d4",
    "history_pca": PALETTE[3],
    "as printed": "#6d6875",
    "incremental_svd": PALETTE[4],
    "incremental_svd, smooth": PALETTE[2],
    "fresh, smooth": "#f7c59f",
    "DP-Adam, centred": "#8c4a00",
    "incremental_svd, centred": "#b5838d",
    "fresh, centred": PALETTE[1],
}
FAR_BELOW = ("private_iterative", "fresh, mean removed", "as printed")
"""Too far from the others to be drawn beside them."""
HEADINGS = (
    *("data", "ε", "numbers", "method", "accuracy", "points against random", "points against DP-Adam"),
    *("sent a round", "received a round", "captured", "ε spent", "clip", "rate", "seeds"),
)

Place = tuple[str, float, str, int]
"""Data set, ε, method, and size."""
Runs = Mapping[Place, Mapping[int, Row]]
"""The runs of each place, by seed."""


def write(rows: Sequence[Row], folder: Path) -> None:
    """table.md, findings.md, fewer-numbers.md and figure.svg, and the tables on the terminal."""
    runs = by_place(rows)
    write_table(folder / "table.md", HEADINGS, [_line(place, runs) for place in runs], printed=(0, 1, 2, 3, 4, 5))
    _write_findings(runs, folder / "findings.md")
    _write_fewer(runs, folder / "fewer-numbers.md")
    Console().print(INSECURE)
    save_chart(figure(runs), folder / "figure.svg")


def by_place(rows: Sequence[Row]) -> dict[Place, dict[int, Row]]:
    places: dict[Place, dict[int, Row]] = {}
    for row in rows:
        key = row["key"]
        places.setdefault((key["data"], key["epsilon"], key["method"], key["size"]), {})[key["seed"]] = row
    order = list(LOOKS)
    return dict(
        sorted(places.items(), key=lambda item: (item[0][0] != "mnist", item[0][1], item[0][3], order.index(item[0][2])))
    )


Case = tuple[str, int]
"""A method, and its size; whole updates have size 0."""


def contrast(runs: Runs, place: Place, against: str) -> Contrast | None:
    """What a place has more than another method at the same ε and, where that has one, size; paired by seed."""
    data, epsilon, method, size = place
    return _difference(runs, (data, epsilon), (method, size), (against, 0 if against in WHOLE else size))


def _difference(runs: Runs, where: tuple[str, float], ours: Case, other: Case) -> Contrast | None:
    own, others = (runs.get((*where, *arm), {}) for arm in (ours, other))
    seeds = [seed for seed in sorted(own) if seed in others]
    if not seeds or ours == other:
        return None
    return Contrast(differences=tuple(100 * (_score(own[seed]) - _score(others[seed])) for seed in seeds))


def _score(row: Row) -> float:
    return accuracy(row, last=LAST)


def _line(place: Place, runs: Runs) -> list[str]:
    data, epsilon, method, size = place
    own = list(runs[place].values())
    scores, spent = [_score(row) for row in own], [row["epsilon"] for row in own if "epsilon" in row]
    shares = [share for row in own for share in row.get("captured", [])]
    key = own[0]["key"]
    return [
        data,
        f"{epsilon:g}",
        f"{size:,}" if size else "all",
        method,
        f"{mean(scores):.4f}" + (f" ± {stdev(scores):.4f}" if len(scores) > 1 else ""),
        str(contrast(runs, place, RANDOM) or "—") if size else "—",
        str(contrast(runs, place, "DP-Adam") or "—"),
        shown_bytes(mean(_up(row) for row in own)),
        shown_bytes(mean(_down(row) for row in own)),
        f"{100 * mean(shares):.2g} %" if shares and size else "—",
        shown_epsilon(max(spent)) if spent else "—",
        f"{key['clip']:g}",
        f"{key['rate']:g}",
        str(len(own)),
    ]


def _up(row: Row) -> float:
    """Bytes that a client sends in a round."""
    last = row["curve"][-1]
    return float(last[3] / last[0] / row["key"]["clients"])


def _down(row: Row) -> float:
    """Bytes that a client which never misses a round receives in one."""
    last = row["curve"][-1]
    return float(last[5] / last[0])


def _write_findings(runs: Runs, path: Path) -> None:
    """Every method of some size against the random sketch of that size."""
    sizes = sorted({place[3] for place in runs if place[3]})
    pairs = [((method, size), (RANDOM, size)) for size in sizes for method in LOOKS if method != RANDOM]
    _write_pairs(runs, pairs, path, against=False)


def _write_fewer(runs: Runs, path: Path) -> None:
    """What worked best against methods that send more."""
    sizes = sorted({place[3] for place in runs if place[3]})
    pairs = [((BEST, size), (RANDOM, larger)) for size in sizes for larger in sizes if larger > size]
    pairs += [((BEST, size), (method, 0)) for size in sizes for method in WHOLE]
    _write_pairs(runs, pairs, path, against=True)


def _write_pairs(runs: Runs, pairs: Sequence[tuple[Case, Case]], path: Path, *, against: bool) -> None:
    """A line a pair that was measured: a column a data set and ε, and the mean of all."""
    everywhere = list(dict.fromkeys(place[:2] for place in runs))
    lines = []
    for ours, other in pairs:
        found = [_difference(runs, where, ours, other) for where in everywhere]
        if not any(found):
            continue
        named = [f"{ours[1]:,}", ours[0], *([other[0], f"{other[1]:,}" if other[1] else "all"] if against else [])]
        lines.append([*named, *(str(each) if each else "—" for each in found), str(_over_all(found) or "—")])
    names = [f"{DATA.get(data, data)}, ε = {epsilon:g}" for data, epsilon in everywhere]
    headings = ["numbers", "method", *(["against", "its numbers"] if against else [])]
    shown = (*range(len(headings)), len(headings) + len(names))
    write_table(path, [*headings, *names, "mean of all"], lines, printed=shown)


def _over_all(found: Sequence[Contrast | None]) -> Contrast | None:
    """Differences of one seed averaged first, so that the seeds are what is counted; None while some lack places."""
    there = [each.differences for each in found if each is not None]
    if len(there) < len(found) or len({len(each) for each in there}) != 1:
        return None
    return Contrast(differences=tuple(mean(each) for each in zip(*there, strict=True)))


def figure(all_runs: Runs) -> Any:
    """Accuracy against the bytes that a client sends in a round, both for whole updates and for few numbers."""
    runs = {place: own for place, own in all_runs.items() if place[2] not in FAR_BELOW}
    lines = []
    for data in dict.fromkeys(place[0] for place in runs):
        panels: list[Any] = []
        for epsilon in sorted({place[1] for place in runs}):
            points = [
                {
                    "method": place[2],
                    "bytes": mean(map(_up, own.values())),
                    "accuracy": mean(scores),
                    "low": mean(scores) - spread,
                }
                | {"high": mean(scores) + spread, "whole": place[3] == 0}
                for place, own in runs.items()
                if place[:2] == (data, epsilon)
                for scores in [[_score(row) for row in own.values()]]
                for spread in [stdev(scores) if len(scores) > 1 else 0.0]
            ]
            panels.append(_panel(points, runs, title=f"{DATA.get(data, data)}, ε = {epsilon:g}", first=not panels))
        lines.append(alt.hconcat(*panels, spacing=18).resolve_scale(y="shared"))
    subtitle = f"means over seeds with one standard deviation; dots on the right send all; far below: {'; '.join(FAR_BELOW)}"
    return alt.vconcat(*lines).properties(
        title=alt.Title("Accuracy at equal ε against bytes a client sends a round", subtitle=subtitle)
    )


def _panel(points: Sequence[Mapping[str, Any]], runs: Runs, *, title: str, first: bool) -> Any:
    present = [method for method in LOOKS if any(place[2] == method for place in runs)]
    colours = alt.Scale(domain=present, range=[LOOKS[method] for method in present])
    x = alt.X("bytes:Q", title="bytes", scale=alt.Scale(type="log", nice=False, padding=12)).axis(
        format="~s", values=[300, 1_000, 3_000, 1e4, 3e4, 1e5], grid=False
    )
    y = alt.Y("accuracy:Q", title="test accuracy" if first else None, scale=alt.Scale(zero=False, nice=True)).axis(
        format=".2f", tickCount=6
    )
    base = alt.Chart(alt.InlineData(values=list(points))).encode(
        x, alt.Color("method:N", title=None, scale=colours, legend=alt.Legend(symbolType="circle", labelLimit=220))
    )
    spreads = base.mark_rule(strokeWidth=1.3).encode(alt.Y("low:Q"), alt.Y2("high:Q"))
    joined = base.transform_filter("!datum.whole").mark_line(strokeWidth=1.8).encode(y)
    dots = base.mark_point(filled=True, size=38, opacity=1).encode(y)
    return alt.layer(joined, spreads, dots).properties(width=235, height=230, title=alt.Title(title, fontSize=12, color=INK))
