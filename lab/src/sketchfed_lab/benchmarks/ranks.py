"""Rounds on two ranks of two cores each with one, beside one process with two threads, Flower's simulation and pfl-research.

Flower's column appears where it is installed: pip install "flwr[simulation]>=1.41,<1.42". That of pfl-research appears if
SKETCHFED_PFL names the Python of an environment that has it. What more ranks cost is worked out from counted bytes.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sketchfed_lab.benchmarks import harness, models
from sketchfed_lab.benchmarks.harness import Measurement
from sketchfed_lab.benchmarks.peers import Result, Work
from sketchfed_lab.benchmarks.rounds import CORES, FLOWER, Contestant, Race, _installed, flower, sketchfed
from sketchfed_lab.benchmarks.rounds import Plan as _Rounds
from sketchfed_lab.benchmarks.turns import Order, taken

RANKS = 2
THREADS, ON_RANKS, PFL = f"one process, {CORES} threads", f"{RANKS} ranks", "pfl-research, one thread"
SKETCHED = ", sketched to a tenth"
GIGABITS = 10.0
"""The speed of rank 0's network on paper, in Gbit/s."""
SCALES = (2, 4, 8, 16, 64)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long to look. Each contestant starts anew in every pass, and the mean of its best pass counts."""

    passes: int
    rounds: int
    limit: float = 600.0


FULL = Plan(passes=5, rounds=10)
QUICK = Plan(passes=1, rounds=2)


def main(*, folder: Path, quick: bool = False) -> None:
    """Time everything, print tables, and append to `ranks.jsonl` in the folder."""
    plan, console = QUICK if quick else FULL, Console()
    rounds = _Rounds(passes=plan.passes, rounds=plan.rounds, idle_rounds=0, participants=(), populations=(), limit=plan.limit)
    missing = {} if _installed("flwr", "ray") else {FLOWER: 'pip install "flwr[simulation]>=1.41,<1.42".'}
    race, work = Race(rounds, missing=missing), Work(rounds=plan.rounds)
    results = race.run([*_ours(work), flower(work)])
    measured = [*compared(results, work), *_pfl(plan, results[THREADS].mean)]
    measured += scaled(results, work)
    harness.append_jsonl(folder / "ranks.jsonl", measured)
    for table in tables(measured):
        console.print(table)
    for name, remedy in race.missing.items():
        console.print(f"[yellow]{name} is left out:[/yellow] {escape(remedy)}", soft_wrap=True)
    if models.other_python() is None:
        console.print(
            f"[yellow]pfl-research is left out:[/yellow] {models.VARIABLE} names no Python that has it.", soft_wrap=True
        )
    cores = f"{min(CORES, os.cpu_count() or 1)} cores of {harness.machine()['cpu']}"
    console.print(f"{cores}, wall clock · {folder}")


def _ours(work: Work) -> list[Contestant]:
    found = []
    for words, is_sketched in (("", False), (SKETCHED, True)):
        options = {"ranks": RANKS, "cores": CORES, "sketched": is_sketched}
        found.append(sketchfed(work, label=THREADS + words, sketched=is_sketched))
        found.append(Contestant(label=ON_RANKS + words, module="on_ranks", work=work, options=options))
    return found


def compared(results: Mapping[str, Result], work: Work) -> Iterator[Measurement]:
    """The time of a round, the most memory of each rank, and the bytes that ranks exchange in a round."""
    for label, result in results.items():
        base = THREADS + (SKETCHED if label.endswith(SKETCHED) else "")
        peaks = [result.peak_bytes, *result.facts.get("peaks", [])]
        facts: dict[str, Any] = {"participants": work.participants, "peaks": peaks, "cpu_seconds": result.cpu_seconds}
        facts |= {key: result.facts[key] for key in ("sent", "received") if key in result.facts}
        yield Measurement(
            topic="ranks",
            what=label,
            seconds=result.mean,
            facts=facts,
            over=None if label == base else base,
            ratio=None if label == base else result.mean / results[base].mean,
        )


def _pfl(plan: Plan, ours: float) -> Iterator[Measurement]:
    """The least time of a round of pfl-research on one thread, where it is at hand."""
    if (python := models.other_python()) is None:
        return
    foreign = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    given = json.dumps({"cells": [models.MLP], "rounds": plan.rounds})
    order = Order(command=(python, str(models.CELLS), models.PFL, given), environment=foreign)
    seconds = min(each for _, _, each in taken({PFL: order}, lambda side, said: f"'{side}' failed: {said}"))
    yield Measurement(topic="ranks", what=PFL, seconds=seconds, over=THREADS, ratio=seconds / ours)


def scaled(results: Mapping[str, Result], work: Work) -> Iterator[Measurement]:
    """Seconds that rank 0's network takes for a round on more ranks, on paper.

    Rank 0 sends every other rank the same, and receives the replies of all clients but its own.
    """
    for words in ("", SKETCHED):
        facts = results[ON_RANKS + words].facts
        reply = facts["received"] / (work.participants * (RANKS - 1) / RANKS)
        for ranks in SCALES:
            down, up = facts["sent"] / (RANKS - 1) * (ranks - 1), reply * work.participants * (ranks - 1) / ranks
            yield Measurement(
                topic="paper",
                what=f"{ranks} ranks{words}",
                seconds=8 * max(down, up) / (GIGABITS * 1e9),
                facts={"ranks": ranks, "sent": down, "received": up},
            )


def tables(measured: Sequence[Measurement]) -> Iterator[Table]:
    """What was measured, and what follows from it, for people."""
    rounds, paper = ([m for m in measured if m.topic == topic] for topic in ("ranks", "paper"))
    yield harness.table(
        "Federated averaging on MNIST, 784-200-200-10: 10 of 100 clients a round, batch 10, one local epoch",
        ["", "s a round", "divided by one process", "peak memory of each rank, MB", "MB sent", "MB received"],
        ([m.what, f"{m.seconds:.3f}", harness.judged(m) if m.ratio else "", _peaks(m), *_moved(m)] for m in rounds),
        caption="MB between ranks in a round, as rank 0 counts them",
    )
    yield harness.table(
        f"On paper: a network of {GIGABITS:g} Gbit/s at rank 0",
        ["", "MB sent a round", "MB received a round", "s a round"],
        ([m.what, *_moved(m), f"{m.seconds:.4f}"] for m in paper),
    )


def _peaks(m: Measurement) -> str:
    return ", ".join("unknown" if peak is None else f"{peak / 1e6:.0f}" for peak in m.facts.get("peaks", []))


def _moved(m: Measurement) -> list[str]:
    return [f"{m.facts[key] / 1e6:.3g}" if key in m.facts else "" for key in ("sent", "received")]
