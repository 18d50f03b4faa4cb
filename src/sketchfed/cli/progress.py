"""A line for each run: its progress, its accuracy, and what it sent."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column

from sketchfed.report.tables import WIDE
from sketchfed.report.units import shown_accuracy, shown_bytes, shown_epsilon, shown_loss, shown_share

if TYPE_CHECKING:
    from sketchfed.runs import Run
    from sketchfed.runs.loop import Loop


class Bars:
    """Progress bars of consecutive runs."""

    def __init__(self, console: Console, folders: Sequence[Path]) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}", table_column=Column(no_wrap=True)),
            console=console,
        )
        alike = len({folder.name for folder in folders}) < len(folders)
        self._tasks: dict[Path, TaskID] = {
            folder: self._progress.add_task(
                str(folder) if alike else folder.name, total=None, start=False, state="", visible=False
            )
            for folder in folders
        }
        self._console, self._title = console, ""

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def wait(self, folder: Path, what: str) -> None:
        """Show what a run is waiting for before it begins."""
        self._progress.update(self._tasks[folder], visible=True, state=what)

    def begin(self, folder: Path, loop: "Loop") -> None:
        """Show what is being run, unless it was shown before, and an empty bar."""
        if loop.title != self._title:
            self._title = loop.title
            self._console.print(loop.title, highlight=False, markup=False)
        self._progress.update(self._tasks[folder], total=loop.rounds, completed=loop.round, state="", visible=True)
        self._progress.start_task(self._tasks[folder])

    def watcher(self, folder: Path) -> Callable[[dict[str, Any]], None]:
        def watch(line: dict[str, Any]) -> None:
            task, update = self._tasks[folder], {"completed": line["round"]}
            if line["loss"] is None:
                self._progress.update(task, **update)
            else:
                self._progress.update(task, state=_state(line, wide=self._console.width >= WIDE), **update)

        return watch

    def finish(self, folder: Path, run: "Run") -> None:
        if run.metrics:
            self.watcher(folder)(run.metrics[-1])


def _state(line: dict[str, Any], *, wide: bool) -> str:
    scored = f"loss {shown_loss(line['loss'])}" if line["accuracy"] is None else f"accuracy {shown_accuracy(line['accuracy'])}"
    spent = "" if line["epsilon"] is None else f"  ε {shown_epsilon(line['epsilon'])}"
    if "consensus" in line:
        apart = "" if line["consensus"] is None else f"  consensus {shown_loss(line['consensus'])}"
        return f"{scored}{spent}  sent {shown_bytes(line['uplink_bytes']):>7}{apart}"
    moved = f"up {shown_bytes(line['uplink_bytes']):>7}  down {shown_bytes(line['downlink_bytes']):>7}"
    captured = "" if line["captured"] is None or not wide else f"  captured {shown_share(line['captured'])}"
    return f"{scored}{spent}  {moved}{captured}"
