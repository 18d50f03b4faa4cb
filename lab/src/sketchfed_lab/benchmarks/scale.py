"""What a round costs each client and the server, in time, memory and bytes, as cohorts grow from ten to a thousand."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import nnls

from sketchfed.caches import clear_caches
from sketchfed.report import PALETTE, save_chart
from sketchfed.secure import planned_neighbourhood
from sketchfed_lab.benchmarks import harness, sides
from sketchfed_lab.benchmarks.harness import Measurement
from sketchfed_lab.benchmarks.sides import ARMS, HIDDEN, Cell

PLANNED = tuple(10**power for power in range(1, 7))
ASSUMED = {"as measured": (sides.COLLUDERS, 1 - sides.SURVIVORS), "default": (0.0, 0.3)}
"""Shares of colluders and of dropouts that neighbourhoods are planned for; the second are those of [secure]."""
SMALL = 100
"""Cohorts up to here get three times as many rounds: theirs are short, and the sooner disturbed."""
SECURE_PARTS = ("keys", "shares", "mask", "consent", "unmask")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Cohorts for each width of the model, cohorts of which a tenth leaves, rounds that count, and clients that are timed."""

    cohorts: Mapping[tuple[int, ...], Sequence[int]]
    leaving: Sequence[int]
    rounds: int
    sampled: int

    @property
    def cells(self) -> list[Cell]:
        def cell(arm: str, hidden: tuple[int, ...], clients: int, dropouts: float = 0.0) -> Cell:
            rounds = self.rounds * (3 if clients <= SMALL else 1)
            return Cell(arm=arm, hidden=hidden, clients=clients, rounds=rounds, sampled=self.sampled, dropouts=dropouts)

        full = [cell(arm, hidden, count) for hidden, counts in self.cohorts.items() for count in counts for arm in ARMS]
        return full + [cell("secure", next(iter(self.cohorts)), count, 0.1) for count in self.leaving]


FULL = Plan(
    cohorts={HIDDEN[100_000]: (10, 30, 100, 300, 1_000), HIDDEN[1_000_000]: (10, 30, 100, 300)},
    leaving=(100, 1_000),
    rounds=3,
    sampled=5,
)
QUICK = Plan(cohorts={HIDDEN[100_000]: (10, 30)}, leaving=(30,), rounds=1, sampled=2)


def main(*, folder: Path, quick: bool = False) -> None:
    """Measure every cell, print tables, append to `scale.jsonl` and draw `scale.svg` in the folder."""
    plan, console = QUICK if quick else FULL, Console()
    measured = list(neighbourhoods())
    with harness.progress(console) as bar:
        task = bar.add_task("scale", total=len(plan.cells))
        bar.refresh()
        for cell in plan.cells:
            measured += measurements(in_a_process(cell))
            bar.update(task, advance=1, refresh=True)
    harness.append_jsonl(folder / "scale.jsonl", measured)
    save_chart(picture(measured), folder / "scale.svg")
    for table in tables(measured):
        console.print(table)
    console.print(f"{len(plan.cells)} cells · {harness.machine()['cpu']}, CPU time of one thread · {folder}")


# What is measured -----------------------------------------------------------------------------------------------------


def neighbourhoods() -> Iterator[Measurement]:
    """How many neighbours a client has in secure sums over ever more clients, and how long it takes to work that out."""
    for assumed, (colluders, dropouts) in ASSUMED.items():
        for count in PLANNED:
            clear_caches()
            start = time.process_time()
            found = planned_neighbourhood(count, colluders=colluders, dropouts=dropouts)
            seconds = time.process_time() - start
            facts = {"clients": count, "colluders": colluders, "dropouts": round(dropouts, 9), **found._asdict()}
            yield Measurement(topic="neighbours", what=assumed, seconds=seconds, facts=facts)


def in_a_process(cell: Cell) -> dict[str, Any]:
    """What `sides.measure` finds in a new process: its memory is that of this cell alone."""
    order = [sys.executable, "-m", sides.__name__, json.dumps(asdict(cell))]
    done = subprocess.run(order, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{cell} ended without a result: {(done.stderr.strip() or 'it said nothing').splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measurements(found: Mapping[str, Any]) -> Iterator[Measurement]:
    """Of each side a row for each part of its work, and one for the whole round with its bytes and memory.

    A client's are those of one client, the median of those that were timed; the server's those of its least round.
    """
    facts = found["facts"]
    for side in ("client", "server"):
        for part, seconds in found[side].items():
            yield Measurement(topic=side, what=part, seconds=seconds, facts=facts)
    own = {way: sum(stages.values()) for way, stages in found["client_bytes"].items()}
    stages = {f"{way}_of_stages": by_stage for way, by_stage in found["client_bytes"].items()}
    messages = {"messages": len(found["client_bytes"]["up_bytes"])}
    whole = {"client": own | stages | messages, "server": found["server_bytes"]}
    for side, traffic in whole.items():
        memory = {"peak_bytes": found["memory"][side]}
        yield Measurement(topic=side, what="round", seconds=sum(found[side].values()), facts=facts | traffic | memory)


# What follows ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Law:
    """A cost as a sum of terms, each a coefficient that is not negative times what it is for."""

    what: str
    arm: str
    dim: int
    terms: Mapping[str, float]
    error: float
    """The largest relative one, over the cohorts that were measured."""


TERMS: dict[str, Callable[[Measurement], float]] = {
    "once": lambda m: 1.0,
    "a client": lambda m: m.facts["clients"],
    "a neighbour": lambda m: m.facts["neighbours"],
    "a pair": lambda m: m.facts["clients"] * m.facts["neighbours"],
}
COSTS: dict[str, tuple[str, Callable[[Measurement], float | None]]] = {
    "server, s": ("server", lambda m: m.seconds),
    "server, peak MB": ("server", lambda m: None if m.facts["peak_bytes"] is None else m.facts["peak_bytes"] / 1e6),
    "client, s": ("client", lambda m: m.seconds),
    "client, kB up": ("client", lambda m: m.facts["up_bytes"] / 1e3),
    "client, kB down": ("client", lambda m: m.facts["down_bytes"] / 1e3),
}


def laws(measured: Sequence[Measurement]) -> Iterator[Law]:
    """Costs over cohorts of which nobody leaves, by least squares of relative errors.

    In secure sums the server also pays for each pair of neighbours, a client for each neighbour.
    """
    rounds = [m for m in measured if m.what == "round" and not m.facts["left"]]
    for what, (side, cost) in COSTS.items():
        for arm, dim in dict.fromkeys((m.facts["arm"], m.facts["dim"]) for m in rounds):
            cells = [m for m in rounds if (m.topic, m.facts["arm"], m.facts["dim"]) == (side, arm, dim)]
            names = ["once", "a client"]
            if arm == "secure":
                names.append("a pair" if side == "server" else "a neighbour")
            costs = [cost(m) for m in cells]
            if len(cells) < len(names) or None in costs:
                continue
            relative = np.array(
                [[TERMS[name](m) / (value or 1) for name in names] for m, value in zip(cells, costs, strict=True)]
            )
            found, _ = nnls(relative, np.ones(len(cells)))
            error = float(np.abs(relative @ found - 1).max())
            yield Law(what=what, arm=arm, dim=dim, terms=dict(zip(names, found.tolist(), strict=True)), error=error)


# What is shown --------------------------------------------------------------------------------------------------------


def tables(measured: Sequence[Measurement]) -> Iterator[Table]:
    """What was measured, for people."""
    cells = _cells(measured)
    yield harness.table(
        "A client's round",
        ["", "dim", "clients", "leave", "receive", "train", "encode", *SECURE_PARTS, "all", "up", "down"],
        (
            [
                *_named(parts["client"]["round"]),
                *(_seconds(parts["client"], part) for part in ("receive", "train", "encode", *SECURE_PARTS, "round")),
                *(f"{parts['client']['round'].facts[way] / 1e3:,.1f} kB" for way in ("up_bytes", "down_bytes")),
            ]
            for parts in cells
        ),
        caption=f"median of those timed; five local steps on {sides.EXAMPLES} examples; encode: sketch, clip, noise",
    )
    yield harness.table(
        "The server's round",
        ["", "dim", "clients", "leave", "neighbours", "tasks", "read", "unmask", "step", "all", "a client", "memory"],
        (
            [
                *_named(whole := parts["server"]["round"]),
                str(whole.facts.get("neighbours", "")),
                _seconds(parts["server"], "tasks"),
                harness.human_seconds(sum(m.seconds for part, m in parts["server"].items() if part.startswith("read"))),
                *(_seconds(parts["server"], part) for part in ("unmask", "step", "round")),
                harness.human_seconds(whole.seconds / whole.facts["clients"]),
                f"{whole.facts['peak_bytes'] / 1e6:,.1f} MB" if whole.facts["peak_bytes"] is not None else "unknown",
            ]
            for parts in cells
        ),
        caption="memory: the most beyond what the process held before the first round",
    )
    yield harness.table(
        "Laws",
        ["", "", "dim", *TERMS, "largest error"],
        (
            [
                *(law.what, law.arm, f"{law.dim:,}"),
                *(f"{law.terms[name]:.3g}" if name in law.terms else "" for name in TERMS),
                f"{law.error:.0%}",
            ]
            for law in laws(measured)
        ),
        caption="fitted to the cohorts above of which nobody leaves; what lies beyond them is extrapolated",
    )
    yield harness.table(
        "Neighbours in secure sums",
        ["", "clients", "colluders", "dropouts", "neighbours", "threshold", "worked out in"],
        (
            [
                *(m.what, f"{m.facts['clients']:,}", f"{m.facts['colluders']:g}", f"{m.facts['dropouts']:g}"),
                *(str(m.facts["neighbours"]), str(m.facts["threshold"]), harness.human_seconds(m.seconds)),
            ]
            for m in measured
            if m.topic == "neighbours"
        ),
    )


def _cells(measured: Sequence[Measurement]) -> list[dict[str, dict[str, Measurement]]]:
    """The rows of each cell by side and part."""
    found: dict[tuple[Any, ...], dict[str, dict[str, Measurement]]] = {}
    for m in measured:
        if m.topic in ("client", "server"):
            key = tuple(m.facts[name] for name in ("arm", "dim", "clients", "left"))
            found.setdefault(key, {"client": {}, "server": {}})[m.topic][m.what] = m
    return list(found.values())


def _named(m: Measurement) -> list[str]:
    return [m.facts["arm"], f"{m.facts['dim']:,}", f"{m.facts['clients']:,}", str(m.facts["left"])]


def _seconds(parts: Mapping[str, Measurement], part: str) -> str:
    return harness.human_seconds(parts[part].seconds) if part in parts else ""


def picture(measured: Sequence[Measurement]) -> alt.ConcatChart:
    """Time of either side, bytes of a client and memory of the server over the cohort, for the smaller model."""
    rounds = [m for m in measured if m.what == "round" and not m.facts["left"]]
    dim = min(m.facts["dim"] for m in rounds)
    shown = [m for m in rounds if m.facts["dim"] == dim]

    def panel(side: str, title: str, values: str, cost: Callable[[Measurement], float | None]) -> alt.LayerChart:
        points = [(m, cost(m)) for m in shown if m.topic == side]
        rows = [{"clients": m.facts["clients"], "arm": m.facts["arm"], "value": value} for m, value in points if value]
        counts = sorted({row["clients"] for row in rows})
        base = alt.Chart(alt.InlineData(values=rows)).encode(
            x=alt.X("clients:Q", title="clients", scale=alt.Scale(type="log"), axis=alt.Axis(values=counts, grid=False)),
            y=alt.Y("value:Q", title=values, scale=alt.Scale(type="log"), axis=alt.Axis(format="~g", tickCount=5)),
            color=alt.Color("arm:N", title=None, scale=alt.Scale(domain=list(ARMS), range=PALETTE[: len(ARMS)])),
        )
        drawn: list[Any] = [base.mark_line(strokeWidth=2), base.mark_circle(size=30, opacity=1)]
        return alt.LayerChart(layer=drawn, title=title, width=300, height=220)

    memory = COSTS["server, peak MB"][1]
    return alt.ConcatChart(
        concat=[
            panel("client", "Time of a client", "ms a round", lambda m: 1e3 * m.seconds),
            panel("server", "Time of the server", "ms a round", lambda m: 1e3 * m.seconds),
            panel(
                "client",
                "Bytes of a client",
                "kB a round, both ways",
                lambda m: (m.facts["up_bytes"] + m.facts["down_bytes"]) / 1e3,
            ),
            panel("server", "Memory of the server", "MB beyond its start", memory),
        ],
        columns=2,
        spacing=30,
        title=alt.Title(
            f"{dim:,} parameters, all clients take part", subtitle="CPU time of one thread; secure: noised and masked sketches"
        ),
    )
