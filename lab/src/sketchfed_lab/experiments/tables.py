"""One table for people: whole as Markdown in a file, and the columns that fit on a terminal."""

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def write_table(path: Path, headings: Sequence[str], lines: Sequence[Sequence[str]], *, printed: Sequence[int]) -> None:
    """Write all columns to the file, and print those whose places are in `printed`."""
    marked = ["| " + " | ".join(line) + " |" for line in [headings, ["---"] * len(headings), *lines]]
    path.write_text("\n".join(marked) + "\n")
    table = Table(*(headings[place] for place in printed), box=SIMPLE_HEAD)
    for line in lines:
        table.add_row(*(line[place] for place in printed))
    Console().print(table)
