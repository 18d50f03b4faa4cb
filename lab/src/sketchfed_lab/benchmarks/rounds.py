"""Rounds per second of training, and the engine's own price: ratios to an autograd loop and to Flower's simulation.

Flower's column appears where it is installed: pip install "flwr[simulation]>=1.41,<1.42". MNIST is read from the folder that
SKETCHFED_DATA names, and noise of its shape takes its place elsewhere.
"""

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import altair as alt
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sketchfed.report import MUTED, PALETTE, save_chart
from sketchfed_lab.benchmarks import harness
from sketchfed_lab.benchmarks.harness import Measurement
from sketchfed_lab.benchmarks.peers import ContestantError, Result, Work, ask

CORES = 2
OURS, FLOWER = "sketchfed", "Flower simulation"
FASTER_THAN_LOOP, FASTER_THAN_FLOWER, CHEAPER_THAN_FLOWER = 2.5, 3.0, 10.0
MOST_GROWTH = 1.25  # of a round's time from the smallest population to the largest


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A module of `peers`, the work it is given, and how it is to do it."""

    label: str
    module: str
    work: Work
    options: Mapping[str, Any]


def sketchfed(work: Work, *, label: str = OURS, sketched: bool = False) -> Contestant:
    return Contestant(label=label, module="ours", work=work, options={"cores": CORES, "sketched": sketched})


def flower(work: Work) -> Contestant:
    return Contestant(label=FLOWER, module="flower", work=work, options={"cores": CORES})


def loops(work: Work) -> list[Contestant]:
    """The loop with one of torch's threads and with one a core, with its default SGD and with the fused one."""
    labels = {(1, False): "autograd, 1 thread", (CORES, False): f"autograd, {CORES} threads"}
    labels |= {(threads, True): f"{label}, fused" for (threads, _), label in labels.items()}
    return [
        Contestant(label=label, module="autograd", work=work, options={"threads": threads, "fused": fused})
        for (threads, fused), label in labels.items()
    ]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long to look: each contestant starts anew in every pass, and the mean of its best pass counts."""

    passes: int
    rounds: int
    idle_rounds: int
    participants: Sequence[int]
    populations: Sequence[int]
    limit: float = 600.0


FULL = Plan(passes=5, rounds=10, idle_rounds=20, participants=(10, 100), populations=(100, 1_000, 10_000))
QUICK = Plan(passes=1, rounds=2, idle_rounds=4, participants=(10,), populations=(100, 1_000))


def main(*, folder: Path, quick: bool = False) -> None:
    """Time everything, print tables, append to `rounds.jsonl` and draw `rounds.svg` in the folder."""
    plan, console = QUICK if quick else FULL, Console()
    race = Race(plan, missing={} if _installed("flwr", "ray") else {FLOWER: 'pip install "flwr[simulation]>=1.41,<1.42".'})
    measured: list[Measurement] = []
    with harness.progress(console) as bar:
        task = bar.add_task("rounds", total=2 + len(plan.participants))
        bar.refresh()
        for found in _everything(race):
            measured += found
            bar.update(task, advance=1, refresh=True)
    harness.append_jsonl(folder / "rounds.jsonl", measured)
    save_chart(picture(measured), folder / "rounds.svg")
    for table in tables(measured):
        console.print(table)
    for name, remedy in race.missing.items():
        console.print(f"[yellow]{name} is left out:[/yellow] {escape(remedy)}", soft_wrap=True)
    targets = [m.met for m in measured if m.met is not None]
    cores = f"{min(CORES, os.cpu_count() or 1)} cores of {harness.machine()['cpu']}"
    console.print(f"{sum(targets)} of {len(targets)} targets met · {cores}, wall clock · {folder}")


def _installed(*packages: str) -> bool:
    return all(importlib.util.find_spec(package) for package in packages)


def _everything(race: "Race") -> Iterator[list[Measurement]]:
    yield training(race)
    for participants in race.plan.participants:
        yield engine(race, participants)
    yield population(race)


# What is measured -----------------------------------------------------------------------------------------------------


@dataclass
class Race:
    """Contestants that take turns, each time in a process of its own, and who could not take part and why."""

    plan: Plan
    missing: dict[str, str]

    def run(self, contestants: Sequence[Contestant]) -> dict[str, Result]:
        """The best pass of each contestant, by the mean time of its rounds.

        A mean, because Flower looks for messages ten times a second: a single round may be lucky. The best pass, because
        whatever else the machine does only ever adds.
        """
        passes: dict[str, list[Result]] = {one.label: [] for one in contestants}
        for _ in range(self.plan.passes):
            for one in contestants:
                if one.label not in self.missing:
                    passes[one.label] += self._turn(one)
        return {label: min(results, key=lambda result: result.mean) for label, results in passes.items() if results}

    def _turn(self, one: Contestant) -> list[Result]:
        try:
            return [ask(one.module, one.work, one.options, cores=CORES, limit=self.plan.limit)]
        except ContestantError as error:
            if one.label != FLOWER:
                raise
            self.missing[one.label] = f"{error}."
            return []


def training(race: Race) -> list[Measurement]:
    """Federated averaging at work. Of the loop's variants only the fastest is judged."""
    work = Work(rounds=race.plan.rounds)
    results = race.run([sketchfed(work), *loops(work), flower(work)])
    best_loop = min((loop.label for loop in loops(work)), key=lambda label: results[label].mean)
    return _compared("training", results, {best_loop: FASTER_THAN_LOOP, FLOWER: FASTER_THAN_FLOWER}, work)


def engine(race: Race, participants: int) -> list[Measurement]:
    """What a client costs in a round when nobody trains and nothing but the engine is left."""
    work = Work(rounds=race.plan.idle_rounds, participants=participants, examples=1, train=False)
    results = race.run([sketchfed(work), flower(work)])
    return _compared("engine", results, {FLOWER: CHEAPER_THAN_FLOWER}, work, units=participants)


def _compared(
    topic: str, results: Mapping[str, Result], asked: Mapping[str, float], work: Work, units: int = 1
) -> list[Measurement]:
    """The time of a unit, of which a round has `units`. Peers are compared with ours by the wall clock."""
    found = []
    for label, result in sorted(results.items(), key=lambda item: item[0] != OURS):
        cpu = None if result.cpu_seconds is None else result.cpu_seconds / units
        note = partial(Measurement, topic=topic, what=label, facts=_facts(work) | {"cpu_seconds": cpu})
        mine = label == OURS
        compared = {} if mine else {"over": OURS, "ratio": result.mean / results[OURS].mean, "at_least": asked.get(label)}
        found.append(note(seconds=result.mean / units, **compared))  # type: ignore[arg-type]
    return found


def _cpu(m: Measurement) -> str:
    seconds = m.facts.get("cpu_seconds")
    return "unknown" if seconds is None else harness.human_seconds(seconds)


def population(race: Race) -> list[Measurement]:
    """A hundred participants of ever more clients, six examples each, sketched: a round should not notice the others."""
    works = [Work(rounds=race.plan.rounds, clients=n, participants=100, examples=6, batch=6) for n in race.plan.populations]
    results = race.run([sketchfed(work, label=f"{work.clients:,} clients", sketched=True) for work in works])
    first = next(iter(results.values()))
    found = []
    for work, (label, result) in zip(works, results.items(), strict=True):
        note = partial(Measurement, topic="population", facts=_facts(work) | {"peak_bytes": result.peak_bytes})
        ratio, at_most = (None, None) if result is first else (result.mean / first.mean, MOST_GROWTH)
        found.append(note(what=label, seconds=result.mean, over="the first", ratio=ratio, at_most=at_most))
    return found


def _facts(work: Work) -> dict[str, Any]:
    return {"clients": work.clients, "participants": work.participants, "cores": CORES}


# What is shown --------------------------------------------------------------------------------------------------------


def tables(measured: Sequence[Measurement]) -> Iterator[Table]:
    """What was measured, for people. Red and a cross mark a missed target."""
    topics = {topic: [m for m in measured if m.topic == topic] for topic in ("training", "engine", "population")}
    yield harness.table(
        "Federated averaging on MNIST, 784-200-200-10: 10 of 100 clients a round, batch 10, one local epoch",
        ["", "s a round", "rounds a second", "time divided by ours", "CPU time a round"],
        (
            [m.what, f"{m.seconds:.3f}", f"{1 / m.seconds:.2f}", harness.judged(m) if m.ratio else "", _cpu(m)]
            for m in topics["training"]
        ),
        caption=f"autograd: a loop over clients; the fastest of them is asked for at least {FASTER_THAN_LOOP:g}, "
        f"Flower for at least {FASTER_THAN_FLOWER:g}",
    )
    yield harness.table(
        "The engine alone: clients return the model as they got it",
        ["", "participants", "a client and round", "divided by ours", "CPU time"],
        (
            [
                *(m.what, str(m.facts["participants"]), harness.human_seconds(m.seconds)),
                *(harness.judged(m) if m.ratio else "", _cpu(m)),
            ]
            for m in topics["engine"]
        ),
        caption=f"asked: Flower at least {CHEAPER_THAN_FLOWER:g}",
    )
    yield harness.table(
        "100 participants of ever more clients, sketched to a tenth",
        ["", "s a round", "divided by the first", "peak memory, MB"],
        (
            [
                *(m.what, f"{m.seconds:.3f}", harness.judged(m) if m.ratio else ""),
                f"{m.facts['peak_bytes'] / 1e6:.0f}" if m.facts["peak_bytes"] else "unknown",
            ]
            for m in topics["population"]
        ),
        caption=f"asked: at most {MOST_GROWTH:g}",
    )


def picture(measured: Sequence[Measurement]) -> alt.ConcatChart:
    """Rounds a second, and milliseconds that a client costs the engine."""
    speeds = {m.what: 1 / m.seconds for m in measured if m.topic == "training"}
    prices = {f"{m.what}, {m.facts['participants']} a round": 1e3 * m.seconds for m in measured if m.topic == "engine"}
    return alt.ConcatChart(
        concat=[
            _bars(speeds, title="Training on MNIST", subtitle=f"rounds a second on {CORES} cores; more is better"),
            _bars(
                prices,
                title="The engine alone",
                subtitle="milliseconds a client and round, logarithmic; less is better",
                log=True,
            ),
        ],
        columns=1,
        spacing=30,
    )


def _bars(values: dict[str, float], *, title: str, subtitle: str, log: bool = False) -> alt.LayerChart:
    rows = [{"what": what, "value": value, "ours": what.startswith(OURS)} for what, value in values.items()]
    scale = alt.Scale(type="log", nice=True) if log else alt.Scale(zero=True)
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        x=alt.X("value:Q", title=None, scale=scale),
        y=alt.Y("what:N", title=None, sort=None, axis=alt.Axis(labelLimit=300)),
        color=alt.condition("datum.ours", alt.value(PALETTE[0]), alt.value(MUTED)),
    )
    marks: list[Any] = [
        base.mark_point(filled=True, size=90) if log else base.mark_bar(height=14),
        base.mark_text(align="left", dx=8, fontSize=11).encode(text=alt.Text("value:Q", format=".3~g")),
    ]
    return alt.LayerChart(layer=marks, title=alt.Title(title, subtitle=subtitle), width=420, height=alt.Step(24))
