"""What there is: sketch families, benchmarks and experiments."""

from pathlib import Path
from typing import Annotated

import typer

from sketchfed.cli.files import writable
from sketchfed.errors import InputError, UnknownNameError


def sketches(
    dim: Annotated[int, typer.Option(help="Coordinates of an update, for the columns with numbers.")] = 1_000_000,
    size: Annotated[int, typer.Option(help="Coefficients of its sketch.")] = 10_000,
) -> None:
    """The sketch families: what each is, its variance parameter α, its cost.

    α bounds the second moment, E‖RᵀRh‖² ≤ (1 + α)‖h‖². Less is better, and dim/size − 1 is the least possible.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from sketchfed import PublicSeed
    from sketchfed.sketches import SKETCHES

    table = Table(box=SIMPLE_HEAD, title=f"Sketch families; exact α at dim {dim:,} and size {size:,}", title_justify="left")
    for heading in ("name", "what it is", "published α", "exact α", "cost"):
        table.add_column(heading, justify="right" if heading == "exact α" else "left")
    for name, family in SKETCHES.items():
        sketch = family(dim=dim, size=size, seed=PublicSeed(0))
        table.add_row(f"[bold]{name}", family.summary, family.alpha_formula, f"{sketch.exact_alpha:,.2f}", family.cost)
    Console().print(table)


def bench(
    name: Annotated[str | None, typer.Argument(help="Which benchmark; without a name they are listed.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes only, half a minute.")] = False,
    out: Annotated[Path, typer.Option(help="Where results and pictures go.")] = Path("runs/bench"),
) -> None:
    """Measure speed as ratios to peers in the same run: `sketchfed bench kernels`."""
    from importlib.util import module_from_spec, spec_from_file_location

    from sketchfed.shipped import purpose, shipped

    files = {file.stem: file for file in sorted(shipped("benchmarks").glob("*.py")) if "def main(" in file.read_text()}
    known = {stem: purpose(file) for stem, file in files.items()}
    if name is None:
        _print_names("Benchmarks", known, "sketchfed bench NAME")
        return
    if name not in known:
        raise UnknownNameError("benchmark", name, known)
    spec = spec_from_file_location(f"sketchfed_benchmark_{name}", files[name])
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(folder=writable(out), quick=quick)


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which experiment; without a name they are listed.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where results go. [default: runs/NAME]")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. --set trials=500.")
    ] = None,
) -> None:
    """Measure a table or figure of the papers anew: `sketchfed reproduce table-1`."""
    from sketchfed.experiments import find, make_settings, purposes, recorded_settings

    if name is None:
        _print_names("Experiments", purposes(), "sketchfed reproduce NAME")
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


def _print_names(title: str, purposes: dict[str, str], usage: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", caption=f"Run one: {usage}", caption_justify="left", show_header=False)
    for name, purpose in purposes.items():
        table.add_row(f"[bold]{name}", purpose)
    Console().print(table)
