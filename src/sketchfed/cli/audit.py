"""`sketchfed audit`: attack what was really sent."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sketchfed.cli.files import writable
from sketchfed.errors import InputError

if TYPE_CHECKING:
    from sketchfed.audits.running import Subject


def audit(
    subjects: Annotated[
        list[Path] | None, typer.Argument(metavar="[CONFIG|RUN]...", help="TOML files, or folders of runs.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Change a setting of every CONFIG.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the audit. [default: audits/NAME]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an audit that was interrupted; needs --out.")] = False,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal audits.", min=0)] = 0,
    victims: Annotated[int, typer.Option(help="Updates whose examples are looked for.", min=1)] = 6,
    iterations: Annotated[int, typer.Option(help="Of gradient matching.", min=1)] = 250,
    canaries: Annotated[int, typer.Option(help="Wrongly labelled examples in the data; 0 for none.", min=0)] = 60,
    image: Annotated[
        str | None, typer.Option(metavar="C,H,W", help="Channels, height and width of examples that are images laid out flat.")
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Try this attack, and others only if named too; `sketchfed list attacks` has them."),
    ] = None,
    processes: Annotated[int, typer.Option(help="Ways to train that are audited at a time.", min=1)] = 2,
) -> None:
    """Attack what clients really send, and see what an adversary gets back.

    Without an argument: handwritten digits, embedded, trained ten ways: whole updates, Top-k, EDEN, sketches of several
    sizes, double-blind learning, sketches with noise, and with noise and secure sums. Each is attacked from every view: the
    server, whoever reads the network, a client, two clients together. It takes some minutes on two cores.

    With a CONFIG its own model and data are trained and attacked; with a RUN, what it sent: record it with `[engine]` `record =
    true`, or it is trained again. The undefended way to train is always added: an attack that fails there has no power, and
    its failure elsewhere says nothing.

    Attacks work on updates of at most 8 examples. For the worst case say: --set algorithm.local_steps=1 --set algorithm.batch=1
    """
    from rich.console import Console

    from sketchfed.audits.defence import Effort
    from sketchfed.audits.defences import embedded
    from sketchfed.audits.running import PAGE, AuditTerms, Subject, audited
    from sketchfed.audits.table import terminal_table
    from sketchfed.runs.folder import numbered

    if resume and out is None:
        raise InputError("--resume goes on with the audit in --out. Name that folder.")
    effort = Effort(victims=victims, iterations=iterations, canaries=canaries)
    terms = AuditTerms(seed=seed, effort=effort, image=_shape(image), attacks=tuple(attack or ()))
    if subjects:
        chosen = _subjects(subjects, settings or [])
        name = chosen[-1].name
    else:
        if settings:
            raise InputError("--set changes a CONFIG, and none was named. The embedded audit has settings of its own.")
        chosen, name = [Subject(name=name, config=config) for name, config in embedded(seed).items()], "digits"
    folder = out or next(path for path in numbered(writable(Path("audits")), name) if not path.exists())
    if out is not None and not resume and (out / PAGE).exists():
        raise InputError(f"{out} holds an audit already. Go on with it by --resume, or choose another folder.")
    writable(folder)
    console = Console()
    try:
        with _Bars(console, chosen) as bars:
            record = audited(chosen, terms, processes=processes, folder=folder, resume=resume, on_stage=bars)
    except KeyboardInterrupt:
        console.print(f"interrupted: what is finished is in {folder}; go on with --resume --out {folder}", soft_wrap=True)
        raise typer.Exit(130) from None
    console.print(terminal_table(record, width=console.width))
    console.print(f"audit: {folder / PAGE}", soft_wrap=True, markup=False)


def _subjects(paths: Sequence[Path], changes: Sequence[str]) -> "list[Subject]":
    """What is named, and the undefended run next to it."""
    from sketchfed.audits.evidence import recorded_run
    from sketchfed.audits.running import Subject, subjects_of
    from sketchfed.config import load_config
    from sketchfed.runs.folder import RunFolder

    configs, recorded = {}, {}
    for path in paths:
        name = path.stem if path.is_file() else path.name
        if name in configs:
            raise InputError(f"two runs to audit have the same name, '{name}'. Rename one, or audit them one by one.")
        if path.is_dir():
            if changes:
                raise InputError("--set changes a CONFIG; a RUN is audited as it was. Audit its config.toml instead.")
            configs[name], recorded[name] = RunFolder.config(path), recorded_run(path)
        else:
            configs[name] = load_config(path, changes)
    made = subjects_of(configs)
    return [Subject(name=each.name, config=each.config, recorded=recorded.get(each.name)) for each in made]


def _shape(text: str | None) -> tuple[int, int, int] | None:
    if text is None:
        return None
    try:
        channels, height, width = (int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--image is channels, height and width, such as 1,8,8; got {text!r}.") from None
    if channels not in (1, 3) or min(height, width) < 1:
        raise InputError(f"images have 1 or 3 channels and at least a pixel a side; got --image {text}.")
    return channels, height, width


class _Bars:
    """A progress bar for each defence, with its current step."""

    def __init__(self, console: Any, subjects: "Sequence[Subject]") -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[stage]}", markup=False),
            console=console,
        )
        self._tasks = {each.name: self._progress.add_task(each.name, total=1.0, start=False, stage="") for each in subjects}

    def __enter__(self) -> "_Bars":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, name: str, what: str, share: float) -> None:
        task = self._tasks[name]
        self._progress.start_task(task)
        self._progress.update(task, completed=share, stage=what)
