"""The comparison of runs, a row each: for a terminal, for a paper and for a page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from sketchfed.errors import InputError
from sketchfed.report.files import write_whole
from sketchfed.report.groups import Group, Spread, group_seeds
from sketchfed.report.latex import booktabs
from sketchfed.report.loading import NodeFigures, RunRecord
from sketchfed.report.on_clients import figure_on_clients
from sketchfed.report.units import shown_accuracy, shown_bytes, shown_epsilon, shown_loss, shown_seconds, shown_share

NOTHING = "—"
WIDE = 110
WIDEST = 140
_ONLY_WHEN_WIDE = ("best", "up/client", "down/client", "per node", "per edge", "captured")
_ONLY_WITH_A_SERVER_OR_WIDE = ("rounds", "time")
_ONLY_WHEN_WIDEST = ("on clients", "worst tenth")
BYTES_MEASURED = "Bytes were counted at the serializer, headers included; both directions; total over all clients."
CAPTURED_MEASURED = (
    "Captured is the share of the gradient's energy that a round's packets carry; measured on training data without noise, it "
    "is for the operator of a simulation, not for publication under a privacy claim."
)
SERVERLESS_MEASURED = (
    "Without a server, accuracy is that of the mean of the nodes' models, and farthest is that of the node whose model is "
    "farthest from the mean."
)
SERVERLESS_BYTES = (
    "The total then counts each message once, whether or not it arrived. “per node” is what the node sent that sent the most, "
    "and “per edge” what passed over the edge that carried the most, in both directions. Consensus is the root mean square "
    "distance of the models from their mean."
)


@dataclass(frozen=True)
class Cell:
    """A value, and in smaller type what qualifies it."""

    text: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.detail})" if self.detail else self.text


@dataclass(frozen=True)
class Column:
    """A heading, what it means, and how a group's cell is made; None is an empty cell."""

    heading: str
    meaning: str
    cell: Callable[[Group], Cell | None]
    numeric: bool = True
    phrase: str = "{}"  # how the cell reads outside of its column


@dataclass(frozen=True)
class Comparison:
    """Groups of runs beside each other, and what all of them share: that is said once, in `setting`."""

    groups: Sequence[Group]
    columns: Sequence[Column]
    setting: str

    @property
    def claims(self) -> list[str]:
        """What each ε in the table is about: without that it would be a number without a unit."""
        private = [group for group in self.groups if _epsilon(group)]
        texts = {group.label: group.first.summary.privacy or "of an unrecorded claim" for group in private}
        if len(set(texts.values())) == 1:
            return [f"ε {next(iter(texts.values()))}."]
        return [f"{label}: ε {text}." for label, text in texts.items()]

    @property
    def captured(self) -> list[str]:
        """What has to be said of a column of captured energy; nothing if there is none."""
        return [f"{CAPTURED_MEASURED} In the table: the mean over its rounds."] if _CAPTURED in self.columns else []

    @property
    def serverless(self) -> list[str]:
        """What has to be said of runs without a server; nothing if there are none."""
        return [] if all(group.served for group in self.groups) else [SERVERLESS_MEASURED, SERVERLESS_BYTES]

    def cells(self) -> list[list[Cell]]:
        return [[column.cell(group) or Cell(NOTHING) for column in self.columns] for group in self.groups]


def compare(records: Sequence[RunRecord]) -> Comparison:
    """The rows and columns that these runs call for: ε only where a run claims one, loss where accuracy is missing."""
    if not records:
        raise InputError("there are no runs to report on. Give at least one folder that `sketchfed run` wrote.")
    groups = group_seeds(records)
    shared = [column for column in _SETTINGS if len({str(column.cell(group)) for group in groups}) == 1]
    apart = [column for column in _SETTINGS if column not in shared]
    results = [column for column in _RESULTS if any(column.cell(group) for group in groups)]
    if all(group.served for group in groups):
        results = [column for column in results if column is not _TOTAL]
    if all(group.spread(lambda record: record.final_accuracy) for group in groups if any(point.loss for point in group.points)):
        results = [column for column in results if "loss" not in column.heading]
    setting = " · ".join(column.phrase.format(column.cell(groups[0])) for column in shared)
    return Comparison(groups, [_LABEL, *apart, *results], setting)


def terminal_table(records: Sequence[RunRecord], *, width: int = 80, titled: bool = True) -> Table:
    """For the end of `sketchfed run`, with the columns that fit; texts from files are shown as they are, without markup."""
    comparison = compare(records)
    table = Table(box=SIMPLE_HEAD, title=Text(comparison.setting) if titled else None, title_justify="left")
    left_out = (*(_ONLY_WHEN_WIDE if width < WIDE else ()), *(_ONLY_WHEN_WIDEST if width < WIDEST else ()))
    left_out += _ONLY_WITH_A_SERVER_OR_WIDE if comparison.serverless and width < WIDE else ()
    shown = [place for place, column in enumerate(comparison.columns) if column.heading not in left_out]
    for place in shown:
        column = comparison.columns[place]
        table.add_column(column.heading, justify="right" if column.numeric else "left", no_wrap=column.numeric)
    for cells in comparison.cells():
        table.add_row(*(Text("\n".join(filter(None, (cells[place].text, cells[place].detail)))) for place in shown))
    if said := [*comparison.claims, *comparison.serverless[:1], *(comparison.captured if width >= WIDE else [])]:
        table.caption, table.caption_justify = Text("\n".join(said)), "left"
    return table


def latex_table(records: Sequence[RunRecord]) -> str:
    """A booktabs table to paste into a paper, with its caption in a comment."""
    comparison = compare(records)
    caption = f"{comparison.setting}. {BYTES_MEASURED}"
    if any(len(group.records) > 1 for group in comparison.groups):
        caption += " Of several seeds: mean, and least to most in parentheses."
    caption = " ".join([caption, *comparison.serverless, *comparison.claims, *comparison.captured])
    return booktabs(
        headings=[column.heading for column in comparison.columns],
        rows=[[str(cell) for cell in cells] for cells in comparison.cells()],
        alignment="".join("r" if column.numeric else "l" for column in comparison.columns),
        caption=caption,
    )


def write_latex(records: Sequence[RunRecord], path: Path) -> Path:
    """Write `latex_table` to a file, such as a run's table.tex."""
    return write_whole(path, latex_table(records))


def html_table(comparison: Comparison, marks: Sequence[str] | None = None) -> str:
    """The table for a page, all texts escaped; `marks` is HTML to put before the labels."""
    head = "".join(
        f'<th scope="col"{_numeric(column)} title="{escape(column.meaning)}">{escape(column.heading)}</th>'
        for column in comparison.columns
    )
    body = ""
    for row, cells in enumerate(comparison.cells()):
        label, *others = zip(comparison.columns, cells, strict=True)
        body += f'<tr><th scope="row">{marks[row] if marks else ""}{_html(label[1])}</th>'
        body += "".join(f"<td{_numeric(column)}>{_html(cell)}</td>" for column, cell in others) + "</tr>\n"
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>"


def _numeric(column: Column) -> str:
    return ' class="number"' if column.numeric else ""


def _html(cell: Cell) -> str:
    return escape(cell.text) + (f" <small>{escape(cell.detail)}</small>" if cell.detail else "")


def _ranged(group: Group, of: Callable[[RunRecord], float | None], shown: Callable[[float], str]) -> Cell | None:
    """The mean over a group, and its range if the runs differ in what is shown."""
    spread = group.spread(of)
    if spread is None:
        return None
    low, high = shown(spread.low), shown(spread.high)
    return Cell(shown(spread.mean), f"{low}–{high}" if low != high else "")


def _mean(spread: Spread | None, shown: Callable[[float], str]) -> Cell | None:
    return Cell(shown(spread.mean)) if spread else None


def _moved(of: Callable[[RunRecord], int]) -> Callable[[Group], Cell | None]:
    """Bytes of a whole run with a server."""
    return _only(lambda group: group.served, _sum(of))


def _sum(of: Callable[[RunRecord], int]) -> Callable[[Group], Cell | None]:
    return lambda group: _mean(group.spread(lambda record: of(record) if record.metrics else None), shown_bytes)


def _only(applies: Callable[[Group], bool], cell: Callable[[Group], Cell | None]) -> Callable[[Group], Cell | None]:
    """A cell that is empty for all other groups."""
    return lambda group: cell(group) if applies(group) else None


def _apart(of: Callable[[NodeFigures], float | None], shown: Callable[[float], str]) -> Callable[[Group], Cell | None]:
    """What nodes without a server measured after the last round."""
    return lambda group: _ranged(group, lambda record: None if record.apart is None else of(record.apart), shown)


def _farthest(group: Group) -> Cell | None:
    """The accuracy of the node that is farthest from the mean, or else its loss."""
    for name, shown in (("farthest_accuracy", shown_accuracy), ("farthest_loss", shown_loss)):
        of = partial(_last_apart, name)
        if cell := _ranged(group, of, shown):
            return cell
    return None


def _last_apart(name: str, record: RunRecord) -> float | None:
    found = record.last_apart
    return None if found is None else getattr(found, name)


def _each(of: Callable[[RunRecord], int]) -> Callable[[Group], Cell | None]:
    """Bytes of one client in one round, on average: all bytes over how often a client took part."""
    return _only(
        lambda group: group.served,
        lambda group: _mean(
            group.spread(lambda record: of(record) / record.participations if record.participations else None), shown_bytes
        ),
    )


def _on_clients(group: Group, part: str) -> Cell | None:
    """The accuracy on clients, or else the loss."""
    for name, shown in (("accuracy", shown_accuracy), ("loss", shown_loss)):
        if cell := _ranged(group, figure_on_clients(name, part), shown):
            return cell
    return None


def _epsilon(group: Group) -> Cell | None:
    """The most that any run spent."""
    spread = group.spread(lambda record: record.epsilon)
    return Cell(shown_epsilon(spread.high)) if spread else None


_LABEL = Column("run", "What was run", lambda group: Cell(group.label, group.note), numeric=False)
_SETTINGS = (
    Column("data", "Data set", lambda group: Cell(group.first.summary.data), numeric=False),
    Column(
        "model",
        "Model and number of parameters",
        lambda group: Cell(group.first.summary.model, f"{group.first.summary.dim:,} parameters"),
        numeric=False,
    ),
    Column("clients", "Number of clients", lambda group: Cell(f"{group.first.summary.clients:,}"), phrase="{} clients"),
)
_CAPTURED = Column(
    "captured",
    "Share of the gradient's energy that the packets carry, mean over the rounds that were scored",
    lambda group: _ranged(group, lambda record: record.mean_captured, shown_share),
)
_TOTAL = Column("total", "All messages together, each counted once", _sum(lambda record: record.total_bytes))
_RESULTS = (
    Column(
        "accuracy", "When last evaluated", lambda group: _ranged(group, lambda record: record.final_accuracy, shown_accuracy)
    ),
    Column("best", "Best accuracy", lambda group: _ranged(group, lambda record: record.best_accuracy, shown_accuracy)),
    Column(
        "loss", "Held-out loss when last evaluated", lambda group: _ranged(group, lambda record: record.final_loss, shown_loss)
    ),
    Column("least loss", "Best held-out loss", lambda group: _ranged(group, lambda record: record.best_loss, shown_loss)),
    Column("farthest", "Of the node whose model is farthest from the mean, when last evaluated", _farthest),
    Column("consensus", "Distance of the nodes' models from their mean", _apart(lambda apart: apart.consensus, shown_loss)),
    Column("on clients", "On each client's own data, mean over clients", lambda group: _on_clients(group, "mean")),
    Column("worst tenth", "On each client's own data, mean over the worst tenth", lambda group: _on_clients(group, "worst")),
    Column("rounds", "Last round", lambda group: _ranged(group, lambda record: record.rounds, "{:,.0f}".format)),
    Column("up", "From all clients to the server, in all", _moved(lambda record: record.uplink_bytes)),
    Column("down", "From the server to all clients, in all", _moved(lambda record: record.downlink_bytes)),
    Column("up/client", "Up, for one client that takes part in one round", _each(lambda record: record.uplink_bytes)),
    Column("down/client", "Down, for one client that takes part in one round", _each(lambda record: record.downlink_bytes)),
    _TOTAL,
    Column("per node", "Sent by the node that sent the most", _apart(lambda apart: apart.node_bytes, shown_bytes)),
    Column("per edge", "Both directions of the edge with the most", _apart(lambda apart: apart.edge_bytes, shown_bytes)),
    Column("gone", "Nodes that were missing at the end", _apart(lambda apart: apart.gone or None, "{:,.0f}".format)),
    Column("ε", "Privacy spent, rounded up", _epsilon),
    _CAPTURED,
    Column(
        "time",
        "Since the start",
        lambda group: _mean(group.spread(lambda record: record.seconds if record.metrics else None), shown_seconds),
    ),
)
