"""The page of an audit: one HTML file without scripts or external files, for privacy officers and engineers."""

from html import escape
from pathlib import Path

from sketchfed.audits import explanations, sections
from sketchfed.audits.findings import AuditRecord
from sketchfed.audits.verdicts import INTERRUPTED, headline
from sketchfed.report.document import document, written_by
from sketchfed.report.files import write_whole

_CSS = Path(__file__).with_name("audit.css")
_TITLE = "Privacy audit"


def write_page(record: AuditRecord, path: Path) -> Path:
    """Write the page of this audit. Equal records give equal files."""
    body = [
        f"<h1>{_TITLE}</h1>",
        f'<p class="setting">{escape(record.setting)}</p>',
        "" if record.finished else f'<p class="interrupted" role="note">{INTERRUPTED}</p>',
        *(f'<p class="headline">{escape(sentence)}</p>' for sentence in headline(record)),
        sections.overview(record) if record.defences else "",
        sections.findings(record) if record.defences else "",
        explanations.who_sees_what(),
        explanations.claims(),
        explanations.how_to_read(),
    ]
    styles = _CSS.read_text(encoding="utf-8")
    return write_whole(path, document(_TITLE, body, footer=_footer(record), styles=styles))


def _footer(record: AuditRecord) -> str:
    return f"""<p>Audited by sketchfed {escape(record.version)} with seed {record.seed}. Run it again:</p>
<pre class="command">sketchfed audit --seed {record.seed}</pre>
<p>{written_by()}</p>"""
