"""The charts of a report, in the order people look for them."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import altair as alt

from sketchfed.report.charts import page_spec
from sketchfed.report.curves import Style
from sketchfed.report.groups import Group, Spread
from sketchfed.report.tables import CAPTURED_MEASURED, NOTHING

_PICKED = "indexof(picked, datum.key) >= 0"
_NOBODY_PICKED = "length(picked) == 0"
_BYTE_LABEL = "replace(format(datum.value, '~s'), regexp('([a-zA-Z]?)$'), ' $1B')"
_TITLES = {
    "accuracy": "accuracy",
    "loss": "held-out loss",
    "epsilon": "privacy spent, ε",
    "captured": "captured energy",
    "consensus": "consensus error",
    "farthest_accuracy": "accuracy of the farthest node",
    "farthest_loss": "held-out loss of the farthest node",
    "clients_accuracy": "mean accuracy on clients",
    "clients_accuracy_worst": "accuracy on the worst tenth",
    "clients_loss": "mean loss on clients",
    "clients_loss_worst": "loss on the worst tenth",
}
_MEASURED = tuple(name for name in _TITLES if name != "epsilon")
_APART = """Runs without a server: the root mean square distance of the nodes' models from their mean. Rounds in which all
models are equal are left out, as the axis is logarithmic."""
_FARTHEST = "Runs without a server: the node whose model is farthest from the mean of all models."
_CLIENTS = "Of all clients, each on its own data. Each client counts the same."


@dataclass(frozen=True)
class ReportChart:
    """A chart over the shared points, of one of their measures."""

    name: str
    title: str
    measure: str
    spec: dict[str, Any]
    note: str = ""


def pictures(groups: Sequence[Group], looks: Sequence[Style]) -> list[ReportChart]:
    """What there is to see, the main picture first; nothing if no run was evaluated yet."""
    points = [point for group in groups for point in group.points]
    measured = {measure: [value for point in points if (value := point.measured(measure))] for measure in _MEASURED}
    shown = [measure for measure in ("accuracy", "loss") if measured[measure]]
    if not shown:
        return []
    private = any(point.epsilon is not None for point in points)
    served = any(group.served for group in groups)
    drawing = _Drawing(looks, _byte_ticks(groups), private=private, adaptive=bool(measured["captured"]), served=served)
    made = [drawing.against_bytes(shown[0], measured[shown[0]])]
    made += [drawing.against_rounds(measure, measured[measure]) for measure in shown]
    lagging = "farthest_accuracy" if measured["farthest_accuracy"] else "farthest_loss"
    if measured[lagging]:
        made.append(replace(drawing.against_rounds(lagging, measured[lagging]), note=_FARTHEST))
    if measured["consensus"]:
        against = (drawing.against_rounds, partial(drawing.against_bytes, height=260))
        made += [replace(draw("consensus", measured["consensus"]), note=_APART) for draw in against]
    own = "clients_accuracy" if measured["clients_accuracy"] else "clients_loss"
    if len({point.round for point in points if point.measured(own)}) > 1:
        made += [
            replace(drawing.against_rounds(measure, measured[measure]), note=_CLIENTS) for measure in (own, f"{own}_worst")
        ]
    made += [drawing.against_rounds("epsilon")] if drawing.private else []
    if drawing.adaptive:
        made.append(replace(drawing.against_rounds("captured", measured["captured"]), note=CAPTURED_MEASURED))
    return made


@dataclass(frozen=True)
class _Drawing:
    """What all charts have in common: colours by group, highlighting of the groups in `picked`, and tooltips."""

    looks: Sequence[Style]
    byte_ticks: Sequence[float]
    private: bool
    adaptive: bool
    served: bool
    """Whether any of the runs has a server."""

    def against_bytes(self, measure: str, spreads: Sequence[Spread], *, height: int = 420) -> ReportChart:
        """The main picture; the page sets `direction`, which bytes, and `closeup`, which cuts off where all runs are bad."""
        axis = alt.Axis(
            labelExpr=_BYTE_LABEL, values=list(self.byte_ticks), labelOverlap=True, labelSeparation=8, titlePadding=8
        )
        x = alt.X(
            "bytes:Q", scale=alt.Scale(type="log", nice=False, padding=6), axis=axis, title="bytes, total over all clients"
        )
        base = self._base(measure).transform_calculate(bytes="datum[direction]").transform_filter("datum.bytes > 0")
        chart = self._chart(base, x, measure, spreads).add_params(alt.param(name="direction", value="both"))
        return self._picture(chart, measure, "bytes", height=height)

    def against_rounds(self, measure: str, spreads: Sequence[Spread] = ()) -> ReportChart:
        x = alt.X(
            "round:Q",
            axis=alt.Axis(tickMinStep=1, tickCount=6),
            scale=alt.Scale(nice=False, zero=False, padding=6),
            title="round",
        )
        return self._picture(self._chart(self._base(measure), x, measure, spreads), measure, "rounds", height=260)

    def _picture(self, chart: Any, measure: str, against: str, *, height: int) -> ReportChart:
        """`description` is for those who cannot see the chart."""
        title = f"{_TITLES[measure]} against {against}"
        lines = f"a line for each of {len(self.looks)} configurations. The tables on this page give the main figures."
        made = chart.properties(width="container", height=height, description=f"Chart of {title}, {lines}")
        return ReportChart(f"{measure}-against-{against}", title[0].upper() + title[1:], measure, page_spec(made))

    def _base(self, measure: str) -> Any:
        return alt.Chart(alt.NamedData(name="points")).transform_filter(f"isValid(datum.{measure})")

    def _chart(self, base: Any, x: Any, measure: str, spreads: Sequence[Spread]) -> Any:
        keys = [style.key for style in self.looks]
        colour = alt.Color("key:N", legend=None, scale=alt.Scale(domain=keys, range=[style.colour for style in self.looks]))
        dash = alt.StrokeDash("key:N", legend=None, scale=alt.Scale(domain=keys, range=[style.dash for style in self.looks]))
        width = alt.when(_PICKED).then(alt.value(2.8)).when("datum.notable").then(alt.value(2.2)).otherwise(alt.value(1))
        title = alt.Axis(titleAngle=0, titleAlign="left", titleAnchor="end", titleX=-30, titleY=-14, tickCount=6)
        if measure == "captured":
            title.format = "~%"
        y = alt.Y(f"{measure}:Q", scale=_scale(measure, spreads), axis=title, title=_TITLES[measure])
        hover = alt.selection_point(name="hover", nearest=True, on="pointerover", clear="pointerout", empty=False)
        seen = {"clip": True, "aria": False}
        base = base.encode(x=x, color=colour)
        line = base.mark_line(strokeJoin="round", **seen).encode(
            y=y, strokeDash=dash, strokeWidth=width, opacity=_faded(1, 0.1)
        )
        dots = base.mark_circle(size=34, opacity=1, **seen).encode(y=y, opacity=_faded(1, 0.1)).transform_filter("datum.dot")
        near = base.mark_circle(size=90, **seen).encode(
            y=y, opacity=alt.condition(hover, alt.value(1), alt.value(0)), tooltip=self._tooltip(measure)
        )
        layers = [line, dots, near.add_params(hover)]
        if any(spread.low < spread.high for spread in spreads):
            band = base.mark_area(**seen).transform_filter("datum.several")
            limits = {"y": alt.Y(f"{measure}_low:Q", title=_TITLES[measure]), "y2": f"{measure}_high:Q"}
            layers.insert(0, band.encode(**limits, opacity=_faded(0.18, 0.03)))
        params = [alt.param(name="picked", value=[])] + (
            [alt.param(name="closeup", value=False)] if measure == "accuracy" else []
        )
        return alt.layer(*layers).add_params(*params)

    def _tooltip(self, measure: str) -> Any:
        """A table for the point that is nearest. Written out, as Vega-Lite 6.4 looks for text in the wrong place there."""
        moved = {"up": "up", "down": "down", "total": "total"} if self.served else {"sent": "total", "arrived": "down"}
        shown = {} if measure in ("epsilon", "captured") else {_TITLES[measure]: f"shown_{measure}"}
        rows = {"run": "run", "round": "round"} | shown | moved
        rows |= {"ε": "shown_epsilon"} if self.private else {}
        rows |= {"captured": f"shown_captured || '{NOTHING}'"} if self.adaptive else {}
        cells = (f"{json.dumps(title, ensure_ascii=False)}: (datum.datum || datum).{field}" for title, field in rows.items())
        return alt.value(alt.ExprRef(f"{{{', '.join(cells)}}}"))


def _faded(strong: float, weak: float) -> Any:
    """Picked groups are strong and the others weak; when nobody is picked, notable groups are strong and the others half so."""
    by_default = alt.when(_PICKED).then(alt.value(strong)).when(f"{_NOBODY_PICKED} && datum.notable").then(alt.value(strong))
    return by_default.when(_NOBODY_PICKED).then(alt.value(strong / 2)).otherwise(alt.value(weak))


def _byte_ticks(groups: Sequence[Group]) -> list[float]:
    """Round numbers of bytes, few enough to label them all, over the range of any one direction too."""
    points = [point for group in groups for point in group.points]
    totals = [total for point in points if (total := point.total_bytes)]
    if not totals:
        return []
    least = min(size for point in points for size in (point.uplink_bytes, point.downlink_bytes) if size)
    decades = math.log10(max(totals) / min(totals))
    digits = (1, 1.5, 2, 3, 4, 5, 7) if decades < 1 else (1, 2, 5) if decades < 2 else (1, 3) if decades < 5 else (1,)
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(max(totals))) + 1)
    return [digit * 10.0**power for power in powers for digit in digits]


def _scale(measure: str, spreads: Sequence[Spread]) -> Any:
    """Accuracy linearly, with the choice of a close-up on its upper end; positive losses logarithmically; shares from 0."""
    if not spreads:
        return alt.Scale(zero=True)
    low, high = min(spread.low for spread in spreads), max(spread.high for spread in spreads)
    if "loss" in measure or measure == "consensus":
        return alt.Scale(type="log" if low > 0 else "linear", nice=False, zero=False, padding=6)
    if measure == "captured":
        return alt.Scale(domainMin=0, domainMax=min(1.05 * high, 1.01) or 1, nice=False)
    bottom, top = max(low - 0.02, 0), min(high + 0.02, 1.01)
    if measure != "accuracy":
        return alt.Scale(domainMin=bottom, domainMax=top, nice=False)
    upper = max(high - (high - low) / 6, bottom)
    return alt.Scale(domainMin=alt.ExprRef(f"closeup ? {upper:.6f} : {bottom:.6f}"), domainMax=top, nice=False)
