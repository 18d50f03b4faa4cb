"""The findings of an audit as HTML. Every text from the record is escaped here."""

import math
from collections.abc import Callable, Iterable
from html import escape
from itertools import count

from sketchfed.attacks.base import Goal
from sketchfed.audits.findings import AuditRecord, AuditVerdict, DefenceRecord, Finding, PicturePair
from sketchfed.audits.png import dimensions
from sketchfed.audits.verdicts import GOALS, MEASURES, NO_PROOF, shown_score, strongest
from sketchfed.report.tables import BYTES_MEASURED, NOTHING
from sketchfed.report.units import shown_accuracy, shown_bytes, shown_epsilon, shown_loss, shown_share

_SIDE = 64
"""The width in pixels up to which a small picture is enlarged."""
_MOST_PICTURES = 10
_LOOKS: dict[AuditVerdict, str] = {
    "leaks": "leaks",
    "nothing found": "nothing",
    "no power": "powerless",
    "not applicable": "apart",
}
_AFTER: dict[Goal, str] = {
    "examples": "A client's examples, reconstructed",
    "steps": "The server's steps, estimated",
    "property": "A property of a client's examples, inferred",
    "members": "Who was in the training data",
}


def overview(record: AuditRecord) -> str:
    """One row per defence, and below it the pictures of its strongest attack on examples."""
    goals = "".join(f'<th scope="col" title="{_AFTER[goal]}">{goal}</th>' for goal in GOALS)
    body = "".join(_defence(place, defence) for place, defence in enumerate(record.defences, start=1))
    return f"""<h2 id="defences">Defences</h2>
<div class="scroll" role="region" tabindex="0" aria-labelledby="defences">
<table class="defences">
<thead><tr><th scope="col">defence</th>{goals}<th scope="col">ε</th><th scope="col" class="number">accuracy</th>
<th scope="col" class="number">bytes up<small>and down</small></th>
<th scope="col" class="number">numbers<small>of parameters</small></th></tr></thead>
{body}</table>
</div>
<p class="note">A verdict is that of the strongest attack: on a client's <strong>examples</strong>, on the server's
<strong>steps</strong>, on a <strong>property</strong> of examples, and on who is a <strong>member</strong> of the training
data. {NO_PROOF} The first row defends nothing: attacks show their power on it. {BYTES_MEASURED}
“Numbers” are those of one reply.</p>"""


def _defence(place: int, defence: DefenceRecord) -> str:
    row, seen = f"row-{place}", _strip(strongest(defence, "examples"))
    pictures = f'<tr class="seen"><td colspan="{5 + len(GOALS)}" headers="{row}">{seen}</td></tr>\n' if seen else ""
    measured = NOTHING if defence.accuracy is None else shown_accuracy(defence.accuracy)
    loss = "" if defence.loss is None else f"<small>loss {shown_loss(defence.loss)}</small>"
    verdicts = "".join(f"<td>{_verdict_of(strongest(defence, goal))}</td>" for goal in GOALS)
    return f"""<tbody>
<tr><th scope="row" id="{row}">{escape(defence.name)}<small>{escape(defence.label)}</small>
<small><a href="#findings-{place}">all findings</a></small></th>
{verdicts}<td class="claim">{_claim(defence)}</td><td class="number">{measured}{loss}</td>
<td class="number">↑ {shown_bytes(defence.uplink_bytes)}<small>↓ {shown_bytes(defence.downlink_bytes)}</small></td>
<td class="number">{defence.numbers:,}<small>of {defence.dim:,}</small></td></tr>
{pictures}</tbody>
"""


def _claim(defence: DefenceRecord) -> str:
    """ε with what it refers to. It is shown only if noise was calibrated for it."""
    if defence.epsilon is None:
        return '<span class="muted">no claim</span>'
    return f"{shown_epsilon(defence.epsilon)}<small>{escape(defence.claim)}</small>"


def _chip(verdict: AuditVerdict) -> str:
    return f'<span class="verdict {_LOOKS[verdict]}">{verdict}</span>'


def _verdict_of(finding: Finding | None) -> str:
    if finding is None:
        return '<span class="muted">not tried</span>'
    if finding.score is None:
        return _chip(finding.verdict)
    score = f"{MEASURES[finding.measure]} {shown_score(finding, finding.score)}"
    return f"{_chip(finding.verdict)}<small>{score}</small><small>{escape(finding.role)}</small>"


def _strip(finding: Finding | None) -> str:
    """The pictures of the strongest attack, with its role."""
    if finding is None or not finding.pictures:
        return ""
    shown = finding.pictures[:_MOST_PICTURES]
    more = f", {len(shown)} of {len(finding.pictures)} pictures" if len(shown) < len(finding.pictures) else ""
    chance = f", chance {shown_score(finding, finding.chance)}" if finding.chance is not None else ""
    return f"""<div class="strip"><p class="note">Strongest attack on examples: <strong>{escape(finding.role)},
{escape(finding.attack)}</strong>, {MEASURES[finding.measure]} {shown_score(finding, finding.score)}{chance}{more}.
Originals above, guesses below.</p>
{_pairs(shown)}</div>"""


def _pairs(pictures: Iterable[PicturePair]) -> str:
    pairs = "".join(
        f'<figure class="pair">{_image(each.truth, f"original {place}")}'
        f"{_image(each.guess, f'guess of original {place}, {each.decibels:.1f} dB')}"
        f"<figcaption>{each.decibels:.1f} dB</figcaption></figure>\n"
        for place, each in zip(count(1), pictures, strict=False)
    )
    return f'<div class="pairs">\n{pairs}</div>'


def _image(file: str, alt: str) -> str:
    """Enlarge by a whole number, so that all pixels have the same size."""
    size = ""
    if found := dimensions(file):
        times = max(1, _SIDE // max(1, found[0]))
        size = f' width="{times * found[0]}" height="{times * found[1]}"'
    return f'<img src="data:image/png;base64,{escape(file)}"{size} alt="{alt}">'


def findings(record: AuditRecord) -> str:
    """All findings of each defence, and its configuration."""
    parts = "".join(_details(place, defence) for place, defence in enumerate(record.defences, start=1))
    return f'<section class="runs"><h2>All findings</h2>\n{parts}</section>'


def _details(place: int, defence: DefenceRecord) -> str:
    roles = list(dict.fromkeys(finding.role for finding in defence.findings))
    groups = "".join(_role(role, [finding for finding in defence.findings if finding.role == role]) for role in roles)
    table = f"""<div class="scroll" role="region" tabindex="0" aria-label="Findings of {escape(defence.name)}">
<table class="findings">
<thead><tr><th scope="col">attack</th><th scope="col">after</th><th scope="col">verdict</th>
<th scope="col" class="number">score<small>95 %</small></th><th scope="col" class="number">chance</th>
<th scope="col" class="number">victims</th><th scope="col">other scores and remarks</th></tr></thead>
{groups}</table>
</div>"""
    about = f"{escape(defence.label)}, {_counted(defence.rounds, 'round')}"
    return f"""<details><summary>{escape(defence.name)} <small>{about}</small></summary>
<div id="findings-{place}">
{table if defence.findings else '<p class="note">No attack was tried.</p>'}
<p>The exact configuration:</p>
<pre tabindex="0">{escape(defence.config)}</pre>
</div>
</details>
"""


def _role(role: str, found: list[Finding]) -> str:
    rows = "".join(map(_finding, found))
    return f'<tbody>\n<tr class="role"><th scope="rowgroup" colspan="7">{escape(role)}</th></tr>\n{rows}</tbody>\n'


def _finding(finding: Finding) -> str:
    interval = ""
    if finding.low is not None and finding.high is not None:
        low = shown_score(finding, finding.low).removesuffix(" dB")
        interval = f"<small>{low} to {shown_score(finding, finding.high)}</small>"
    each = f"<small>{_counted(finding.examples, 'example')} each</small>" if finding.goal == "examples" else ""
    score = "" if finding.score is None else f"{MEASURES[finding.measure]} {shown_score(finding, finding.score)}"
    pictures = f'<tr class="seen"><td colspan="7">{_pairs(finding.pictures)}</td></tr>\n' if finding.pictures else ""
    return f"""<tr><th scope="row">{escape(finding.attack)}</th><td>{finding.goal}</td><td>{_chip(finding.verdict)}</td>
<td class="number">{score or NOTHING}{interval}</td><td class="number">{shown_score(finding, finding.chance)}</td>
<td class="number">{f"{finding.victims:,}{each}" if finding.victims else NOTHING}</td><td>{_remarks(finding)}</td></tr>
{pictures}"""


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _remarks(finding: Finding) -> str:
    scores = ", ".join(_detail(name, value) for name, value in finding.details.items())
    parts = [f"{scores}." if scores else "", escape(finding.reason)]
    return " ".join(filter(None, parts)) or NOTHING


def _detail(name: str, value: float) -> str:
    label, shown = _DETAILS.get(name, (name.replace("_", " "), shown_loss))
    return f"{escape(label)} {shown(value) if math.isfinite(value) else value}"


def _rounded_down(value: float) -> str:
    """Show a lower bound rounded down, never stronger than it is."""
    return f"{math.floor(round(100 * value, 6)) / 100:.2f}"


_DETAILS: dict[str, tuple[str, Callable[[float], str]]] = {
    "mse": ("mean square error", shown_loss),
    "ssim": ("SSIM", "{:.3f}".format),
    "labels": ("labels found", shown_share),
    "recognised": ("recognised", shown_share),
    "recognised_originals": ("originals recognised", shown_share),
    "failures": ("failures", "{:g}".format),
    "epsilon_lower": ("privacy loss at least", _rounded_down),
    "true_positive_rate": ("true positive rate", shown_share),
}
