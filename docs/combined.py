"""The tables of what works with what, of `sketchfed.testing.combinations`, which tries everything."""

from collections.abc import Callable, Mapping
from functools import cache, partial

from marked import markdown_table

from sketchfed.testing.combinations import FEATURES, GRAPH, Grid, grids

WORKS, NEITHER = "yes", ""


class Notes:
    """Reasons, each with one footnote."""

    def __init__(self, label: str) -> None:
        self._label, self._found = label, dict[str, int]()

    def mark(self, reason: str) -> str:
        return f"[^{self._label}{self._found.setdefault(reason, len(self._found) + 1)}]"

    def lines(self) -> str:
        return "\n".join(f"[^{self._label}{number}]: {reason}" for reason, number in self._found.items())


@cache
def found(name: str) -> Mapping[tuple[str, str], str | None]:
    """What comes of every pair of a table."""
    grid = grids()[name]
    return {cell: grid.tried(*cell) for cell in grid.cells()}


def whole(name: str, label: str, corner: str, *, turned: bool = False) -> str:
    """A cell for each pair. `turned` writes the columns as rows."""
    grid, notes = grids()[name], Notes(label)
    rows, columns = (list(grid.columns), list(grid.rows)) if turned else (list(grid.rows), list(grid.columns))
    lines = [[f"`{row}`" if row in _codes(grid) else row] for row in rows]
    for line, row in zip(lines, rows, strict=True):
        for column in columns:
            cell = (column, row) if turned else (row, column)
            line.append(_cell(found(name)[cell], cell[0], notes))
    heads = [f"`{column}`" if column in _codes(grid) else column for column in columns]
    return f"{markdown_table([corner, *heads], lines)}\n\n{notes.lines()}"


def refused(name: str, label: str) -> str:
    """For each thing, what it does not go with, and that everything else was tried and works."""
    grid, notes = grids()[name], Notes(label)
    lines = []
    for row in grid.rows:
        others = [(other, found(name).get((row, other)) or found(name).get((other, row))) for other in grid.columns]
        listed = [f"{other}{notes.mark(_plain(reason, row))}" for other, reason in others if reason]
        lines.append([row, ", ".join(listed) or "everything works with it"])
    return f"{markdown_table(['', 'is refused with'], lines)}\n\n{notes.lines()}"


def tried() -> str:
    """The number of pairs that were tried."""
    return f"{sum(outcome is not None for name in grids() for outcome in found(name).values()):,}"


def _codes(grid: Grid) -> set[str]:
    """Names that a configuration has."""
    sides = [side for side in (grid.rows, grid.columns) if not side.keys() <= {**FEATURES, **GRAPH}.keys()]
    return {name for side in sides for name in side if " " not in name}


def _cell(reason: str | None, row: str, notes: Notes) -> str:
    if reason is None:
        return NEITHER
    return WORKS if not reason else f"no{notes.mark(_plain(reason, row))}"


def _plain(reason: str, row: str) -> str:
    """A reason that says the same of many rows is one footnote."""
    return reason.replace(f"'{row.partition(',')[0]}'", "'…'")


MADE: Mapping[str, Callable[[], str]] = {
    "combined_algorithms": partial(whole, "algorithms", "a", "", turned=True),
    "combined_codecs": partial(whole, "codecs", "c", "codec"),
    "combined_features": partial(refused, "features", "f"),
    "combined_rules": partial(whole, "rules", "r", "rule"),
    "combined_tried": tried,
}
