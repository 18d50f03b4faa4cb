"""The parts of a report as HTML. Every text that comes from a file is escaped here."""

import shlex
from collections.abc import Sequence
from html import escape

from sketchfed.report.curves import Style
from sketchfed.report.document import listed
from sketchfed.report.drawing import is_grid, picture, title
from sketchfed.report.groups import Group
from sketchfed.report.loading import RunRecord
from sketchfed.report.networks import NetworkRecord
from sketchfed.report.on_clients import on_clients
from sketchfed.report.pictures import ReportChart
from sketchfed.report.tables import BYTES_MEASURED, NOTHING, Comparison, html_table, latex_table
from sketchfed.report.targets import Arrival, arrival, choose_targets
from sketchfed.report.units import shown_bytes

MOST_DRAWN = 12
"""How many graphs a page has."""


_FARTHEST = "Without a server, a target is reached when the node whose model is farthest from the mean is there."


def headline(groups: Sequence[Group]) -> str:
    """What the comparison comes to, at the hardest target that more than half of the groups reached, with all of their runs."""
    for target in reversed(choose_targets(groups)):
        there = [(found.total_bytes, group.label) for group in groups if (found := arrival(group, target)) and found.all_there]
        if len(there) > max(len(groups) / 2, 1):
            (least, thrifty), (most, lavish) = min(there), max(there)
            if most < 1.05 * least or not least:
                return ""
            few, many = f"<strong>{escape(thrifty)}</strong> sent {shown_bytes(least)}", f"<strong>{escape(lavish)}</strong>"
            served = all(group.served for group in groups)
            counted = "in both directions together" if served else "in all"
            goal = str(target) if served else f"{target}, at the farthest node where there is no server"
            return (
                f'<p class="headline">To reach {goal}, {few} {counted} and {many} '
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


_DIRECTIONS = """<label><input type="radio" name="direction" data-signal="direction" value="both" checked>up and down</label>
<label><input type="radio" name="direction" data-signal="direction" value="uplink">up only</label>
<label><input type="radio" name="direction" data-signal="direction" value="downlink">down only</label>
"""
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
{_controls(main, directed=any(group.served for group in groups))}
{_frame(main, "chart main")}
<figcaption>{BYTES_MEASURED}{band}{absent}</figcaption>
</figure>
<noscript><p class="note">The charts need JavaScript, which is inside this file. The tables below do not.</p></noscript>
<div class="smaller">
{smaller}
</div>
</section>"""


def _controls(main: ReportChart, *, directed: bool) -> str:
    """What a reader may change. Without a server there is no up and no down."""
    made = (_DIRECTIONS if directed else "") + (_CLOSEUP if main.measure == "accuracy" else "")
    return f'<div class="controls" role="group" aria-label="What the chart shows">\n{made}</div>' if made else ""


def _caption(picture: ReportChart) -> str:
    return f"<figcaption>{escape(picture.note)}</figcaption>" if picture.note else ""


def _frame(picture: ReportChart, kind: str = "chart") -> str:
    return f'<div class="{kind}" id="{picture.name}"></div>'


_EACH_CLIENT = """“up/client” and “down/client” are the bytes of one client that takes part in one round,
on average: all bytes divided by how often a client took part."""


def comparison(compared: Comparison, looks: Sequence[Style]) -> str:
    several = any(len(group.records) > 1 for group in compared.groups)
    ranges = " Of several seeds: the mean, and below it the least and the most." if several else ""
    more = "".join(f" {escape(text)}" for text in (*compared.serverless, *compared.captured))
    each = f" {_EACH_CLIENT}" if any(group.served for group in compared.groups) else ""
    return f"""<h2 id="comparison">Comparison</h2>
<div class="scroll" role="region" tabindex="0" aria-labelledby="comparison">
{html_table(compared, [_swatch(style) for style in looks])}
</div>
<p class="note">{BYTES_MEASURED}{each}{ranges}{more}</p>
{_claims(compared)}"""


def _claims(compared: Comparison) -> str:
    """What every ε is about, and what it is not."""
    if not compared.claims:
        return ""
    said = "<br>\n".join(map(escape, compared.claims))
    return f"""<p class="note">{said}<br>
ε is the most that any client has spent by noise that was really added; other runs, made on the same data, add to it.</p>"""


def networks(groups: Sequence[Group], looks: Sequence[Style]) -> str:
    """The graphs of runs without a server. Of several seeds, the first one's."""
    drawn = [(group, style, group.first.network) for group, style in zip(groups, looks, strict=True)]
    known = [(group, style, network) for group, style, network in drawn if network is not None]
    if not known:
        return ""
    figures = "\n".join(_network(group, style, network) for group, style, network in known[:MOST_DRAWN])
    left = len(known) - MOST_DRAWN
    more = f'<p class="note">{left:,} more graphs are not drawn. Make a report on these runs alone.</p>' if left > 0 else ""
    return f"""<h2>Bytes on the graph</h2>
<div class="graphs">
{figures}
</div>{more}
<p class="note">Width and colour show what passed over an edge since the start, in both directions. Point at an edge or a node
to read its bytes.</p>"""


def _network(group: Group, style: Style, network: NetworkRecord) -> str:
    seed = f" Of {len(group.records)} seeds, the first." if len(group.records) > 1 else ""
    wraps = " Edges that leave the grid on one side come back on the opposite side." if is_grid(network) else ""
    anew = (
        f" The graph was drawn anew every {_rounds(network.redraw)}. The picture has all edges that carried bytes; diameter "
        "and spectral gap are those of the first round."
        if network.redraw
        else ""
    )
    return f"""<figure><h3>{_swatch(style)} {escape(group.label)}</h3>
{picture(network)}
<figcaption>{escape(title(network))}; after round {network.round:,}.{wraps}{anew}{seed}</figcaption></figure>"""


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
        + "".join(_arrival(one, best, directed=group.served) for one, best in zip(row, least, strict=True))
        + "</tr>\n"
        for group, style, row in zip(groups, looks, found, strict=True)
    )
    whose = "" if all(group.served for group in groups) else f"\n{_FARTHEST}"
    return f"""<h2 id="targets">Bytes to reach a target</h2>
<div class="scroll" role="region" tabindex="0" aria-labelledby="targets">
<table>
<thead><tr><th scope="col">run</th>{head}</tr></thead>
<tbody>
{body}</tbody>
</table>
</div>
<p class="note">{_counted(groups)} until the first evaluated round at the target.
In bold: the fewest, where all seeds got there.{whose}</p>"""


def _counted(groups: Sequence[Group]) -> str:
    served = [group.served for group in groups]
    return (
        "Both directions together"
        if all(served)
        else "Both directions together, or without a server all messages, each counted once,"
        if any(served)
        else "All messages, each counted once,"
    )


def _arrival(found: Arrival | None, least: float | None, *, directed: bool) -> str:
    if found is None:
        return f'<td class="number">{NOTHING}</td>'
    some = "" if found.all_there else f", {found.reached} of {found.runs} runs"
    best = " best" if found.all_there and found.total_bytes == least else ""
    up, down = shown_bytes(found.uplink_bytes), shown_bytes(found.downlink_bytes)
    directions = f"<small>↑ {up} ↓ {down}</small>" if directed else ""
    return (
        f'<td class="number{best}">{shown_bytes(found.total_bytes)}{directions}'
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


def _rounds(count: int) -> str:
    return "round" if count == 1 else f"{count:,} rounds"
