"""Sketches and rounds of this version against those of another checkout, so that a change shows what it costs.

Set SKETCHFED_BEFORE to the folder `src` of the other checkout:

    git worktree add ../before REVISION
    SKETCHFED_BEFORE=../before/src sketchfed bench versions
"""

import json
import math
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

import sketchfed
from sketchfed.errors import InputError
from sketchfed_lab.benchmarks import harness
from sketchfed_lab.benchmarks.harness import Measurement
from sketchfed_lab.benchmarks.turns import Order, taken

VARIABLE = "SKETCHFED_BEFORE"
SLOWER = 1.05
CELLS = Path(__file__).with_name("version_cells.py")
BEFORE, NOW = "before", "now"
COPIES = {BEFORE: (BEFORE, "before, again"), NOW: (NOW, "now, again")}
"""Each version runs twice. How far its two copies are apart says how far chance takes a ratio."""

Times = dict[str, float]
"""CPU seconds by cell."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long to look.

    In each pass every side has a new process, and the processes take turns: one works while the others wait. The least time of
    all turns counts.
    """

    passes: int
    turn: float
    turns: int
    rounds: int


FULL = Plan(passes=6, turn=0.03, turns=15, rounds=15)
QUICK = Plan(passes=1, turn=0.001, turns=1, rounds=1)


def main(*, folder: Path, quick: bool = False) -> None:
    """Time both versions, print a table, and append to `versions.jsonl` in the folder."""
    plan, console = QUICK if quick else FULL, Console()
    versions = {BEFORE: other_source(), NOW: own_source()}
    sources = {copy: source for turn in (0, 1) for version, source in versions.items() for copy in [COPIES[version][turn]]}
    best: dict[str, Times] = {side: defaultdict(lambda: math.inf) for side in sources}
    with harness.progress(console) as bar:
        task = bar.add_task("versions", total=plan.passes)
        bar.refresh()
        for number in range(plan.passes):
            # Sides change places from pass to pass, so that none always comes first.
            order = list(sources)[number % len(sources) :] + list(sources)[: number % len(sources)]
            for side, cell, seconds in raced({side: sources[side] for side in order}, plan):
                best[side][cell] = min(seconds, best[side][cell])
            bar.update(task, advance=1, refresh=True)
    measured = measurements(best)
    harness.append_jsonl(folder / "versions.jsonl", measured)
    console.print(table(measured))
    targets = [m.met for m in measured if m.met is not None]
    console.print(f"{sum(targets)} of {len(targets)} targets met · one core of {harness.machine()['cpu']}, CPU time · {folder}")


def own_source() -> Path:
    return Path(sketchfed.__file__).parents[1]


def other_source() -> Path:
    """The source of the other version, which SKETCHFED_BEFORE names."""
    named = os.environ.get(VARIABLE)
    if not named:
        raise InputError(f"there is no other version to compare with. Set {VARIABLE} to the folder src of another checkout.")
    source = Path(named).resolve()
    if not (source / "sketchfed" / "__init__.py").exists():
        raise InputError(f"{VARIABLE} = {named} holds no package sketchfed. Set it to the folder src of another checkout.")
    return source


def raced(sources: Mapping[str, Path], plan: Plan) -> Iterator[tuple[str, str, float]]:
    """Side, cell and CPU seconds of each turn. Each side finds sketchfed in its source."""
    command = [sys.executable, str(CELLS), json.dumps(asdict(plan))]
    orders = {
        side: Order(command=command, environment=os.environ | {"PYTHONPATH": str(source)}) for side, source in sources.items()
    }
    return taken(
        orders,
        lambda side, said: f"the version in {sources[side]} cannot run the cells: {said} Compare with a version that can.",
    )


def measurements(best: Mapping[str, Times]) -> list[Measurement]:
    """A ratio of the least times for each cell that both versions have, and how far two copies of a version are apart."""
    made = []
    for cell in best[NOW]:
        topic, _, what = cell.partition(": ")
        times = {version: [best[copy][cell] for copy in copies if cell in best[copy]] for version, copies in COPIES.items()}
        seconds, was = min(times[NOW]), min(times[BEFORE], default=None)
        facts = {"control": max(max(both) / min(both) for both in times.values() if both), "before_seconds": was}
        ratio = None if was is None else seconds / was
        made.append(Measurement(topic=topic, what=what, seconds=seconds, facts=facts, over=BEFORE, ratio=ratio, at_most=SLOWER))
    return made


def table(measured: list[Measurement]) -> Table:
    return harness.table(
        "This version against the one before",
        ("", "now", "before", "ratio", "control"),
        [
            (
                f"{m.topic}: {m.what}",
                harness.human_seconds(m.seconds),
                "–" if m.facts["before_seconds"] is None else harness.human_seconds(m.facts["before_seconds"]),
                "–" if m.ratio is None else harness.judged(m),
                f"{m.facts['control']:.2f}",
            )
            for m in measured
        ],
        caption="Both versions run twice; the least time counts. Control: two copies of one version, so 1 but for chance.",
    )
