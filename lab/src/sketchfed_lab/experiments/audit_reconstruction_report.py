"""The table and the picture of `audit-reconstruction`."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import altair as alt

from sketchfed.report import INK, MUTED, PALETTE, save_chart
from sketchfed.runs import Row
from sketchfed_lab.experiments.tables import write_table

HEADINGS = (
    *("data", "sent", "b/d", "numbers", "bytes", "noise", "PSNR, dB", "least to most", "SSIM", "MSE", "categories right"),
    *("error of numbers", "labels right", "recognised", "originals recognised", "no better than chance", "setting", "ε"),
)
NAMES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "adult": "Adult", "digits": "digits"}
FAMILIES = {"whole": "whole change", "srht": "SRHT", "count": "CountSketch", "gaussian": "Gaussian"}
CHANCE = "chance: the mean of public data"
MAIN = {"psnr": "PSNR, dB", "categories": "categories right, %"}
_WIDTH, _HEIGHT = 200, 190


def write(rows: Sequence[Row], folder: Path) -> None:
    """table.md and figure.svg, and the table on the terminal."""
    lines = []
    for data in dict.fromkeys(row["key"]["data"] for row in rows):
        own = [row for row in rows if row["key"]["data"] == data]
        lines += [_chance_line(own[0]), *map(_line, own)]
    write_table(folder / "table.md", HEADINGS, lines, printed=(0, 1, 2, 5, 6, 10, 12, 13))
    save_chart(figure(rows), folder / "figure.svg")


def _line(row: Row) -> list[str]:
    key, scores = row["key"], row["scores"]
    return [
        _name(row),
        FAMILIES.get(key["family"], key["family"]),
        f"{key['ratio']:g}",
        f"{row['size']:,}",
        f"{row['bytes']:,}",
        f"{key['noise']:g}",
        *_means({name: mean(values) for name, values in scores.items()}, scores.get("psnr")),
        _percent(row["labels"]),
        _percent(row.get("recognised")),
        _percent(row.get("recognised_originals")),
        f"{row['failures']} of {key['victims']}" + (f" ({row['broken']} broken)" if row["broken"] else ""),
        f"{row['chosen']:g}",
        _epsilon(row["epsilon"]) if "epsilon" in row else "—",
    ]


def _chance_line(row: Row) -> list[str]:
    """What somebody gets who looks at nothing."""
    return [_name(row), "nothing", *["—"] * 4, *_means(row["chance"], None), *["—"] * 6]


def _means(scores: dict[str, float], each: Sequence[float] | None) -> list[str]:
    """Of images or of rows, in the order of the headings."""
    if "psnr" in scores:
        spread = f"{min(each):.1f} to {max(each):.1f}" if each else "—"
        return [f"{scores['psnr']:.1f}", spread, f"{scores['ssim']:.2f}", f"{scores['mse']:.2g}", "—", "—"]
    return ["—"] * 4 + [_percent(scores["categories"]), f"{scores['numbers']:.2g}"]


def _name(row: Row) -> str:
    return NAMES.get(row["key"]["data"], str(row["key"]["data"]))


def _percent(share: float | None) -> str:
    return "—" if share is None else f"{100 * share:.0f} %"


def _epsilon(value: float) -> str:
    return f"{value:.2g}" if value < 10 or value >= 1e6 else f"{value:,.0f}"


def figure(rows: Sequence[Row]) -> Any:
    """The main score against the size of sketches, and below it against noise; a panel a data set."""
    above: list[Any] = []
    below: list[Any] = []
    for data in dict.fromkeys(row["key"]["data"] for row in rows):
        own = [row for row in rows if row["key"]["data"] == data]
        above.append(_by_size(own, first=not above))
        below.append(_by_noise(own, first=not below))
    heading = alt.Title(
        "What gradient matching gets back of the one example behind an update",
        subtitle=[
            f"means over {rows[0]['key']['victims']} victims; above against the size of sketches, without noise: on the dotted "
            "line as many numbers are sent as an example has;",
            "below against noise on the whole change, and on an SRHT sketch of size b",
        ],
    )
    return alt.vconcat(alt.hconcat(*above, spacing=16), alt.hconcat(*below, spacing=16), spacing=22).properties(title=heading)


def _by_size(rows: Sequence[Row], *, first: bool) -> Any:
    clean = [row for row in rows if not row["key"]["noise"]]
    ratios = sorted({row["key"]["ratio"] for row in clean})
    points = [_point(row, row["key"]["ratio"]) for row in clean if row["key"]["family"] != "whole"]
    ends = [_point(row, ratio) for row in clean if row["key"]["family"] == "whole" for ratio in (ratios[0], ratios[-1])]
    x = alt.X("x:Q", title="b/d", scale=alt.Scale(type="log", domain=[ratios[0], ratios[-1]], nice=False))
    x = x.axis(values=ratios, format="~g", grid=False, labelOverlap="greedy", labelSeparation=4, labelFlush=False)
    chart = _lines(rows, points, x, first=first, also=ends)
    enough = alt.Chart(alt.InlineData(values=[{"x": rows[0]["unknowns"] / rows[0]["dim"]}]))
    rule = enough.mark_rule(color=MUTED, strokeDash=[1, 3]).encode(alt.X("x:Q"))
    title = alt.Title(_name(rows[0]), fontSize=12, color=INK)
    return alt.layer(rule, chart).properties(width=_WIDTH, height=_HEIGHT, title=title)


def _by_noise(rows: Sequence[Row], *, first: bool) -> Any:
    """Only what noise was added to."""
    noised = {(row["key"]["family"], row["key"]["ratio"]) for row in rows if row["key"]["noise"]}
    own = [row for row in rows if (row["key"]["family"], row["key"]["ratio"]) in noised]
    points = [_point(row, f"{row['key']['noise']:g}") for row in own]
    sizes = {row["size"] for row in own if row["key"]["family"] != "whole"}
    title = "noise, in norms of what is sent" + "".join(f" (b = {size:,})" for size in sizes)
    order = [f"{noise:g}" for noise in sorted({row["key"]["noise"] for row in own})]
    x = alt.X("x:N", title=title, sort=order, scale=alt.Scale(type="point", padding=0.2)).axis(grid=False, labelAngle=0)
    return _lines(rows, points, x, first=first).properties(width=_WIDTH, height=_HEIGHT)


def _point(row: Row, x: float | str) -> dict[str, Any]:
    main = next(iter(row["scores"]))
    score = mean(row["scores"][main]) * (100 if main == "categories" else 1)
    return {"x": x, "score": score, "line": FAMILIES.get(row["key"]["family"], row["key"]["family"])}


def _lines(
    rows: Sequence[Row], points: Sequence[dict[str, Any]], x: Any, *, first: bool, also: Sequence[dict[str, Any]] = ()
) -> Any:
    """Lines with points, others without, and chance as a broken one."""
    main, chance = next(iter(rows[0]["scores"])), rows[0]["chance"]
    images = main == "psnr"
    level = chance[main] * (1 if images else 100)
    ends = [pick((point["x"] for point in points), key=float) for pick in (min, max)]
    drawn = [*points, *also, *({"x": end, "score": level, "line": CHANCE} for end in ends)]
    names = [*FAMILIES.values(), CHANCE]
    legend = alt.Legend(symbolType="stroke", symbolStrokeWidth=2, symbolSize=300, orient="bottom", columns=5, labelLimit=300)
    colour = alt.Color("line:N", title=None, scale=alt.Scale(domain=names, range=[INK, *PALETTE[:3], MUTED]), legend=legend)
    dashes = alt.Scale(domain=names, range=[[1, 0]] * (len(names) - 1) + [[5, 4]])
    dash = alt.StrokeDash("line:N", title=None, scale=dashes, legend=legend)
    scale = alt.Scale(domain=[0, 70] if images else [0, 100], nice=False)
    y = alt.Y("score:Q", title=MAIN[main] if first or not images else None, scale=scale).axis(tickCount=5)
    base, dots = (alt.Chart(alt.InlineData(values=list(values))) for values in (drawn, points))
    return alt.layer(
        base.mark_line(strokeWidth=1.8).encode(x, y, colour, dash),
        dots.mark_circle(size=28, opacity=1).encode(x, y, colour),
    )
