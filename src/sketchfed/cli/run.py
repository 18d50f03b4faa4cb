"""`sketchfed run`: train, watch, compare."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sketchfed.cli.files import writable
from sketchfed.cli.ranks import between_ranks, lead_ranks, serve_clients
from sketchfed.errors import DivergedError, InputError

if TYPE_CHECKING:
    from sketchfed.config import Config
    from sketchfed.runs import Run

EMBEDDED: dict[str, dict[str, Any]] = {
    "fedavg": {"algorithm": {"name": "fedavg"}},
    "sketch-tenth": {"algorithm": {"name": "iterative"}, "sketch": {"ratio": 0.1}},
    "sketch-hundredth": {"algorithm": {"name": "iterative"}, "sketch": {"ratio": 0.01, "bits": 4}},
}
"""What runs when no configuration is given: the same work on the embedded digits, with ever fewer bytes."""


def run(
    configs: Annotated[
        list[Path] | None, typer.Argument(metavar="[CONFIG]...", help="TOML files; with --resume also folders of runs.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Change a setting, e.g. algorithm.rounds=20.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with runs that were interrupted, bit for bit.")] = False,
    device: Annotated[
        str | None, typer.Option(help="Where training, encoding and decoding run: auto, cpu, cuda, cuda:1 or mps.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the folders of runs go.")] = Path("runs"),
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write what TensorBoard reads, too.")] = False,
) -> None:
    """Train across clients that send sketches, and see accuracy against measured bytes.

    Without a CONFIG: handwritten digits, embedded, three ways: whole updates, a sketch of a tenth, and one of a hundredth
    at 4 bits a number. With several, all are run and compared. A minimal CONFIG:

        [data]
        name = "mnist"          # found through SKETCHFED_DATA
        clients = 100

        [algorithm]
        name = "iterative"      # or fedavg, fetchsgd
        participation = 0.1
        batch = 10

        [sketch]
        ratio = 0.01            # numbers sent / parameters
        bits = 4

    With [privacy] noise is calibrated for an ε, and with [secure] the server sees sums only: examples/private-secure.toml.
    Every key but the names has a default; docs/running.md has them all.
    """
    from sketchfed.rounds.launch import Launch
    from sketchfed.rounds.rank_hub import said_goodbye
    from sketchfed.runs.folder import CONFIG, RunFolder, free_path, numbered
    from sketchfed.runs.starting import elsewhere

    changes = settings or []
    launch = Launch.of()
    if launch is not None and not launch.leads:
        # A run that is resumed has its configuration at rank 0.
        given = None if resume else [_named(path, changes) for path in configs or []] or _embedded(changes)
        serve_clients(launch, given, device=device)
        return
    engine = None
    if resume:
        engine = _engine_of(changes)
        folders = _to_resume(configs or [], writable(out))
        plans = [(folder, None if (folder / CONFIG).exists() else config) for folder, config in folders]
        report = out / "report.html" if len(plans) > 1 else plans[0][0] / "report.html"
    elif configs:
        loaded = [_named(path, changes) for path in configs]
        writable(out)
        plans = []
        for config in loaded:
            plans.append((free_path(out, config.name, taken=[folder for folder, _ in plans]), config))
        report = out / "report.html" if len(plans) > 1 else plans[0][0] / "report.html"
    else:
        group = next(path for path in numbered(writable(out), "digits") if not path.exists())
        plans = [(group / config.name, config) for config in _embedded(changes)]
        report = group / "report.html"
    if launch is not None and launch.size > 1:
        chosen = [RunFolder.config(folder) if config is None else config for folder, config in plans]
        lead_ranks(launch, [elsewhere(config, engine=engine) for config in chosen])
    run_all(plans, report, tensorboard=tensorboard, device=device, engine=engine)
    said_goodbye()


def _embedded(changes: Sequence[str]) -> "list[Config]":
    from sketchfed.config import load_config

    shared = {"algorithm": {"rounds": 100, "local_steps": 5, "local_rate": 0.5}}
    tables = {name: {**own, "algorithm": shared["algorithm"] | own["algorithm"]} for name, own in EMBEDDED.items()}
    return [load_config({"name": name, **table}, changes) for name, table in tables.items()]


def run_all(
    plans: "Sequence[tuple[Path, Config | None]]",
    report: Path,
    *,
    tensorboard: bool,
    device: str | None = None,
    engine: str | None = None,
) -> None:
    """Run or resume each plan with a progress bar, then print the table and write the report.

    They run on `device` and `engine`, or else on those of their configuration.
    If a run diverges, the others still run. It is reported at the end.
    """
    from rich.console import Console

    from sketchfed.cli.progress import Bars
    from sketchfed.report.loading import read
    from sketchfed.report.page import write_report
    from sketchfed.report.tables import terminal_table, write_latex
    from sketchfed.runs.tensorboard import writer

    if tensorboard:
        writer()  # refuses now if it is not installed
    console = Console()
    diverged: dict[Path, DivergedError] = {}
    with Bars(console, [folder for folder, _ in plans]) as bars:
        for folder, config in plans:
            try:
                bars.finish(folder, _one(folder, config, bars, tensorboard=tensorboard, device=device, engine=engine))
            except DivergedError as error:
                diverged[folder] = error
    records = [read(folder) for folder, _ in plans if folder not in diverged]
    if not records:
        raise next(iter(diverged.values()))
    console.print(terminal_table(records, width=console.width, titled=False))
    for folder, _ in plans:
        if folder not in diverged and (said := between_ranks(folder)):
            console.print(said, highlight=False, markup=False, soft_wrap=True)
    write_latex(records, report.with_name("table.tex"))
    console.print(f"report: {write_report(records, report)}", soft_wrap=True, markup=False)
    for folder, reason in diverged.items():
        raise DivergedError(f"{folder.name}: {reason}")


def _one(
    folder: Path, config: "Config | None", bars: Any, *, tensorboard: bool, device: str | None, engine: str | None
) -> "Run":
    from sketchfed.runs.folder import RunFolder
    from sketchfed.runs.starting import elsewhere, prepare, reopen

    chosen = RunFolder.config(folder) if config is None else config
    if config is not None:
        config = elsewhere(config, device=device, engine=engine)
    if chosen.engine.name == "ranks":
        bars.wait(folder, "waiting for the other ranks")
    if chosen.engine.name == "flower":
        bars.wait(folder, f"waiting for {chosen.data.clients or 'the'} nodes at {chosen.engine.address}")
    loop = reopen(folder, device=device, engine=engine) if config is None else prepare(config, folder=folder)
    bars.begin(folder, loop)
    watch = bars.watcher(folder)
    if not tensorboard:
        return loop.finish(watch)
    from sketchfed.runs.tensorboard import Board

    with Board(folder / "tensorboard", after=loop.round) as board:

        def watch_both(line: dict[str, Any]) -> None:
            watch(line)
            board(line)

        return loop.finish(watch_both)


def _engine_of(changes: Sequence[str]) -> str | None:
    """The engine on which runs are resumed, if --set names one. Nothing else may change."""
    engine = None
    for text in changes:
        key, _, value = text.partition("=")
        if key.strip() != "engine.name":
            raise InputError(
                "--set and --resume do not go together: a run goes on with the settings it began with. Remove --set. Only "
                "engine.name may change, between local and ranks."
            )
        engine = value.strip().strip("\"'")
    return engine


def _to_resume(given: Sequence[Path], out: Path) -> "list[tuple[Path, Config | None]]":
    """The folders to continue: the given ones, those of the given configurations, or all unfinished ones below `out`."""
    from sketchfed.runs.folder import CONFIG, is_finished, latest_path

    if given:
        found: list[tuple[Path, Config | None]] = []
        for path in given:
            config = None if path.is_dir() else _named(path)
            found.append((path if config is None else latest_path(out, config.name), config))
        return found
    folders = sorted(file.parent for file in out.glob(f"**/{CONFIG}") if not is_finished(file.parent))
    if not folders:
        raise InputError(f"no interrupted run below {out}. Name the folder of a run, or leave out --resume.")
    return [(folder, None) for folder in folders]


def _named(path: Path, changes: Sequence[str] = ()) -> "Config":
    """A configuration with a name. By default this is the name of its file."""
    from sketchfed.config import load_config

    config = load_config(path, changes)
    return replace(config, name=config.name or path.stem)
