"""One table for people: whole as Markdown in a file, and the columns that fit on a terminal."""

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def write_table(path: Path, headings: Sequence[str], lines: Sequence[Sequence[str]], *, printed: Sequence[int]) -> None:
    """Write all columns to the file, and print those whose places are in `printed`."""
    path.write_text(markdown(headings, lines))
    print_table([headings[place] for place in printed], [[line[place] for place in printed] for line in lines])


def markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "".join("| " + " | ".join(line) + " |\n" for line in [headings, ["---"] * len(headings), *lines])


def print_table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print a table on the terminal."""
    table = Table(*headings, box=SIMPLE_HEAD)
    for line in lines:
        table.add_row(*line)
    Console().print(table)


def shown_size(inverse: int) -> str:
    """The share of an update's numbers that is sent, from dim/size."""
    return "1" if inverse == 1 else f"1/{inverse}"
