"""The lines of a report: how the groups of runs look in all charts, and the points that the charts share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sketchfed.report.charts import MUTED, PALETTE
from sketchfed.report.groups import Group, Point
from sketchfed.report.units import shown_accuracy, shown_bytes, shown_epsilon, shown_loss, shown_share

MOST_STYLED = 2 * len(PALETTE)
_COLOURS = PALETTE[:-1]  # the last one is hard to tell from grey
_MOST_POINTS = 3_000
_FEW_POINTS = 25
_SOLID, _DASHED = [1, 0], [5, 3]


@dataclass(frozen=True)
class Style:
    """How a group is drawn everywhere. `notable` groups have a colour; the others are grey until they are pointed at."""

    key: str
    colour: str
    dash: Sequence[int]
    notable: bool = True


def styles(groups: Sequence[Group]) -> list[Style]:
    """Colours, then colours dashed. Of more groups than that only the most notable are coloured."""
    if len(groups) <= MOST_STYLED:
        looks = [(colour, dash) for dash in (_SOLID, _DASHED) for colour in PALETTE]
        return [Style(f"g{place}", *looks[place]) for place in range(len(groups))]
    colours = dict(zip(_most_notable(groups), _COLOURS, strict=True))
    return [Style(f"g{place}", colours.get(place, MUTED), _SOLID, place in colours) for place in range(len(groups))]


def _most_notable(groups: Sequence[Group]) -> list[int]:
    """Those that nobody beats at fewer bytes, then the best of the rest; as many as there are colours."""

    def merit(place: int) -> float:
        accuracy = groups[place].spread(lambda record: record.best_accuracy)
        loss = groups[place].spread(lambda record: record.best_loss)
        return accuracy.mean if accuracy else -loss.mean if loss else -math.inf

    def cost(place: int) -> float:
        points = groups[place].points
        return points[-1].total_bytes if points else math.inf

    front: list[int] = []
    for place in sorted(range(len(groups)), key=lambda place: (cost(place), -merit(place))):
        if not front or merit(place) > merit(front[-1]):
            front.append(place)
    ranked = sorted(range(len(groups)), key=lambda place: (place not in front, -merit(place)))
    return sorted(ranked[: len(_COLOURS)])


def chart_data(groups: Sequence[Group], looks: Sequence[Style]) -> list[dict[str, Any]]:
    """The points of all charts, thinned to what a screen can show; grey groups first, for what comes later is drawn above."""
    most = min(max(_MOST_POINTS // len(groups), _FEW_POINTS), 300)
    rows = []
    for group, style in sorted(zip(groups, looks, strict=True), key=lambda pair: pair[1].notable):
        kept = thinned(group.points, most)
        dotted = {point.round for point in kept if len(kept) == 1 or (style.notable and len(kept) <= _FEW_POINTS)}
        dotted |= {point.round for point in kept[-1:] if style.notable}
        rows += [_row(group, style, point) | {"dot": point.round in dotted, "notable": style.notable} for point in kept]
    return rows


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most this many points. They include the first and the last, and are spread evenly by number and by its logarithm."""
    last = len(points) - 1
    if last < most:
        return list(points)
    half = most // 2
    even = {round(step * last / (half - 1)) for step in range(half)}
    early = {round(math.expm1(step * math.log1p(last) / (half - 1))) for step in range(half)}
    return [points[place] for place in sorted(even | early)]


def _row(group: Group, style: Style, point: Point) -> dict[str, Any]:
    total = point.total_bytes
    row: dict[str, Any] = {"key": style.key, "run": str(group.label), "round": point.round, "several": len(group.records) > 1}
    row |= {"uplink": point.uplink_bytes, "downlink": point.downlink_bytes, "both": total}
    row |= {"up": shown_bytes(point.uplink_bytes), "down": shown_bytes(point.downlink_bytes), "total": shown_bytes(total)}
    row |= {"epsilon": point.epsilon, "shown_epsilon": "—" if point.epsilon is None else shown_epsilon(point.epsilon)}
    measured = [
        ("accuracy", point.accuracy, shown_accuracy),
        ("loss", point.loss, shown_loss),
        ("captured", point.captured, shown_share),
        ("consensus", point.consensus, shown_loss),
        ("farthest_accuracy", point.farthest_accuracy, shown_accuracy),
        ("farthest_loss", point.farthest_loss, shown_loss),
        *((name, spread, shown_accuracy if "accuracy" in name else shown_loss) for name, spread in point.on_clients.items()),
    ]
    for measure, spread, shown in measured:
        if spread:
            row |= {measure: spread.mean, f"{measure}_low": spread.low, f"{measure}_high": spread.high}
            row[f"shown_{measure}"] = shown(spread.mean)
            if row["several"]:
                row[f"shown_{measure}"] += f" ({shown(spread.low)}–{shown(spread.high)})"
    return row
