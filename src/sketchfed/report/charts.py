"""One look for all charts, and one way to save them."""

from pathlib import Path
from typing import Any

import altair as alt

INK = "#1f2933"
"""The colour of text and of what is most important."""
MUTED = "#7b8794"
"""The colour of notes, and of what others are compared with."""
PALETTE = ["#2066a8", "#d1495b", "#3a9679", "#edae49", "#6a4c93", "#8d6e63", "#00798c", "#5f6c7b"]
"""Colours of series, in the order in which they are used."""

_THEME: dict[str, Any] = {
    "background": "white",
    "font": "Helvetica, Arial, sans-serif",
    "padding": 14,
    "title": {"anchor": "start", "color": INK, "fontSize": 15, "subtitleColor": MUTED, "subtitleFontSize": 12, "offset": 12},
    "view": {"stroke": None},
    "axis": {
        "domainColor": "#cbd2d9",
        "gridColor": "#e9edf1",
        "labelColor": INK,
        "tickColor": "#cbd2d9",
        "titleColor": MUTED,
        "titleFontWeight": "normal",
    },
    "header": {"labelColor": INK, "labelFontWeight": "bold", "titleColor": MUTED},
    "legend": {"labelColor": INK, "titleColor": MUTED, "titleFontWeight": "normal"},
    "range": {"category": PALETTE},
}


def save_chart(chart: Any, path: Path) -> Path:
    """Write a chart as the .svg, .png or .html that the path's ending names, in the common look."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with alt.theme.enable("sketchfed"):
        chart.save(str(path), **({"scale_factor": 2} if path.suffix == ".png" else {}))
    return path


@alt.theme.register("sketchfed", enable=False)
def _theme() -> alt.theme.ThemeConfig:
    return alt.theme.ThemeConfig(config=_THEME)  # type: ignore[typeddict-item]


def page_spec(chart: Any) -> dict[str, Any]:
    """A chart in the common look for a page that has a background of its own; it refers to no address."""
    with alt.theme.enable("sketchfed"):
        spec: dict[str, Any] = chart.to_dict()
    del spec["$schema"]
    spec["config"] |= {"background": "transparent", "padding": 4, "font": "system-ui, Helvetica, Arial, sans-serif"}
    spec["config"]["axis"] = spec["config"]["axis"] | {"labelFontSize": 11, "titleFontSize": 12}
    return spec
