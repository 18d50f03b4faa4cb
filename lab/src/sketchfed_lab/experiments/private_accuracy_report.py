"""The tables and the pictures of accuracy at equal ε."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import altair as alt
from rich.console import Console

from sketchfed.report import INK, MUTED, PALETTE, save_chart, shown_bytes, shown_epsilon
from sketchfed.runs import Row
from sketchfed_lab.experiments.arms import accuracy
from sketchfed_lab.experiments.intervals import reach
from sketchfed_lab.experiments.tables import write_table

LAST = 3  # scores that an accuracy is the mean of, as in tuning
CONFIDENCE = 0.95
DATA = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}
COLOURS = {
    "dense": INK,
    "sketch": PALETTE[0],
    "sketch, secure sums": PALETTE[2],
    "dense, noise in steps": MUTED,
    "private_iterative": PALETTE[1],
}
IN_STEPS = ("dense, noise in steps", "private_iterative")
"""Where every client adds all the noise: too far from the others to be drawn beside them in points."""
PAIRS = (
    ("sketch", "dense"),
    ("sketch, secure sums", "dense"),
    ("sketch, secure sums", "sketch"),
    ("dense, noise in steps", "dense"),
    ("private_iterative", "dense, noise in steps"),
    ("private_iterative", "sketch"),
)
"""What is asked: how many points the first has more than the second, at equal ε and, where both are sketches, equal size."""
HEADINGS = (
    *(
        "data",
        "ε",
        "method",
        "accuracy",
        "points against dense",
        "sent a round",
        "received a round",
        "ε spent",
        "rate",
        "seeds",
    ),
)
INSECURE = "Noise came from fixed seeds, so that it can be drawn again: these runs measure accuracy, and protect nobody."

SOLID = alt.value([1, 0])

Place = tuple[str, float, str, float]
"""Data set, ε, method, and size/dim."""
Runs = Mapping[Place, Mapping[int, Row]]
"""The runs of each place, by seed."""


def write(rows: Sequence[Row], folder: Path) -> None:
    """table.md, findings.md, figure.svg and bytes.svg, and both tables on the terminal."""
    runs, clients = _by_place(rows), participants(rows)
    lines = [_line(place, runs, clients) for place in runs]
    write_table(folder / "table.md", HEADINGS, lines, printed=(0, 1, 2, 3, 4))
    _write_findings(rows, folder / "findings.md")
    Console().print(INSECURE)
    save_chart(figure(rows), folder / "figure.svg")
    save_chart(bytes_figure(rows), folder / "bytes.svg")


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Points of accuracy that one arm has more than another: the mean over the seeds that both have, and a t-interval of it.

    Runs of one seed have the initial weights and the partition in common, so differences are taken seed by seed.
    """

    differences: tuple[float, ...]

    @property
    def points(self) -> float:
        return mean(self.differences)

    @property
    def reach(self) -> float:
        """Half the interval; endless with one seed, which says nothing of the others."""
        return reach(self.differences, CONFIDENCE)

    @property
    def verdict(self) -> str:
        """Whether a point is lost, as far as the interval can tell."""
        if self.points - self.reach > -1:
            return "less"
        return "more" if self.points + self.reach < -1 else "open"

    def __str__(self) -> str:
        return f"{self.points:+.2f}" + (f" ± {self.reach:.2f}" if self.reach < math.inf else "")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one arm has more than another: at each data set and ε, and on the mean of these."""

    method: str
    against: str
    places: Mapping[tuple[str, float], Contrast]

    @property
    def mean(self) -> Contrast | None:
        """Differences of one seed averaged first, so that the seeds are what is counted; None while some seeds lack places."""
        seeds = {len(contrast.differences) for contrast in self.places.values()}
        if len(seeds) != 1:
            return None
        by_seed = zip(*(contrast.differences for contrast in self.places.values()), strict=True)
        return Contrast(differences=tuple(mean(each) for each in by_seed))


def findings(rows: Sequence[Row]) -> list[Finding]:
    """What the verdict rests on: every pair of `PAIRS` at every size."""
    runs, found = _by_place(rows), []
    for method, against in PAIRS:
        for ratio in sorted({place[3] for place in runs if place[2] == method}, reverse=True):
            pairs = {place[:2]: _contrast(runs, place, against) for place in runs if place[2:] == (method, ratio)}
            places = {place: contrast for place, contrast in pairs.items() if contrast is not None}
            other = shown(against, _ratio_of(against, ratio))
            found.append(Finding(method=shown(method, ratio), against=other, places=places))
    return found


def _write_findings(rows: Sequence[Row], path: Path) -> None:
    """A column a data set and ε; against dense it also says whether the claim, that less than a point is lost, holds."""
    everywhere = list(dict.fromkeys(place[:2] for place in _by_place(rows)))
    lines = []
    for finding in findings(rows):
        contrasts = [*(finding.places.get(place) for place in everywhere), finding.mean]
        told = [f" ({each.verdict})" if each and finding.against == "dense" else "" for each in contrasts]
        shown_points = [f"{each or '—'}{verdict}" for each, verdict in zip(contrasts, told, strict=True)]
        lines.append([finding.method, finding.against, *shown_points])
    headings = [
        "method",
        "against",
        *(f"{DATA.get(data, data)}, ε = {epsilon:g}" for data, epsilon in everywhere),
        "mean of all",
    ]
    write_table(path, headings, lines, printed=(0, 1, len(headings) - 1))


def participants(rows: Sequence[Row]) -> float | None:
    """Clients of a round, as measured: of whole models each one receives what is broadcast. None if none were sent whole."""
    whole = [row["curve"] for row in rows if row["key"]["ratio"] == 1 and len(row["curve"]) > 1]
    if not whole:
        return None
    return float(mean((curve[-1][4] - curve[0][4]) / (curve[-1][5] - curve[0][5]) for curve in whole))


def shown(method: str, ratio: float) -> str:
    """An arm's name, with the size of its sketch."""
    if ratio == 1:
        return method
    name, comma, rest = method.partition(",")
    return f"{name} 1/{1 / ratio:.4g}{comma}{rest}"


def _ratio_of(method: str, ratio: float) -> float:
    """The size of a method beside a sketch of another one: the same, or whole."""
    return 1.0 if method.startswith("dense") else ratio


def _by_place(rows: Sequence[Row]) -> dict[Place, dict[int, Row]]:
    places: dict[Place, dict[int, Row]] = {}
    for row in rows:
        key = row["key"]
        places.setdefault((key["data"], key["epsilon"], key["method"], key["ratio"]), {})[key["seed"]] = row
    order = list(COLOURS)
    return dict(
        sorted(places.items(), key=lambda item: (item[0][0] != "mnist", *item[0][:2], order.index(item[0][2]), -item[0][3]))
    )


def _contrast(runs: Runs, place: Place, against: str) -> Contrast | None:
    data, epsilon, _, ratio = place
    ours, theirs = runs[place], runs.get((data, epsilon, against, _ratio_of(against, ratio)), {})
    seeds = [seed for seed in sorted(ours) if seed in theirs]
    if not seeds:
        return None
    return Contrast(differences=tuple(100 * (_score(ours[seed]) - _score(theirs[seed])) for seed in seeds))


def _score(row: Row) -> float:
    return accuracy(row, last=LAST)


def _line(place: Place, runs: Runs, clients: float | None) -> list[str]:
    data, epsilon, method, ratio = place
    own = list(runs[place].values())
    scores, spent = [_score(row) for row in own], [row["epsilon"] for row in own if "epsilon" in row]
    contrast = _contrast(runs, place, "dense") if method != "dense" else None
    ends = [(row["curve"][-1], row["curve"][-1][0] * clients) for row in own if row["curve"] and clients]
    return [
        data,
        f"{epsilon:g}",
        shown(method, ratio),
        f"{mean(scores):.4f}" + (f" ± {stdev(scores):.4f}" if len(scores) > 1 else ""),
        str(contrast) if contrast else "—",
        shown_bytes(mean(end[3] / replies for end, replies in ends)) if ends else "—",
        shown_bytes(mean(end[4] / replies for end, replies in ends)) if ends else "—",
        shown_epsilon(max(spent)) if spent else "—",
        f"{own[0]['key']['rate']:g}",
        str(len(own)),
    ]


def figure(rows: Sequence[Row]) -> Any:
    """Above, accuracy against ε of all; below, points against dense with intervals, of those whose noise is in the sum."""
    runs = _by_place(rows)
    kinds = (_accuracies, _differences)
    above, below = (
        alt.hconcat(*(draw(runs, data, first=not number) for number, data in enumerate(_data(runs))), spacing=24)
        for draw in kinds
    )
    subtitle = (
        "above: means over seeds, with one standard deviation; below: against dense, with 95 % t-intervals paired by seed"
    )
    return alt.vconcat(above.resolve_scale(y="shared"), below.resolve_scale(y="shared"), spacing=10).properties(
        title=alt.Title(f"Accuracy at equal ε, {_level(rows)}", subtitle=subtitle)
    )


def bytes_figure(rows: Sequence[Row]) -> Any:
    """Accuracy against the bytes that a client has sent, over the rounds; a panel a data set and ε."""
    runs, clients = _by_place(rows), participants(rows)
    lines = []
    for data in _data(runs):
        panels: list[Any] = []
        for epsilon in sorted({place[1] for place in runs}):
            points = [
                _look(place) | {"bytes": mean(p[3] for p in at) / (clients or 1), "accuracy": mean(p[2] for p in at)}
                for place, own in runs.items()
                if place[:2] == (data, epsilon)
                for at in zip(*(row["curve"] for row in own.values()), strict=False)
            ]
            x = alt.X("bytes:Q", title="bytes sent by a client", scale=alt.Scale(type="log", nice=False, padding=6))
            y = alt.Y("accuracy:Q", title=None if panels else "test accuracy", scale=alt.Scale(zero=False, nice=True))
            chart = _base(points, runs).mark_line(strokeWidth=1.8)
            chart = chart.encode(
                x.axis(format="~s", values=[1e4, 1e5, 1e6, 1e7, 1e8], grid=False), y.axis(format=".1f", tickCount=5)
            )
            panels.append(chart.properties(width=230, height=190, title=_heading(f"{DATA.get(data, data)}, ε = {epsilon:g}")))
        lines.append(alt.hconcat(*panels, spacing=18).resolve_scale(y="shared"))
    return alt.vconcat(*lines).properties(
        title=alt.Title(
            f"Accuracy against bytes up at equal ε, {_level(rows)}",
            subtitle="means over seeds; each line ends with the last round",
        )
    )


def _accuracies(runs: Runs, data: str, *, first: bool) -> Any:
    points = [
        _look(place) | {"x": place[1], "accuracy": mean(scores), "low": mean(scores) - spread, "high": mean(scores) + spread}
        for place, own in runs.items()
        if place[0] == data
        for scores in [[_score(row) for row in own.values()]]
        for spread in [stdev(scores) if len(scores) > 1 else 0.0]
    ]
    base = _base(points, runs).encode(_budgets(runs, title=None))
    y = alt.Y("accuracy:Q", title="test accuracy" if first else None, scale=alt.Scale(zero=False, nice=True)).axis(
        format=".2f", tickCount=6
    )
    lines = base.mark_line(strokeWidth=1.8).encode(y)
    spreads = base.mark_rule(strokeWidth=1.4).encode(alt.Y("low:Q"), alt.Y2("high:Q"), strokeDash=SOLID)
    return alt.layer(lines, spreads, *_dots(base, y)).properties(width=330, height=230, title=_heading(DATA.get(data, data)))


def _differences(runs: Runs, data: str, *, first: bool) -> Any:
    """Dots side by side at each ε, with what the claim allows: the loss of one point."""
    arms = [arm for arm in _arms(runs) if arm[0] not in IN_STEPS and arm[0] != "dense"]
    points: list[dict[str, Any]] = []
    for place in runs:
        contrast = _contrast(runs, place, "dense") if place[0] == data and place[2:] in arms else None
        if contrast is not None:
            beside = 1.07 ** (arms.index(place[2:]) - (len(arms) - 1) / 2)
            reach = contrast.reach if contrast.reach < math.inf else 0.0
            ends = {"low": contrast.points - reach, "high": contrast.points + reach}
            points.append(_look(place) | ends | {"x": place[1] * beside, "points": contrast.points})
    base = _base(points, runs).encode(_budgets(runs, title="ε"))
    y = alt.Y("points:Q", title="points against dense" if first else None, scale=alt.Scale(nice=True)).axis(
        labelExpr="datum.value == 0 ? '0' : format(datum.value, '+~g')", tickCount=6
    )
    rules = base.mark_rule(strokeWidth=1.6).encode(alt.Y("low:Q"), alt.Y2("high:Q"), strokeDash=SOLID)
    epsilons = sorted({place[1] for place in runs})
    between = math.sqrt(epsilons[0] * epsilons[min(1, len(epsilons) - 1)])  # where no interval is in the way
    lines = alt.Chart(
        alt.InlineData(values=[{"y": 0.0, "told": "", "x": between}, {"y": -1.0, "told": "one point lost", "x": between}])
    )
    marks = lines.mark_rule(color=MUTED, strokeDash=[2, 3]).encode(y="y:Q")
    text = lines.mark_text(dy=8, color=MUTED, fontSize=10).encode(x="x:Q", y="y:Q", text="told:N")
    return alt.layer(marks, text, rules, *_dots(base, y)).properties(width=330, height=190)


def _dots(base: Any, y: Any) -> list[Any]:
    """Full, or hollow for sketches below a tenth."""
    full = base.transform_filter("!datum.small").mark_point(filled=True, size=42, opacity=1)
    hollow = base.transform_filter("datum.small").mark_point(fill="white", size=38, opacity=1, strokeWidth=1.6)
    return [dots.encode(y, strokeDash=SOLID) for dots in (full, hollow)]


def _budgets(runs: Runs, *, title: str | None) -> Any:
    epsilons = sorted({place[1] for place in runs})
    scale = alt.Scale(type="log", nice=False, domain=[epsilons[0] / 1.35, epsilons[-1] * 1.35])
    return alt.X("x:Q", title=title, scale=scale).axis(values=epsilons, format="~g", grid=False)


def _base(points: Iterable[Mapping[str, Any]], runs: Runs) -> Any:
    """A chart of arms: colour for the method, dashes for the smaller sketch; one legend names them all."""
    arms = _arms(runs)
    names = [shown(*arm) for arm in arms]
    ratios = sorted({ratio for _, ratio in arms if ratio < 1}, reverse=True)
    dashes = dict(zip(ratios, ([1, 0], [5, 3], [2, 2], [1, 3]), strict=False))
    colours = alt.Scale(domain=names, range=[COLOURS[method] for method, _ in arms])
    strokes = alt.Scale(domain=names, range=[dashes.get(ratio, [1, 0]) for _, ratio in arms])
    legend = alt.Legend(symbolType="stroke", symbolStrokeWidth=2, symbolSize=300, labelLimit=220)
    return alt.Chart(alt.InlineData(values=list(points))).encode(
        alt.Color("arm:N", title=None, scale=colours, legend=legend),
        alt.StrokeDash("arm:N", title=None, scale=strokes, legend=legend),
    )


def _arms(runs: Runs) -> list[tuple[str, float]]:
    return sorted({place[2:] for place in runs}, key=lambda arm: (list(COLOURS).index(arm[0]), -arm[1]))


def _look(place: Place) -> dict[str, Any]:
    return {"arm": shown(place[2], place[3]), "small": place[3] < 0.1}


def _data(runs: Runs) -> list[str]:
    return list(dict.fromkeys(place[0] for place in runs))


def _level(rows: Sequence[Row]) -> str:
    return f"{rows[0]['key']['level']} level"


def _heading(text: str) -> Any:
    return alt.Title(text, fontSize=12, color=INK)
