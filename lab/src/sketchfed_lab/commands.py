"""`sketchfed reproduce` and `sketchfed bench`. Each imports what it needs when it runs: `sketchfed --help` stays fast."""

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from sketchfed.cli import writable
from sketchfed.errors import InputError, UnknownNameError


def bench(
    name: Annotated[str | None, typer.Argument(help="Which benchmark; without a name they are listed.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes only, half a minute.")] = False,
    out: Annotated[Path, typer.Option(help="Where results and pictures go.")] = Path("runs/bench"),
) -> None:
    """Measure speed as ratios to peers in the same run: `sketchfed bench kernels`."""
    from sketchfed_lab.benchmarks import BENCHMARKS
    from sketchfed_lab.purposes import purposes

    if name is None:
        _print_names("Benchmarks", purposes(BENCHMARKS), "sketchfed bench NAME")
        return
    if name not in BENCHMARKS:
        raise UnknownNameError("benchmark", name, BENCHMARKS)
    import_module(BENCHMARKS[name]).main(folder=writable(out), quick=quick)


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which experiment; without a name they are listed.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where results go. [default: runs/NAME]")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. --set trials=500.")
    ] = None,
) -> None:
    """Measure a table or figure of the papers anew: `sketchfed reproduce table-1`."""
    from sketchfed_lab.experiments import EXPERIMENTS, find, make_settings, recorded_settings
    from sketchfed_lab.purposes import purposes

    if name is None:
        _print_names("Experiments", purposes(EXPERIMENTS), "sketchfed reproduce NAME")
        return
    experiment = find(name)
    chosen = make_settings(experiment, recorded_settings(name) | dict(_parse_setting(text) for text in settings or []))
    experiment.run(chosen, writable(out or Path("runs") / name))


def _parse_setting(text: str) -> tuple[str, object]:
    import tomllib

    key, equals, value = text.partition("=")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"] if equals else None
    except tomllib.TOMLDecodeError:
        raise InputError(f"--set takes KEY=VALUE with a TOML value, got {text!r}. Write --set trials=500.") from None


def _print_names(title: str, known: dict[str, str], usage: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", caption=f"Run one: {usage}", caption_justify="left", show_header=False)
    for name, purpose in known.items():
        table.add_row(f"[bold]{name}", purpose)
    Console().print(table)
