"""The pictures of the experiments on the three tasks."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from sketchfed.report import INK, MUTED, PALETTE
from sketchfed.runs import Row
from sketchfed_lab.experiments.tasks_methods import AT_EQUAL_BYTES, METHODS

SPLITS = {"iid": "IID", "skewed": "non-IID"}
LOSSES = {
    "power-iteration": "distance to the eigenvector",
    "k-means": "sum of squared distances",
    "linear-regression": "mean squared error",
}
RELATIVE = {"linear-regression": 10}
"""Tasks whose losses differ so little that they are shown relative to that of `dense`, from an iteration on."""
COLOURS = {
    "rand_k": MUTED,
    "rand_k_spatial, avg": PALETTE[0],
    "rand_proj_spatial, avg": PALETTE[4],
    "wangni": PALETTE[2],
    "induced": PALETTE[3],
    "dense": INK,
}
"""The paper's five, and what loses nothing."""
SELECTED = COLOURS | {
    "rand_proj_spatial": "#c56cf0",
    "rand_proj_spatial, 4 bits": PALETTE[1],
    "eden": PALETTE[5],
    "correlated": PALETTE[6],
    "rand_k, prediction": "#9bb5c9",
    "top_k, prediction": "#f2801c",
    "rand_proj_spatial, 4 bits, prediction": "#e8a0ab",
}
"""What is drawn against bytes; all others are in the figure of the ends."""


def figures(task: str, rows: Sequence[Row]) -> dict[str, Any]:
    """A figure for each split as in the paper, ends of all codecs, the same at equal bytes, curves against bytes, times."""
    good = [row for row in rows if "end" in row]
    at_size, at_bytes = ([row for row in good if row["key"]["compare"] == what] for what in ("size", "bytes"))
    main = sorted({_cell(row) for row in at_bytes})
    dense = [row for row in at_size if row["key"]["method"] == "dense"]
    drawn = {split: paper_curves(task, at_size, split) for split in SPLITS if any(r["key"]["split"] == split for r in at_size)}
    ends = {
        "codecs": codec_ends(task, [row for row in at_size if _cell(row) in [*main, *((n, 0) for n, _ in main)]], dense),
        "bytes-codecs": codec_ends(task, at_bytes, dense),
    }
    return drawn | ends | {"bytes": byte_curves(task, at_bytes, dense), "time": times(rows)}


def paper_curves(task: str, rows: Sequence[Row], split: str) -> Any:
    """Error and loss against iterations with one standard deviation, as in the paper's Figures 4 and 8 to 13."""
    own = [row for row in rows if row["key"]["split"] == split and row["key"]["method"] in COLOURS]
    cells = sorted({_cell(row) for row in own if row["key"]["size"]})
    lines = []
    for what in ("error", "loss"):
        panels: list[Any] = []
        for n, k in cells:
            here = [row for row in own if _cell(row) in ((n, k), (n, 0))]
            points = [point for row in here for point in _points(row, what)]
            points = _relative(task, points) if what == "loss" else [p for p in points if p["codec"] != "dense"]
            against = " / that of dense" if what == "loss" and task in RELATIVE else ""
            title = None if panels else f"{_label(task, what)}{against}"
            panels.append(
                _curves(points, COLOURS, x="iteration", title=title, heading=f"n = {n}, k = {k}", width=140, lossy=True)
            )
        lines.append(alt.hconcat(*panels))
    subtitle = "mean of the runs and one standard deviation"
    return alt.vconcat(*lines).properties(
        title=alt.Title(f"{task}, {SPLITS[split]}: the paper's five codecs at equal size", subtitle=subtitle)
    )


def byte_curves(task: str, rows: Sequence[Row], dense: Sequence[Row]) -> Any:
    """Error and loss against the bytes that a client has sent, where every codec has the budget of `rand_k`."""
    lines = []
    places = sorted({(row["key"]["split"], *_cell(row)) for row in rows})
    for what in ("error", "loss"):
        panels: list[Any] = []
        for split, n, k in places:
            here = [r for r in rows if (r["key"]["split"], *_cell(r)) == (split, n, k) and r["key"]["method"] in SELECTED]
            here += [r for r in dense if (r["key"]["split"], r["key"]["clients"]) == (split, n) and what == "loss"]
            points = [point for row in here for point in _points(row, what)]
            title = _label(task, what) if not panels else None
            heading = f"{SPLITS[split]}, n = {n}, budget of k = {k}"
            panels.append(_curves(points, SELECTED, x="bytes", title=title, heading=heading, width=220))
        lines.append(alt.hconcat(*panels))
    return alt.vconcat(*lines).properties(
        title=alt.Title(
            f"{task}: against bytes a client has sent",
            subtitle="every codec fitted to the packets of rand_k, except dense; logarithmic axes",
        )
    )


def codec_ends(task: str, rows: Sequence[Row], dense: Sequence[Row]) -> Any:
    """Where each codec ends: error and loss, a dot a split, and a line where the loss ends if nothing is lost."""
    order = [name for name in {**METHODS, **AT_EQUAL_BYTES} if any(row["key"]["method"] == name for row in rows)]
    order = [name for name in order if name != "dense"]
    lines = []
    for n in sorted({row["key"]["clients"] for row in rows}):
        size = max(row["key"]["size"] for row in rows if row["key"]["clients"] == n)
        panels: list[Any] = []
        for what in ("error", "loss"):
            values = [
                {"codec": row["key"]["method"], "split": SPLITS[row["key"]["split"]], "value": _end(row, what)}
                for row in rows
                if row["key"]["clients"] == n and row["key"]["method"] in order
            ]
            axis = _names(first=not panels)
            x = alt.X("value:Q", title=_label(task, what), scale=alt.Scale(type="log", nice=False, padding=8))
            colour = alt.Color("split:N", title=None, scale=alt.Scale(domain=list(SPLITS.values()), range=PALETTE[:2]))
            dots = (
                alt.Chart(alt.InlineData(values=values))
                .mark_point(filled=True, size=55, opacity=0.85)
                .encode(
                    x.axis(format=_digits(values), tickCount=4),
                    alt.Y("codec:N", scale=alt.Scale(domain=order), axis=axis),
                    colour,
                )
            )
            ends = [
                {"split": SPLITS[row["key"]["split"]], "value": _end(row, what)}
                for row in dense
                if row["key"]["clients"] == n and what == "loss"
            ]
            rule = alt.Chart(alt.InlineData(values=ends)).mark_rule(strokeDash=[4, 3]).encode(x, colour)
            layered = alt.layer(*([rule] if ends else []), dots)
            heading = alt.Title(
                f"n = {n}, {'budget of ' if rows[0]['key']['compare'] == 'bytes' else ''}k = {size}", fontSize=12
            )
            panels.append(layered.properties(width=230, height=15 * len(order), title=heading))
        lines.append(alt.hconcat(*panels))
    at_bytes = bool(rows) and rows[0]["key"]["compare"] == "bytes"
    told = (
        "at the bytes of rand_k"
        if at_bytes
        else "at equal size; sign, eden, correlated and qsgd send all coordinates in few bits"
    )
    return alt.vconcat(*lines).properties(
        title=alt.Title(f"{task}: where each codec ends", subtitle=f"{told}. Dashed: where dense ends")
    )


def times(rows: Sequence[Row]) -> Any:
    """Time to encode a client's vector and to decode all, as in the paper's Figure 5."""
    own = [row for row in rows if row["key"]["compare"] == "time" and "encode" in row]
    order = [name for name in METHODS if any(row["key"]["method"] == name for row in own)]
    panels: list[Any] = []
    for what, title in (("encode", "seconds to encode a client's vector"), ("decode", "seconds to decode all")):
        values = [
            {"codec": row["key"]["method"], "cell": f"n = {row['key']['clients']}, k = {row['key']['size']}", "s": row[what]}
            for row in own
        ]
        panels.append(
            alt.Chart(alt.InlineData(values=values))
            .mark_point(filled=True, size=55, opacity=0.85)
            .encode(
                alt.X("s:Q", title=title, scale=alt.Scale(type="log", padding=8)).axis(format="~s", tickCount=4),
                alt.Y("codec:N", scale=alt.Scale(domain=order), axis=_names(first=not panels)),
                alt.Color("cell:N", title=None, scale=alt.Scale(range=PALETTE[:2])),
            )
            .properties(width=260, height=16 * len(order))
        )
    return alt.hconcat(*panels).properties(title=alt.Title("Time to encode and to decode", subtitle="one core; medians"))


def _names(*, first: bool) -> Any:
    """The axis of codecs, with their names at the first panel only."""
    return alt.Axis(title=None, labelLimit=260, grid=True, labels=first, ticks=first)


def _curves(
    points: Sequence[Row],
    colours: Mapping[str, str],
    *,
    x: str,
    title: str | None,
    heading: str,
    width: int,
    lossy: bool = False,
) -> Any:
    """Lines; with bands, and as tall as those of codecs that lose something, if `lossy`."""
    order = [name for name in colours if any(point["codec"] == name for point in points)]
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    scaled = alt.Scale(type="log", nice=False) if x == "bytes" else alt.Undefined
    ends = [point[end] for point in points if point["codec"] != "dense" for end in ("low", "high")] if lossy else []
    height = alt.Scale(type="log", nice=False, zero=False, domain=[min(ends), max(ends)] if ends else alt.Undefined)
    base = alt.Chart(alt.InlineData(values=[{**point, "x": point[x]} for point in points if point["codec"] in order])).encode(
        alt.X("x:Q", title="bytes a client" if x == "bytes" else x, scale=scaled).axis(format="~s", tickCount=4, grid=False),
        alt.Y("value:Q", title=title, scale=height).axis(format=_digits(points), tickCount=5),
        alt.Color(
            "codec:N", title=None, scale=scale, legend=alt.Legend(symbolType="stroke", symbolOpacity=1, symbolStrokeWidth=2)
        ),
    )
    dashes = alt.condition("datum.codec == 'dense'", alt.value([4, 3]), alt.value([1, 0]))
    layers = [base.mark_line(strokeWidth=1.7, clip=True).encode(strokeDash=dashes)]
    if lossy:
        layers.insert(0, base.mark_area(opacity=0.2, clip=True).encode(alt.Y("low:Q"), alt.Y2("high:Q")))
    return alt.layer(*layers).properties(width=width, height=170, title=alt.Title(heading, fontSize=11, color=INK))


def _digits(points: Sequence[Row]) -> str:
    """How numbers of this size are written: 300k rather than 300000, but 0.001 rather than 1m."""
    return "~s" if any(point["value"] > 1e4 for point in points) else "~g"


def _points(row: Row, what: str) -> list[Row]:
    means, deviations = row[what], row[f"{what}_sd"]
    return [
        {
            "codec": row["key"]["method"],
            "iteration": number,
            "bytes": row["bytes"][number - 1],
            "value": value,
            "low": max(value - deviation, value / 3),
            "high": value + deviation,
        }
        for number, (value, deviation) in enumerate(zip(means, deviations, strict=True), start=1)
    ]


def _relative(task: str, points: Sequence[Row]) -> list[Row]:
    """Losses divided by that of `dense` in the same iteration, for tasks that need it."""
    if task not in RELATIVE:
        return list(points)
    dense = {point["iteration"]: point["value"] for point in points if point["codec"] == "dense"}
    return [
        point | {name: point[name] / dense[point["iteration"]] for name in ("value", "low", "high")}
        for point in points
        if point["iteration"] >= RELATIVE[task] and dense
    ]


def _end(row: Row, what: str) -> float:
    return float(row["end"][0] if what == "error" else row["loss"][-1])


def _label(task: str, what: str) -> str:
    return "squared error of the mean" if what == "error" else LOSSES[task]


def _cell(row: Row) -> tuple[int, int]:
    return row["key"]["clients"], row["key"]["size"]
