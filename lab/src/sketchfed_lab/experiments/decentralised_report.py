"""The tables and the figures of `decentralised`."""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import altair as alt

from sketchfed.report import INK, MUTED, PALETTE, save_chart, shown_bytes
from sketchfed.runs import Row, read_rows
from sketchfed_lab.experiments.arms import accuracy
from sketchfed_lab.experiments.intervals import CONFIDENCE, Points, reach
from sketchfed_lab.experiments.tables import markdown, shown_size, write_table

LAST = 3
"""An accuracy is the mean of this many scores, because scores go up and down from round to round. Tuning does the same."""
COLUMNS = (
    *("round", "loss", "clients_accuracy", "clients_accuracy_worst", "accuracy", "consensus"),
    *("uplink_bytes", "node_bytes", "edge_bytes", "steps"),
)
"""The values at each point of a curve. The third is what is tuned: the mean over the nodes of their own accuracy."""
ACCURACY, WORST, MEAN_MODEL, CONSENSUS, TOTAL, NODE, EDGE, STEPS = range(2, 10)
"""Where a point of a curve has its values."""
DENSE, SERVER, TORCH, EXACT, ALONE = "dense", "server", "torch", "sums", "alone"
STABLE = "differences, default γ"
SERVED, NOBODY = "a server", "no links"
"""Stand in the place of a graph."""
DECADES = [1e-3, 1e-2, 0.1, 1, 10, 100, 1000]

Place = tuple[int, str, str, str, int]
"""Nodes, spread, graph, arm and dim/size."""
Runs = Mapping[Place, Mapping[int, Row]]
"""The runs of each place, by seed."""
Shapes = Mapping[tuple[int, str], tuple[int, int, int, float]]
"""Links, largest degree, diameter and spectral gap by number of nodes and graph, of the first seed if graphs are drawn."""


def point(line: Mapping[str, Any]) -> list[Any]:
    """A line of metrics as a point of a curve."""
    return [value if isinstance(value := line[name], int) else float(f"{value:.5g}") for name in COLUMNS]


def write(rows: Sequence[Row], shapes: Shapes, folder: Path) -> None:
    """Write the tables, findings.md and the figures, and print the table."""
    runs: dict[Place, dict[int, Row]] = {}
    for row in rows:
        key = row["key"]
        place = (key["nodes"], key["spread"], key["graph"], key["arm"], key["inverse_ratio"])
        runs.setdefault(place, {})[key["seed"]] = row
    write_table(folder / "table.md", HEADINGS, [_line(runs, place) for place in runs], printed=(0, 1, 2, 3, 4, 7, 8, 9, 13))
    (folder / "graphs.md").write_text(markdown(SHAPE_HEADINGS, [_shape(*each) for each in shapes.items()]))
    (folder / "findings.md").write_text(findings(runs) + peers(read_rows(folder / "peers.jsonl"), runs))
    save_chart(by_gap(runs, shapes), folder / "figure.svg")
    for nodes in dict.fromkeys(place[0] for place in runs):
        for name, at, title in (
            ("accuracy", 2, "mean test accuracy of the nodes"),
            ("consensus", CONSENSUS, "consensus error"),
        ):
            save_chart(curves(runs, nodes, at, title), folder / f"{name}-{nodes}.svg")


def own(row: Row) -> float:
    """The mean accuracy of the nodes' own models, in points."""
    return 100 * accuracy(row, last=LAST)


def _end(row: Row, at: int) -> float:
    """A value at the end, the mean of the last scores. A run that diverged has none."""
    return mean(each[at] for each in row["curve"][-LAST:]) if row["curve"] and not row["diverged"] else math.nan


def affordable(row: Row, budget: float) -> float | None:
    """The accuracy in points at the last score by which no more bytes had passed in total. None before the first score."""
    scores = [100 * each[ACCURACY] for each in row["curve"] if each[TOTAL] <= budget]
    return scores[-1] if scores else None


def _at_bytes(rows: Collection[Row], budgets: Sequence[float]) -> str:
    found = [affordable(row, budget) for row, budget in zip(rows, budgets, strict=True)]
    known = [each for each in found if each is not None]
    return f"{mean(known):.1f}" if known and len(known) == len(found) else "not scored yet"


HEADINGS = (
    *("nodes", "spread", "graph", "arm", "size", "local rate", "γ or global rate"),
    *("accuracy of the nodes", "points against dense", "dense, at as many bytes", "worst tenth", "mean of the models"),
    *("consensus error", "bytes in total", "busiest node sends", "busiest link", "steps of a round"),
)


def _line(runs: Runs, place: Place) -> list[str]:
    nodes, spread, graph, arm, inverse = place
    found = runs[place]
    key, rows = next(iter(found.values()))["key"], list(found.values())
    cells = [str(nodes), spread, graph.replace("_", " "), arm, shown_size(inverse), f"{key['local_rate']:g}"]
    step = key.get("mixing", key.get("global_rate"))
    cells += ["default" if step is None else f"{step:g}", _with([own(row) for row in rows])]
    dense = runs.get((nodes, spread, graph, DENSE, 1), {})
    shared = [seed for seed in found if seed in dense]
    if arm == DENSE or not shared:
        cells += ["", ""]
    else:
        cells.append(str(gap(runs, place, (nodes, spread, graph, DENSE, 1))))
        cells.append(_at_bytes([dense[seed] for seed in shared], [found[seed]["curve"][-1][TOTAL] for seed in shared]))
    cells += [f"{100 * mean(_end(row, at) for row in rows):.1f}" for at in (WORST, MEAN_MODEL)]
    cells.append(f"{mean(_end(row, CONSENSUS) for row in rows):.3g}")
    last = [row["curve"][-1] for row in rows if row["curve"]]
    cells += [shown_bytes(mean(each[at] for each in last)) for at in (TOTAL, NODE, EDGE)]
    return [*cells, f"{mean(each[STEPS] / each[0] for each in last):.3g}"]


def _with(values: Sequence[float]) -> str:
    half = reach(values, CONFIDENCE)
    return f"{mean(values):.1f}" + (f" ± {half:.1f}" if math.isfinite(half) else "")


def gap(runs: Runs, place: Place, other: Place) -> Points:
    """How many points more the nodes of one place have than those of another, seed by seed."""
    first, second = runs[place], runs[other]
    return Points(tuple(own(first[seed]) - own(second[seed]) for seed in first if seed in second))


SHAPE_HEADINGS = ("nodes", "graph", "links", "largest degree", "diameter", "spectral gap")


def _shape(place: tuple[int, str], shape: tuple[int, int, int, float]) -> list[str]:
    return [str(place[0]), place[1].replace("_", " "), *map(str, shape[:3]), f"{shape[3]:.4f}"]


METHOD = f"""± is a {CONFIDENCE:.0%} interval by Student's t over the seeds. Points compare runs with the same seed.
Bold: the interval leaves out zero. One seed has no interval. Intervals are not corrected for their number.
"""


OVER_GRAPHS = ("arm", "size", "lowest", "highest", "mean over graphs", "points against alone", "points against dense")


def findings(runs: Runs) -> str:
    """What the README quotes: each arm over all graphs, and our D-PSGD beside that in torch."""
    parts = ["# In short\n", METHOD]
    groups = list(dict.fromkeys((place[0], place[1]) for place in runs))
    for nodes, spread in groups:
        parts.append(f"## {nodes} nodes, {spread}\n")
        arms = dict.fromkeys(place[3:] for place in runs if place[:2] == (nodes, spread) and place[3] != TORCH)
        lines = [_over_graphs(runs, nodes, spread, arm, inverse) for arm, inverse in arms]
        parts.append(markdown(OVER_GRAPHS, lines))
    checks = [
        [str(place[0]), place[1], place[2].replace("_", " "), str(gap(runs, (*place[:3], DENSE, 1), place))]
        for place in runs
        if place[3] == TORCH
    ]
    if checks:
        parts.append("## Our D-PSGD minus that in torch, in points\n")
        parts.append(markdown(("nodes", "spread", "graph", "difference"), checks))
    parts.append(f"\nWith `sums`, nodes have the same accuracies on all graphs: {'yes' if same_everywhere(runs) else 'no'}.\n")
    return "\n".join(parts)


def same_everywhere(runs: Runs) -> bool:
    """Whether runs of `sums` with the same seed have the same losses and accuracies on all graphs, in every round."""
    seen: dict[tuple[Any, ...], set[str]] = {}
    for (nodes, spread, _, arm, inverse), found in runs.items():
        for seed, row in found.items() if arm == EXACT else ():
            scores = str([each[: CONSENSUS + 1] for each in row["curve"]])
            seen.setdefault((nodes, spread, inverse, seed), set()).add(scores)
    return all(len(each) == 1 for each in seen.values())


def _over_graphs(runs: Runs, nodes: int, spread: str, arm: str, inverse: int) -> list[str]:
    places = [place for place in runs if place[:2] == (nodes, spread) and place[3:] == (arm, inverse)]
    means = {place[2]: mean(own(row) for row in runs[place].values()) for place in places}
    low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    cells = [arm, shown_size(inverse), *(f"{means[each]:.1f} ({each.replace('_', ' ')})" for each in (low, high))]
    seeds = set.intersection(*(set(runs[place]) for place in places))
    cells.append(_with([mean(own(runs[place][seed]) for place in places) for seed in sorted(seeds)]))
    alone = (nodes, spread, NOBODY, ALONE, 1)
    cells.append("" if arm == ALONE else _mean_gap(runs, [(place, alone) for place in places], seeds))
    return [*cells, "" if arm == DENSE else _mean_gap(runs, [(place, (*place[:3], DENSE, 1)) for place in places], seeds)]


def _mean_gap(runs: Runs, pairs: Sequence[tuple[Place, Place]], seeds: Collection[int]) -> str:
    """How many points more the first places have than the second on average, seed by seed. Empty if one is missing."""
    if any(place not in runs for pair in pairs for place in pair):
        return ""
    shared = sorted(seed for seed in seeds if all(seed in runs[second] for _, second in pairs))
    return str(Points(tuple(mean(own(runs[a][seed]) - own(runs[b][seed]) for a, b in pairs) for seed in shared)))


def peers(rows: Sequence[Row], runs: Runs) -> str:
    """gossipy at its best local rate, beside our arms when they had sent as many bytes in total."""
    found: dict[tuple[int, str, str, int], dict[float, list[Row]]] = {}
    for row in rows:
        key = row["key"]
        place = (key["nodes"], key["spread"], key["graph"], key["inverse_ratio"])
        found.setdefault(place, {}).setdefault(key["local_rate"], []).append(row)
    lines = []
    for (nodes, spread, graph, inverse), rates in found.items():
        rate = max(rates, key=lambda each: mean(row["accuracy"] for row in rates[each]))
        sent = 4 * mean(row["numbers"] for row in rates[rate])
        cells = [str(nodes), spread, shown_size(inverse), f"{rate:g}", _with([100 * row["accuracy"] for row in rates[rate]])]
        cells.append(shown_bytes(sent))
        for arm, size in ((DENSE, 1), ("models", 10), ("differences", 10), (EXACT, 10)):
            own = runs.get((nodes, spread, graph, arm, size), {}).values()
            cells.append(_at_bytes(own, [sent] * len(own)) if own else "")
        lines.append(cells)
    headings = (
        *("nodes", "spread", "size", "its local rate", "its accuracy", "bytes in total"),
        *("dense, at as many bytes", "models 1/10", "differences 1/10", "sums 1/10"),
    )
    return "\n## gossipy on the ring\n\n" + markdown(headings, lines) if lines else ""


def _label(arm: str, inverse: int) -> str:
    return arm if inverse == 1 else f"{arm} {shown_size(inverse)}"


def _colours(runs: Runs, shown: Collection[Place]) -> alt.Scale:
    """Arms have the same colours in all figures."""
    known = list(dict.fromkeys(place[3:] for place in runs if place[3] not in (TORCH, ALONE)))
    ranges = dict(zip(known, [MUTED, INK, *PALETTE], strict=False))
    there = {place[3:] for place in shown}
    labels = [each for each in known if each in there]
    return alt.Scale(domain=[_label(*each) for each in labels], range=[ranges[each] for each in labels])


def by_gap(runs: Runs, shapes: Shapes) -> Any:
    """The accuracy of each arm against the spectral gap: a panel for each spread and number of nodes."""
    shown = [place for place in runs if place[3] not in (TORCH, SERVER, ALONE)]
    colours, rows = _colours(runs, shown), []
    for spread in dict.fromkeys(place[1] for place in runs):
        beside = []
        for nodes in dict.fromkeys(place[0] for place in runs):
            values = [
                {"gap": shapes[nodes, place[2]][3], "arm": _label(*place[3:]), "accuracy": mean(map(own, found.values()))}
                for place, found in ((place, runs[place]) for place in shown if place[:2] == (nodes, spread))
            ]
            base = alt.Chart(alt.InlineData(values=values)).encode(
                alt.X("gap:Q", scale=alt.Scale(type="log"), title="spectral gap", axis=alt.Axis(values=DECADES)),
                alt.Y("accuracy:Q", scale=alt.Scale(zero=False), title="accuracy of the nodes, %"),
                alt.Color("arm:N", scale=colours, title=None),
            )
            chart = base.mark_point(filled=True, size=40, opacity=0.9)
            if alone := runs.get((nodes, spread, NOBODY, ALONE, 1)):
                level = alt.Chart(alt.InlineData(values=[{"accuracy": mean(map(own, alone.values()))}]))
                chart = level.mark_rule(color=MUTED, strokeDash=[4, 3]).encode(alt.Y("accuracy:Q")) + chart
            title = alt.Title(f"{nodes} nodes, {spread}", fontSize=12, color=INK)
            beside.append(chart.properties(width=300, height=200, title=title))
        rows.append(alt.hconcat(*beside))
    subtitle = "mean over seeds of the mean test accuracy of the nodes' own models; dashed: nodes that are alone"
    return alt.vconcat(*rows).properties(title=alt.Title("What a better connected graph gains", subtitle=subtitle))


def curves(runs: Runs, nodes: int, at: int, title: str) -> Any:
    """A value against the bytes that a node sends on average: a panel for each graph, rows for each spread."""
    hidden = {TORCH, ALONE, STABLE} if at == ACCURACY else {TORCH, ALONE, STABLE, SERVER, EXACT}
    own = {place: found for place, found in runs.items() if place[0] == nodes and place[3] not in hidden}
    values, colours = {place: _points(found, nodes, at) for place, found in own.items()}, _colours(runs, own)
    bytes_sent = [each["MB"] for points in values.values() for each in points]
    x = alt.Scale(type="log", domain=[0.9 * min(bytes_sent), 1.1 * max(bytes_sent)], nice=False)
    y = alt.Scale(domain=[0.1, 0.85], nice=False)
    if at == CONSENSUS:
        low, high = (limit(each["value"] for points in values.values() for each in points) for limit in (min, max))
        y = alt.Scale(type="log", domain=[max(0.05, 0.9 * low), 1.1 * high], nice=False)
    rows = []
    for spread in dict.fromkeys(place[1] for place in own):
        graphs = [graph for graph in dict.fromkeys(place[2] for place in own) if (nodes, spread, graph, DENSE, 1) in own]
        panels = [
            _panel({place: each for place, each in values.items() if place[1:3] in ((spread, graph), (spread, SERVED))}, x, y)
            .encode(alt.Color("arm:N", scale=colours, title=None))
            .properties(title=alt.Title(f"{graph.replace('_', ' ')}, {spread}", fontSize=11, color=INK))
            for graph in graphs
        ]
        rows += [alt.hconcat(*panels[first : first + 4]) for first in range(0, len(panels), 4)]
    subtitle = f"{title} against MB that a node sends on average, {nodes} nodes, mean over seeds"
    return alt.vconcat(*rows).properties(title=alt.Title("Without a server", subtitle=subtitle))


def _points(found: Mapping[int, Row], nodes: int, at: int) -> list[dict[str, Any]]:
    return [
        {"MB": mean(each[TOTAL] for each in points) / nodes / 1e6, "value": mean(each[at] for each in points)}
        for points in zip(*(row["curve"] for row in found.values()), strict=False)
    ]


def _panel(values: Mapping[Place, Sequence[dict[str, Any]]], x: alt.Scale, y: alt.Scale) -> Any:
    lines = [{**each, "arm": _label(*place[3:])} for place, points in values.items() for each in points]
    chart = alt.Chart(alt.InlineData(values=lines)).mark_line(clip=True, strokeWidth=1.5)
    chart = chart.encode(
        alt.X("MB:Q", scale=x, title=None, axis=alt.Axis(values=DECADES)),
        alt.Y("value:Q", scale=y, title=None, axis=alt.Axis(values=DECADES) if y.type == "log" else alt.Axis()),
    )
    return chart.properties(width=170, height=130)
