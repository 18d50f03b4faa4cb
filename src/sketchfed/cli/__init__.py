"""The command line. Each command imports what it needs when it runs, so that `--help` answers at once.

Other distributions add commands through entry points of the group `sketchfed.commands` (`extensions`).
"""

import os
import sys
from typing import Annotated

import typer

from sketchfed.cli import audit, catalogue, flower, mean, plan, policy, report, run
from sketchfed.cli.extensions import ExtensibleGroup
from sketchfed.cli.files import writable
from sketchfed.errors import RankError, SketchfedError
from sketchfed.version import __version__

__all__ = ["app", "main", "writable"]

app = typer.Typer(
    cls=ExtensibleGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Federated learning in which clients speak in sketches: "
    "random linear maps that every party rebuilds from a shared seed.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sketchfed {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command(name="run")(run.run)
app.command(name="audit")(audit.audit)
app.command(name="report")(report.report)
app.add_typer(plan.app, name="plan")
app.add_typer(flower.app, name="flower")
app.add_typer(policy.app, name="policy")
app.command(name="mean")(mean.mean)
app.command(name="list")(catalogue.parts)
app.command()(catalogue.sketches)


def main() -> None:
    """Run the command line. Refusals of sketchfed are one sentence on standard error and exit code 2, without a traceback."""
    try:
        app()
    except SketchfedError as error:
        print(f"sketchfed: {error}", file=sys.stderr)
        if isinstance(error, RankError):  # threads may wait for the rank that is gone, for ever
            sys.stderr.flush()
            os._exit(2)
        sys.exit(2)
