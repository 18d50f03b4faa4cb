"""A report: one file that needs nothing else, with charts, tables and everything needed to run again."""

import json
import re
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path

from sketchfed.report import sections
from sketchfed.report.curves import chart_data, styles
from sketchfed.report.document import document, written_by
from sketchfed.report.files import write_whole
from sketchfed.report.groups import Group
from sketchfed.report.loading import RunRecord
from sketchfed.report.pictures import pictures
from sketchfed.report.tables import compare

_HERE = Path(__file__).parent


def write_report(records: Sequence[RunRecord], path: Path) -> Path:
    """Write the report on these runs as one HTML file that works offline; equal runs give equal files."""
    return write_whole(path, _page(records))


def _page(records: Sequence[RunRecord]) -> str:
    comparison = compare(records)
    groups, looks = comparison.groups, styles(comparison.groups)
    drawn = pictures(groups, looks)
    title = _title(records, groups)
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="setting">{escape(comparison.setting)}</p>',
        sections.headline(groups),
        sections.charts(groups, looks, drawn),
        sections.networks(groups, looks),
        sections.comparison(comparison, looks),
        sections.clients(groups, looks),
        sections.targets(groups, looks),
        sections.latex(records),
        sections.runs(records),
    ]
    scripts = [_vega(), (_HERE / "page.js").read_text(encoding="utf-8")] if drawn else []
    data = {"points": chart_data(groups, looks), "charts": [{"name": each.name, "spec": each.spec} for each in drawn]}
    return document(title, body, footer=written_by(), scripts=scripts, data="".join(_data(*each) for each in data.items()))


def _title(records: Sequence[RunRecord], groups: Sequence[Group]) -> str:
    if len(records) == 1:
        return records[0].summary.name
    data = {record.summary.data for record in records}
    return (groups[0].label if len(groups) == 1 else f"{len(records)} runs") + (f" on {data.pop()}" if len(data) == 1 else "")


@cache
def _vega() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script, without the hosts of their editor and their schemas."""
    import vl_convert

    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]
    return re.sub(r"https://[\w.]+(?=/)", "", bundle).replace("</script", r"<\/script")


def _data(name: str, value: object) -> str:
    """JSON for the page's script, written so that no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    safe = text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")
    return f'<script type="application/json" id="{name}">{safe}</script>\n'
