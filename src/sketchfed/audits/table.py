"""An audit in a terminal, with one row per defence."""

from collections.abc import Sequence
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from sketchfed.attacks.base import Goal
from sketchfed.audits.findings import AuditRecord, DefenceRecord, Finding
from sketchfed.audits.verdicts import GOALS, INTERRUPTED, NO_PROOF, shown_score, strongest
from sketchfed.report.tables import NOTHING
from sketchfed.report.units import shown_accuracy, shown_bytes, shown_epsilon

_HEADINGS = {"examples": "examples\nPSNR", "steps": "steps\ncosine", "property": "property\nAUC", "members": "members\nAUC"}
_NUMERIC = ("accuracy", "up", "ε")
_STYLES = {"leaks": "bold red", "nothing found": "", "no power": "yellow", "not applicable": "dim"}


def terminal_table(record: AuditRecord, width: int = 100) -> Table:
    """The strongest finding for each goal. If there is little room, verdicts are stacked, and then costs are left out."""
    goals = [goal for goal in GOALS if any(strongest(defence, goal) for defence in record.defences)]
    headings = ["defence", *_NUMERIC, *(_HEADINGS[goal] for goal in goals)]
    rows = _rows(record, goals, stacked=False)
    if not _fits(headings, rows, width, names=14):
        rows = _rows(record, goals, stacked=True)
    if not _fits(headings, rows, width, names=8):
        headings, rows = [headings[0], *headings[3:]], [[row[0], *row[3:]] for row in rows]  # what it cost is on the page
    title = Text(_printable(record.setting))
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1, 0, 0), pad_edge=False)
    for heading in headings:
        justify: Literal["left", "right"] = "right" if heading in _NUMERIC else "left"
        table.add_column(heading, justify=justify, no_wrap=heading != "defence", overflow="fold")
    for row in rows:
        table.add_row(*row)
    claims = [f"{each.name}: ε {each.claim}." for each in record.defences if each.epsilon is not None]
    said = [*claims, NO_PROOF, *([] if record.finished else [INTERRUPTED])]
    table.caption, table.caption_justify = Text("\n".join(map(_printable, said))), "left"
    return table


def _rows(record: AuditRecord, goals: Sequence[Goal], *, stacked: bool) -> list[list[Text]]:
    return [[*_facts(each), *(_cell(strongest(each, goal), stacked) for goal in goals)] for each in record.defences]


def _fits(headings: Sequence[str], rows: Sequence[Sequence[Text]], width: int, *, names: int) -> bool:
    """Whether everything has its full width, except for names, which can be folded to this width."""
    columns = zip(headings, *([cell.plain for cell in row] for row in rows), strict=True)
    first, *others = (max(cell_len(line) for cell in column for line in cell.split("\n")) for column in columns)
    return min(first, names) + sum(others) + 2 * len(headings) <= width


def _facts(defence: DefenceRecord) -> list[Text]:
    accuracy = NOTHING if defence.accuracy is None else shown_accuracy(defence.accuracy)
    epsilon = "none" if defence.epsilon is None else shown_epsilon(defence.epsilon)
    return [Text(_printable(text)) for text in (defence.name, accuracy, shown_bytes(defence.uplink_bytes), epsilon)]


def _cell(finding: Finding | None, stacked: bool) -> Text:
    """The verdict, the score, and for examples the role of the attacker."""
    if finding is None:
        return Text("not\ntried" if stacked else "not tried", style="dim")
    who = finding.role if finding.goal == "examples" and finding.score is not None else ""
    verdict, who = (text.replace(" ", "\n") if stacked else text for text in (finding.verdict, who))
    text = Text(verdict, style=_STYLES[finding.verdict])
    rest = [] if finding.score is None else [shown_score(finding, finding.score), *who.split("\n")]
    return text.append("".join(f"\n{_printable(line)}" for line in rest if line), style="not bold default")


def _printable(text: str) -> str:
    """Remove everything that could control the terminal."""
    return "".join(char if char.isprintable() else "�" for char in text)
