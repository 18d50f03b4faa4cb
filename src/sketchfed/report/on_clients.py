"""The table of a report about metrics on each client's own data."""

from collections.abc import Callable, Sequence
from html import escape

from sketchfed.report.groups import Group, Spread
from sketchfed.report.loading import ClientFigures, RunRecord
from sketchfed.report.units import shown_accuracy, shown_loss

_NUMERIC = ("mean", "worst tenth", "spread", "clients")
_NOTE = """When clients were last evaluated. Each client counts the same, however many examples it has. The worst tenth are the
clients with the largest values if the metric is a loss or an error, and those with the smallest values otherwise: the table has
the mean over them. The spread is the standard deviation between clients."""


def on_clients(groups: Sequence[Group], marks: Sequence[str]) -> str:
    """A row for each run and metric. Empty if no run was evaluated on clients. `marks` is HTML to put before the labels."""
    rows = [row for group, mark in zip(groups, marks, strict=True) for row in _rows(group, mark)]
    if not rows:
        return ""
    columns = "".join(f'<th scope="col" class="number">{heading}</th>' for heading in _NUMERIC)
    ranges = " Of several seeds: the mean." if any(len(group.records) > 1 for group in groups) else ""
    return f"""<h2 id="on-clients">On each client's own data</h2>
<div class="scroll" role="region" tabindex="0" aria-labelledby="on-clients">
<table>
<thead><tr><th scope="col">run</th><th scope="col">metric</th>{columns}<th scope="col">measured on</th></tr></thead>
<tbody>
{"".join(rows)}</tbody>
</table>
</div>
<p class="note">{_NOTE}{ranges}</p>"""


def _rows(group: Group, mark: str) -> list[str]:
    lasts = [record.last_on_clients for record in group.records]
    names = dict.fromkeys(name for last in lasts if last is not None for name in last.on_clients)
    scored = group.spread(lambda record: None if record.last_on_clients is None else record.last_on_clients.clients_scored)
    count = "" if scored is None else f"{scored.low:,.0f}" + (f"–{scored.high:,.0f}" if scored.low < scored.high else "")
    made: list[str] = []
    for name in names:
        shown = shown_accuracy if name == "accuracy" else shown_loss
        figures = [group.spread(figure_on_clients(name, part)) for part in ("mean", "worst", "spread")]
        cells = [*(_shown(spread, shown) for spread in figures), count]
        label = f'<th scope="row">{mark}{escape(group.label)}</th>' if not made else '<th scope="row"></th>'
        numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        made.append(f"<tr>{label}<td>{escape(name)}</td>{numbers}<td>{_measured_on(group.first)}</td></tr>\n")
    return made


def figure_on_clients(name: str, part: str) -> Callable[[RunRecord], float | None]:
    """One figure of a metric, when the clients of a run were last evaluated."""

    def of(record: RunRecord) -> float | None:
        figures: ClientFigures | None = None if record.last_on_clients is None else record.last_on_clients.on_clients.get(name)
        return None if figures is None else float(getattr(figures, part))

    return of


def _shown(spread: Spread | None, shown: Callable[[float], str]) -> str:
    return "" if spread is None else escape(shown(spread.mean))


def _measured_on(record: RunRecord) -> str:
    """The data that clients were evaluated on, as far as the configuration says it."""
    table = record.config.get("data")
    data = table if isinstance(table, dict) else {}
    if data.get("client_validation") is not None:
        return "held-out examples"
    return "data as passed" if data.get("name") == "given" else "training examples"
