"""The parts of a report as HTML. Every text that comes from a file is escaped here."""

import shlex
from collections.abc import Sequence
from html import escape

from sketchfed.report.curves import Style
from sketchfed.report.document import listed
from sketchfed.report.groups import Group
from sketchfed.report.loading import RunRecord
from sketchfed.report.on_clients import on_clients
from sketchfed.report.pictures import ReportChart
from sketchfed.report.tables import BYTES_MEASURED, NOTHING, Comparison, html_table, latex_table
from sketchfed.report.targets import Arrival, arrival, choose_targets
from sketchfed.report.units import shown_bytes


def headline(groups: Sequence[Group]) -> str:
    """What the comparison comes to, at the hardest target that more than half of the groups reached, with all of their runs."""
    for target in reversed(choose_targets(groups)):
        there = [(found.total_bytes, group.label) for group in groups if (found := arrival(group, target)) and found.all_there]
        if len(there) > max(len(groups) / 2, 1):
            (least, thrifty), (most, lavish) = min(there), max(there)
            if most < 1.05 * least or not least:
                return ""
            few, many = f"<strong>{escape(thrifty)}</strong> sent {shown_bytes(least)}", f"<strong>{escape(lavish)}</strong>"
            return (
                f'<p class="headline">To reach {target}, {few} in both directions together and {many} '
                f"{shown_bytes(most)}, {most / least:.3g} times as much.</p>"
            )
    return ""


def _swatch(style: Style) -> str:
    return (
        '<svg class="swatch" viewBox="0 0 26 11" aria-hidden="true"><line x1="1" x2="25" y1="5.5" y2="5.5" '
        f'stroke="{style.colour}" stroke-width="{3 if style.notable else 1.5}" stroke-dasharray="{_dashes(style)}"/></svg>'
    )


def _dashes(style: Style) -> str:
    return " ".join(map(str, style.dash)) if style.dash[1] else "none"


def _legend(groups: Sequence[Group], looks: Sequence[Style]) -> str:
    """A button a group that highlights its lines in all charts; grey groups are folded away."""
    chips = [
        f'<button type="button" class="chip" data-key="{style.key}" aria-pressed="false">{_swatch(style)}'
        f"<span>{escape(group.label)}{f' <small>{escape(group.note)}</small>' if group.note else ''}</span></button>"
        for group, style in zip(groups, looks, strict=True)
    ]
    coloured = "\n".join(chip for chip, style in zip(chips, looks, strict=True) if style.notable)
    grey = [chip for chip, style in zip(chips, looks, strict=True) if not style.notable]
    more = f"<details><summary>{len(grey)} more, in grey</summary>{chr(10).join(grey)}</details>" if grey else ""
    return f'<div class="legend" role="group" aria-label="Runs: press to highlight in all charts">\n{coloured}\n{more}</div>'


_CONTROLS = """<div class="controls" role="group" aria-label="What the chart shows">
<label><input type="radio" name="direction" data-signal="direction" value="both" checked>up and down</label>
<label><input type="radio" name="direction" data-signal="direction" value="uplink">up only</label>
<label><input type="radio" name="direction" data-signal="direction" value="downlink">down only</label>
{closeup}</div>"""
_CLOSEUP = '<label><input type="checkbox" data-signal="closeup">close-up of the top</label>\n'


def charts(groups: Sequence[Group], looks: Sequence[Style], drawn: Sequence[ReportChart]) -> str:
    if not drawn:
        return '<p class="note">There is nothing to draw yet: no run has finished a round that was evaluated.</p>'
    main, *others = drawn
    band = " Bands go from the least to the most of several seeds." if any(len(group.records) > 1 for group in groups) else ""
    if any(len({record.rounds for record in group.records}) > 1 for group in groups):
        band += " A mean ends where the first of its seeds does."
    missing = [group.label for group in groups if not any(point.measured(main.measure) for point in group.points)]
    absent = f" Without {main.measure}, so not drawn here: {escape(', '.join(missing))}." if missing else ""
    smaller = "\n".join(f"<figure><h3>{escape(each.title)}</h3>{_frame(each)}{_caption(each)}</figure>" for each in others)
    return f"""<section aria-label="Charts">
{_legend(groups, looks)}
<figure>
<h2>{escape(main.title)}</h2>
{_CONTROLS.format(closeup=_CLOSEUP if main.measure == "accuracy" else "")}
{_frame(main, "chart main")}
<figcaption>{BYTES_MEASURED}{band}{absent}</figcaption>
</figure>
<noscript><p class="note">The charts need JavaScript, which is inside this file. The tables below do not.</p></noscript>
<div class="smaller">
{smaller}
</div>
</section>"""


def _caption(picture: ReportChart) -> str:
    return f"<figcaption>{escape(picture.note)}</figcaption>" if picture.note else ""


def _frame(picture: ReportChart, kind: str = "chart") -> str:
    return f'<div class="{kind}" id="{picture.name}"></div>'


def comparison(compared: Comparison, looks: Sequence[Style]) -> str:
    several = any(len(group.records) > 1 for group in compared.groups)
    ranges = " Of several seeds: the mean, and below it the least and the most." if several else ""
    captured = "".join(f" {escape(text)}" for text in compared.captured)
    return f"""<h2 id="comparison">Comparison</h2>
<div class="scroll" role="region" tabindex="0" aria-labelledby="comparison">
{html_table(compared, [_swatch(style) for style in looks])}
</div>
<p class="note">{BYTES_MEASURED} “up/client” and “down/client” are the bytes of one client that takes part in one round,
on average: all bytes divided by how often a client took part.{ranges}{captured}</p>
{_claims(compared)}"""


def _claims(compared: Comparison) -> str:
    """What every ε is about, and what it is not."""
    if not compared.claims:
        return ""
    said = "<br>\n".join(map(escape, compared.claims))
    return f"""<p class="note">{said}<br>
ε is the most that any client has spent by noise that was really added; other runs, made on the same data, add to it.</p>"""


def clients(groups: Sequence[Group], looks: Sequence[Style]) -> str:
    """How the model does on each client's own data."""
    return on_clients(groups, [_swatch(style) for style in looks])


def targets(groups: Sequence[Group], looks: Sequence[Style]) -> str:
    chosen = choose_targets(groups)
    if not chosen:
        return ""
    head = "".join(f'<th scope="col" class="number">{escape(str(target))}</th>' for target in chosen)
    found = [[arrival(group, target) for target in chosen] for group in groups]
    least = [
        min((one.total_bytes for one in column if one and one.all_there), default=None) for column in zip(*found, strict=True)
    ]
    body = "".join(
        f'<tr><th scope="row">{_swatch(style)}{escape(group.label)}</th>'
        + "".join(_arrival(one, best) for one, best in zip(row, least, strict=True))
        + "</tr>\n"
        for group, style, row in zip(groups, looks, found, strict=True)
    )
    return f"""<h2 id="targets">Bytes to reach a target</h2>
<div class="scroll" role="region" tabindex="0" aria-labelledby="targets">
<table>
<thead><tr><th scope="col">run</th>{head}</tr></thead>
<tbody>
{body}</tbody>
</table>
</div>
<p class="note">Both directions together until the first evaluated round at the target.
In bold: the fewest, where all seeds got there.</p>"""


def _arrival(found: Arrival | None, least: float | None) -> str:
    if found is None:
        return f'<td class="number">{NOTHING}</td>'
    some = "" if found.all_there else f", {found.reached} of {found.runs} runs"
    best = " best" if found.all_there and found.total_bytes == least else ""
    return (
        f'<td class="number{best}">{shown_bytes(found.total_bytes)}'
        f"<small>↑ {shown_bytes(found.uplink_bytes)} ↓ {shown_bytes(found.downlink_bytes)}</small>"
        f"<small>round {found.round:.0f}{some}</small></td>"
    )


def latex(records: Sequence[RunRecord]) -> str:
    """The comparison for a paper, to copy."""
    button = '<button type="button" class="copy" data-copies="latex">Copy</button>'
    return f"""<div class="titled"><h2>The table in LaTeX</h2>{button}</div>
<pre id="latex" tabindex="0">{escape(latex_table(records))}</pre>"""


def runs(records: Sequence[RunRecord]) -> str:
    """The exact configuration of each run and how to repeat it."""
    return f'<section class="runs"><h2>Configurations</h2>\n{"".join(map(_run, records))}</section>'


def _run(record: RunRecord) -> str:
    summary = record.summary
    folder = record.folder.resolve().parts[-2:] if record.folder.is_absolute() else record.folder.parts
    config = "/".join((*folder, "config.toml"))  # not where the folder lies on this machine
    ran = f"<p>It ran on {escape(listed(summary.versions))}.</p>" if summary.versions else ""
    state = "" if summary.finished else f", unfinished after round {record.rounds}"
    return f"""<details><summary>{escape(summary.name)} <small>{escape(summary.label)}{state}</small></summary>
<p>Run it again:</p>
<pre class="command">sketchfed run {escape(shlex.quote(config))}</pre>
{ran}<pre tabindex="0">{escape(record.config_text)}</pre>
</details>
"""
