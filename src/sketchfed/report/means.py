"""Codecs compared on one mean, a row each: for a terminal, for a paper and for a program."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from sketchfed.codecs.base import Codec
from sketchfed.codecs.trials import Trials
from sketchfed.report.latex import booktabs
from sketchfed.report.units import shown_loss

HEADINGS = ("codec", "numbers × bits", "error", "predicted", "bytes", "encode, ms", "decode, ms")
NOTHING = "–"


@dataclass(frozen=True)
class MeanRow:
    """A codec, how it differs from its defaults, and what was measured."""

    codec: Codec
    variant: str
    trials: Trials

    @property
    def label(self) -> str:
        return f"{self.codec.name}, {self.variant}" if self.variant else self.codec.name

    @property
    def numbers(self) -> int:
        """How many numbers a packet is planned to carry."""
        return getattr(self.codec, "size", None) or self.codec.dim

    def cells(self) -> list[str]:
        measured = self.trials
        return [
            self.label,
            f"{self.numbers:,} × {measured.bits}",
            with_error(measured.error, measured.standard_error),
            NOTHING if measured.predicted is None else _short(shown_loss(measured.predicted)),
            f"{measured.bytes:,.0f}" if measured.bytes >= 1000 else f"{measured.bytes:.1f}".removesuffix(".0"),
            _milliseconds(measured.encode_seconds),
            _milliseconds(measured.decode_seconds),
        ]


def terminal_table(rows: Sequence[MeanRow], title: str, *, width: int = 80) -> Table:
    """Variants stand below their codec, so that names take little room; columns move together where there is not much of it."""
    headings = [heading.replace(", ", "\n").replace(" ×", "\n×") for heading in HEADINGS]
    lines = [[f"  {row.variant}" if row.variant else row.codec.name, *row.cells()[1:]] for row in rows]
    parts = [heading.split("\n") for heading in headings]
    widest = [max(map(len, [*part, *column])) for part, column in zip(parts, zip(*lines, strict=True), strict=True)]
    gap = 1 if sum(widest) + 2 * len(widest) <= width else 0
    table = Table(box=SIMPLE_HEAD, title=Text(title), title_justify="left", padding=(0, 0, 0, gap), pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "codec" else "right", no_wrap=True)
    for row, (name, *cells) in zip(rows, lines, strict=True):
        table.add_row(Text(name, style="" if row.variant else "bold"), *cells)
    return table


def latex_table(rows: Sequence[MeanRow], caption: str) -> str:
    return booktabs(headings=HEADINGS, rows=[row.cells() for row in rows], alignment="lrrrrrr", caption=caption)


def json_lines(rows: Sequence[MeanRow], facts: Mapping[str, object]) -> str:
    return "".join(json.dumps(_record(row, facts)) + "\n" for row in rows)


def csv_table(rows: Sequence[MeanRow], facts: Mapping[str, object]) -> str:
    records = [_record(row, facts) for row in rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def _record(row: MeanRow, facts: Mapping[str, object]) -> dict[str, object]:
    named = {"codec": row.codec.name, "variant": row.variant, "numbers": row.numbers}
    return named | asdict(row.trials) | dict(facts)


def with_error(value: float, error: float | None) -> str:
    """A value and its standard error, to as many digits as the error is worth.

    >>> with_error(0.61937, 0.0042), with_error(1234.5, 31.0), with_error(0.0012345, 2.04e-5), with_error(0.25, None)
    ('0.6194 ± 0.0042', '1234 ± 31', '1.23e-3 ± 2e-5', '0.250')
    """
    if not error or error < 1e-5 * value or value < 1e-9:
        return _short(shown_loss(value))
    if value < 0.01:
        return f"{_short(f'{value:.2e}')} ± {_short(f'{error:.0e}')}"
    first = -math.floor(math.log10(error))  # its first digit; its second too if that leaves the value four digits
    decimals = max(0, first, min(first + 1, 3 - math.floor(math.log10(value)), 4))
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}" if seconds < 0.1 else f"{1e3 * seconds:,.0f}"


def _short(number: str) -> str:
    """1.5e-03 as 1.5e-3."""
    return number.replace("e-0", "e-").replace("e+0", "e")
