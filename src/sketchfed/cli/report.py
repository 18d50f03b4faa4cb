"""`sketchfed report`: the page and the tables of existing runs."""

from pathlib import Path
from typing import Annotated

import typer

from sketchfed.cli.files import writable


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[
        Path | None, typer.Option(help="The HTML file. [default: report.html in RUN, or in the folder of several]")
    ] = None,
) -> None:
    """Compare runs on one HTML page that works offline, with charts, exact configurations and a LaTeX table to paste."""
    from rich.console import Console

    from sketchfed.report.loading import read
    from sketchfed.report.page import write_report
    from sketchfed.report.tables import terminal_table, write_latex

    console = Console()
    records = [read(run) for run in runs]
    path = out or (runs[0] if len(runs) == 1 else runs[0].parent) / "report.html"
    writable(path.parent)
    console.print(terminal_table(records, width=console.width))
    console.print(f"LaTeX:  {write_latex(records, path.with_name('table.tex'))}", soft_wrap=True, markup=False)
    console.print(f"report: {write_report(records, path)}", soft_wrap=True, markup=False)
