"""Rounds of several models: our CPU time divided by that of a plain loop over clients, and of pfl-research.

pfl-research needs an environment of its own, because its dp-accounting conflicts with ours. Its column appears if SKETCHFED_PFL
names the Python of that environment:

    python -m venv ../pfl && ../pfl/bin/pip install pfl==0.6.0 torch
    SKETCHFED_PFL=../pfl/bin/python sketchfed bench models
"""

import json
import math
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import sketchfed
from sketchfed.errors import InputError
from sketchfed_lab.benchmarks import harness
from sketchfed_lab.benchmarks.harness import Measurement
from sketchfed_lab.benchmarks.turns import Order, taken

VARIABLE = "SKETCHFED_PFL"
CELLS, MEMORY, STEPS = (Path(__file__).with_name(f"model_{part}.py") for part in ("cells", "memory", "steps"))
OURS = ("sketchfed, fedavg", "sketchfed, iterative 1/100")
LOOPS = ("plain loop", "plain loop, fused SGD")
LOOP, PFL = "the faster plain loop", "pfl-research"
MLP, LENET, TRANSFORMER = "MLP 784-200-200-10", "LeNet", "transformer"
RESNETS = GROUP_NORM, BATCH_NORM = "ResNet, GroupNorm", "ResNet, BatchNorm"
AT_MOST = {
    **{
        (cell, PFL): most for cell, most in ((MLP, 0.4), (LENET, 0.7), (TRANSFORMER, 1.0), (GROUP_NORM, 1.0), (BATCH_NORM, 1.0))
    },
    **{(cell, LOOP): 1.05 for cell in (TRANSFORMER, *RESNETS)},
}
COPIES, OVERHEAD = 5.0, 2.0
AS_IT_IS, OTHERWISE = "as it is", ("torch.compile", "vmap(grad) of ten clients")
"""Steps of LeNet as torch takes them, and in two ways that sketchfed does not use."""
ROUND, CUSTOM = "a round, iterative 1/100", "a round of a custom module"
STEP, CUSTOM_STEP, TRANSFORM = "a plain step", "a plain step of a custom module", "two Hadamard transforms"
LARGE = ((ROUND, STEP), (CUSTOM, CUSTOM_STEP))
"""Rounds of the large model, each with the step of torch to which it is compared."""

Times = Mapping[tuple[str, str], float]
"""The least CPU seconds of a round, by cell and side."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long to look. In each pass every side has a new process, and the processes take turns: a round each."""

    passes: int
    rounds: int
    cells: tuple[str, ...] = (MLP, LENET, TRANSFORMER, *RESNETS)
    width: int = 9_600
    """The width of the large perceptron: 784-width-width-10."""
    steps: int = 60
    """The number of steps of LeNet that are taken in other ways."""


FULL = Plan(passes=3, rounds=8)
QUICK = Plan(passes=1, rounds=1, width=1_000, steps=2)


def main(*, folder: Path, quick: bool = False) -> None:
    """Time everything, print tables, and append to `models.jsonl` in the folder."""
    plan, console = QUICK if quick else FULL, Console()
    best: dict[tuple[str, str], float] = defaultdict(lambda: math.inf)
    with harness.progress(console) as bar:
        task = bar.add_task("models", total=plan.passes + 2)
        bar.refresh()
        for _ in range(plan.passes):
            for side, cell, seconds in raced(plan):
                best[cell, side] = min(seconds, best[cell, side])
            bar.update(task, advance=1, refresh=True)
        large(ROUND, 2_100, 1)  # compiles what the large model needs, which takes more memory than some models
        found = {side: large(side, plan.width) for side in (*sum(LARGE, ()), TRANSFORM)}
        bar.update(task, advance=1, refresh=True)
        ways = {way: answer(way, STEPS, plan.steps) for way in (AS_IT_IS, *OTHERWISE)}
        bar.update(task, advance=1, refresh=True)
    measured = [*compared(best, plan.cells), *of_large(found), *of_steps(ways, plan.steps)]
    harness.append_jsonl(folder / "models.jsonl", measured)
    for table in tables(measured):
        console.print(table)
    if other_python() is None:
        console.print(f"[yellow]{PFL} is left out:[/yellow] {VARIABLE} names no Python that has it.", soft_wrap=True)
    targets = [m.met for m in measured if m.met is not None]
    console.print(f"{sum(targets)} of {len(targets)} targets met · one core of {harness.machine()['cpu']}, CPU time · {folder}")


def other_python() -> str | None:
    """The Python that has pfl-research. None if none is named."""
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    if not Path(named).is_file():
        raise InputError(f"{VARIABLE} = {named} is no file. Set it to the Python of an environment that has pfl.")
    return named


def raced(plan: Plan) -> Iterator[tuple[str, str, float]]:
    """Side, cell and CPU seconds of each round."""
    paths = [str(Path(sketchfed.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    given = json.dumps({"cells": plan.cells, "rounds": plan.rounds})
    own = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    orders = {side: Order(command=(sys.executable, str(CELLS), side, given), environment=own) for side in (*OURS, *LOOPS)}
    if (python := other_python()) is not None:
        foreign = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        orders[PFL] = Order(command=(python, str(CELLS), PFL, given), environment=foreign)
    return taken(orders, lambda side, said: f"'{side}' failed: {said}")


def large(side: str, width: int, rounds: int = 4) -> dict[str, Any]:
    """CPU seconds and peak memory of a side, from a process of its own."""
    return answer(side, MEMORY, width, rounds)


def answer(side: str, script: Path, *numbers: int) -> dict[str, Any]:
    """What a script says of a side, in a process of its own."""
    command = [sys.executable, str(script), side, *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"'{side}' failed: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def compared(best: Times, cells: tuple[str, ...]) -> Iterator[Measurement]:
    """Each of our sides against the faster loop, and against pfl-research if it took part."""
    for cell in cells:
        peers = {LOOP: min(best[cell, loop] for loop in LOOPS)} | ({PFL: best[cell, PFL]} if (cell, PFL) in best else {})
        for side in OURS:
            for peer, seconds in peers.items():
                own = best[cell, side]
                judged = AT_MOST.get((cell, peer))
                yield Measurement(
                    topic="rounds",
                    what=cell,
                    seconds=own,
                    facts={"side": side, "peer_seconds": seconds},
                    over=peer,
                    ratio=own / seconds,
                    at_most=judged,
                )


def of_large(found: Mapping[str, Mapping[str, Any]]) -> Iterator[Measurement]:
    """Copies of the model at the peak, and what a round costs beyond a plain step, in transforms that it contains."""
    size, facts = 4 * found[ROUND]["dim"], {"dim": found[ROUND]["dim"]}
    for side in sum(LARGE, ()):
        peak = found[side]["peak_bytes"]
        yield Measurement(
            topic="large",
            what=f"peak of {side}",
            seconds=found[side]["seconds"],
            facts=facts | {"peak_bytes": peak},
            over="the model",
            ratio=None if peak is None else peak / size,
            at_most=COPIES if side in dict(LARGE) else None,
        )
    for side, step in LARGE:
        beyond = found[side]["seconds"] - found[step]["seconds"]
        yield Measurement(
            topic="large",
            what=f"{side}, beyond {step}",
            seconds=beyond,
            facts=facts,
            over=TRANSFORM,
            ratio=beyond / found[TRANSFORM]["seconds"],
            at_most=OVERHEAD,
        )


def of_steps(found: Mapping[str, Mapping[str, Any]], steps: int) -> Iterator[Measurement]:
    """Other ways to take the same steps, against torch as it is. Nothing is asked of them."""
    for way in OTHERWISE:
        facts = {"steps": steps, "peer_seconds": found[AS_IT_IS]["seconds"], "ready_seconds": found[way]["ready_seconds"]}
        seconds = found[way]["seconds"]
        ratio = seconds / found[AS_IT_IS]["seconds"]
        yield Measurement(topic="steps", what=f"{LENET}, {way}", seconds=seconds, facts=facts, over=AS_IT_IS, ratio=ratio)


def tables(measured: list[Measurement]) -> Iterator[Table]:
    """What was measured, for people. Red and a cross mark a missed target."""
    yield harness.table(
        "A round of 10 of 100 clients, batch 10, one local epoch",
        ("", "side", "ours", "theirs", "over", "ratio"),
        [
            (
                *(m.what, m.facts["side"], harness.human_seconds(m.seconds)),
                *(harness.human_seconds(m.facts["peer_seconds"]), m.over or "", harness.judged(m)),
            )
            for m in measured
            if m.topic == "rounds"
        ],
        caption="CPU time of one thread; the least of all rounds counts",
    )
    yield harness.table(
        "One client, one step, a perceptron with many parameters",
        ("", "parameters", "seconds", "peak, GB", "over", "ratio"),
        [
            (
                *(m.what, f"{m.facts['dim']:,}", harness.human_seconds(m.seconds)),
                *(f"{m.facts['peak_bytes'] / 1e9:.2f}" if m.facts.get("peak_bytes") else "", m.over or "", harness.judged(m)),
            )
            for m in measured
            if m.topic == "large"
        ],
        caption="the peak includes the interpreter and all libraries",
    )
    yield harness.table(
        "Steps of one client, batch 10, taken in other ways",
        ("", "steps", "seconds", "as it is", "first", "ratio"),
        [
            (
                *(m.what, str(m.facts["steps"]), harness.human_seconds(m.seconds)),
                *(harness.human_seconds(m.facts[name]) for name in ("peer_seconds", "ready_seconds")),
                harness.judged(m),
            )
            for m in measured
            if m.topic == "steps"
        ],
        caption="CPU time of one thread; first: with compiling",
    )
