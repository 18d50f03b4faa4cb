"""What a Flower federation adds to what is sent, in bytes, time and memory, on a real one with TLS on the loopback."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import altair as alt
import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import nnls

from sketchfed.errors import InputError
from sketchfed.report import PALETTE, save_chart

try:
    from sketchfed_lab.faults.proxy import counted
except ImportError:
    raise InputError("this benchmark needs Flower. Install it: pip install 'sketchfed[flower]'.") from None

from sketchfed_lab.benchmarks import harness
from sketchfed_lab.benchmarks.harness import Measurement
from sketchfed_lab.benchmarks.meters import DENSE, PARTS, ROLES, SECURE, Call, Cell, Diary, Meters

WARM, COLD = "warm", "default"
HIDDEN = {100_000: (288, 272), 1_000_000: (960, 960)}
SECURE_RATIO = 0.01
BYTES = tuple(f"{counted}_{way}" for counted in ("payload", "content", "link", "net", "socket") for way in ("up", "down"))
COUNTED = {
    "payload": "what sketchfed packs",
    "content": "Flower's objects",
    "link": "the SuperLink's own count",
    "net": "the socket, polling apart",
}
"""By whom bytes are counted, from the inside out. `socket` is all that passed, with polling."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Widths of models, sizes of sketches, rounds of each run, whether other kinds of runs are looked at, and idle seconds."""

    hidden: Sequence[tuple[int, ...]]
    ratios: Sequence[float]
    rounds: int
    secure: bool
    cold: bool
    idle: float
    nodes: int = 3

    @property
    def cells(self) -> list[Cell]:
        arms = [Cell(arm=DENSE), *(Cell(arm=f"sketch 1/{1 / ratio:g}", ratio=ratio) for ratio in self.ratios)]
        cells = [
            Cell(arm=cell.arm, ratio=cell.ratio, hidden=hidden, rounds=self.rounds) for hidden in self.hidden for cell in arms
        ]
        if self.secure:
            cells.append(Cell(arm=SECURE, ratio=SECURE_RATIO, hidden=self.hidden[0], rounds=2))
        return cells


FULL = Plan(hidden=tuple(HIDDEN.values()), ratios=(0.1, 0.01), rounds=4, secure=True, cold=True, idle=40.0)
QUICK = Plan(hidden=(HIDDEN[100_000],), ratios=(0.01,), rounds=2, secure=False, cold=False, idle=7.0)


def main(*, folder: Path, quick: bool = False) -> None:
    """Run every cell, print tables, append to `federation.jsonl` and draw `federation.svg` in the folder."""
    plan, console = QUICK if quick else FULL, Console()
    measured: list[Measurement] = []
    with harness.progress(console) as bar:
        task = bar.add_task("federation", total=len(plan.cells) + 1 + plan.cold)
        bar.refresh()
        for found in _everything(plan):
            measured += found
            bar.update(task, advance=1, refresh=True)
    measured += savings(measured)
    harness.append_jsonl(folder / "federation.jsonl", measured)
    save_chart(picture(measured), folder / "federation.svg")
    for table in tables(measured):
        console.print(table)
    console.print(f"{len(plan.cells)} runs of {plan.nodes} SuperNodes · {harness.machine()['cpu']} · {folder}")


# What is measured -----------------------------------------------------------------------------------------------------


def _everything(plan: Plan) -> Iterator[list[Measurement]]:
    with _federation(plan, isolation=WARM) as (meters, folder):
        yield list(idle(meters, plan))
        for number, cell in enumerate(plan.cells):
            last = number == len(plan.cells) - 1
            yield [*runs(meters, cell, folder / str(number), plan, WARM), *(memory(meters, plan, WARM) if last else ())]
    if plan.cold:
        polling = meters.polling
        with _federation(plan, isolation=COLD) as (meters, folder):
            meters.polling = polling
            cell = Cell(arm=DENSE, hidden=plan.hidden[0], rounds=2)
            yield [*runs(meters, cell, folder / "0", plan, COLD), *memory(meters, plan, COLD)]


@contextmanager
def _federation(plan: Plan, *, isolation: str) -> Iterator[tuple[Meters, Path]]:
    """A federation with its meters, and a folder for runs."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        warm = isolation == WARM
        federation, proxy = stack.enter_context(counted(folder / "federation", nodes=plan.nodes, warm=warm))
        diary = stack.enter_context(Diary(federation.folder, plan.nodes))
        yield Meters(federation, proxy, diary), folder


def idle(meters: Meters, plan: Plan) -> Iterator[Measurement]:
    """Of one node, a second of doing nothing."""
    passed = meters.idle(plan.idle)
    sizes = {"poll": meters.polling.typical, "handshake": meters.handshake}
    facts: dict[str, Any] = {"nodes": plan.nodes, "flwr": version("flwr"), "load": os.getloadavg()[0]}
    facts |= {f"{name}_{way}": size for name, both in sizes.items() for way, size in zip(("up", "down"), both, strict=True)}
    each = {name: passed[name] for name in ("socket_up", "socket_down", "polls", "cpu_link", "cpu_node", "cpu_app")}
    facts |= {f"{name}_a_second": value / passed["elapsed"] / plan.nodes for name, value in each.items()}
    yield Measurement(topic="idle", what="a node", seconds=passed["elapsed"], facts=facts)


def memory(meters: Meters, plan: Plan, isolation: str) -> Iterator[Measurement]:
    """After all runs."""
    for kind, found in meters.processes.memory().items():
        facts = {"isolation": isolation, "nodes": plan.nodes, **{f"{name}_bytes": count for name, count in found.items()}}
        yield Measurement(topic="memory", what=kind, seconds=0.0, facts=facts)


def runs(meters: Meters, cell: Cell, folder: Path, plan: Plan, isolation: str) -> Iterator[Measurement]:
    """A row for each stage, of one message and its reply, and one for one client's round; the first round apart.

    In the first round clients are told what they agree to, and nothing yet of a model or an update.
    """
    dim, calls = meters.run(cell.tables(plan.nodes), folder)
    stages = list(dict.fromkeys(call.stage for call in calls))
    begun = [_one([call], plan.nodes) for call in calls[: len(stages)]]
    later = {stage: [call for call in calls[len(stages) :] if call.stage == stage] for stage in stages}
    steady = {stage: _one(some, plan.nodes) for stage, some in later.items()}
    facts = {"dim": dim, "nodes": plan.nodes, "isolation": isolation, "stages": len(stages)}
    yield _row("first", cell, _together(begun) | facts)
    yield from (_row("message", cell, {"stage": stage, **found} | facts) for stage, found in steady.items())
    yield _row("round", cell, (whole := _together(list(steady.values()))) | facts)
    for name in COUNTED:
        own, payload = (sum(whole[f"{by}_{way}"] for way in ("up", "down")) for by in (name, "payload"))
        note = {"dim": dim, "isolation": isolation, "counted": name}
        yield Measurement(
            topic="overhead", what=cell.arm, seconds=whole["seconds"], facts=note, over="payload", ratio=own / payload
        )


def _row(topic: str, cell: Cell, found: Mapping[str, Any]) -> Measurement:
    facts = {name: value for name, value in found.items() if name != "seconds"}
    return Measurement(topic=topic, what=cell.arm, seconds=found["seconds"], facts=facts)


def _together(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Messages of all stages of a round."""
    return {name: sum(each[name] for each in found) for name in found[0]}


def _one(calls: Sequence[Call], nodes: int) -> dict[str, Any]:
    """A message and its reply, on average over calls and nodes. Seconds are those of the call."""
    found: dict[str, Any] = {"seconds": fmean(call.ended - call.began for call in calls)}
    for name in BYTES:
        found[name] = round(fmean(call.traffic.get(name, call.passed.get(name, 0)) for call in calls) / nodes)
    for name in ("turns", "polls", "connections", "app_seconds", *(f"cpu_{role}" for role in ROLES)):
        found[name] = fmean(call.passed[name] for call in calls) / nodes
    found["cpu_server"] = fmean(call.server_cpu for call in calls) / nodes
    told = [call.parts for call in calls if call.parts]
    return found | {part: fmean(parts[part] for parts in told) if told else 0.0 for part in PARTS}


def savings(measured: Sequence[Measurement]) -> Iterator[Measurement]:
    """How many times less than dense updates the others take, by who counts: payload and total are different answers."""
    rounds = [m for m in measured if m.topic == "round" and m.facts["isolation"] == WARM]
    dense = {m.facts["dim"]: m for m in rounds if m.what == DENSE}
    for m in rounds:
        for counted_by in (*COUNTED, "socket") if m.what != DENSE else ():
            for name, ways in {"up": ("up",), "down": ("down",), "both": ("up", "down")}.items():
                one, other = (sum(x.facts[f"{counted_by}_{way}"] for way in ways) for x in (dense[m.facts["dim"]], m))
                facts = {"dim": m.facts["dim"], "counted": counted_by, "way": name}
                yield Measurement(
                    topic="saving", what=m.what, seconds=m.seconds, facts=facts, over=DENSE, ratio=one / max(1, other)
                )


# What follows ---------------------------------------------------------------------------------------------------------

MEGABYTE = 1e6
LAWS: dict[str, tuple[Callable[[Measurement], float], Sequence[str]]] = {
    "bytes up beyond payload": (lambda m: m.facts["net_up"] - m.facts["payload_up"], ("up",)),
    "bytes down beyond payload": (lambda m: m.facts["net_down"] - m.facts["payload_down"], ("down",)),
    "CPU ms, SuperLink": (lambda m: 1e3 * m.facts["cpu_link"], ("up", "down")),
    "CPU ms, SuperNode": (lambda m: 1e3 * m.facts["cpu_node"], ("up", "down")),
    "CPU ms, server": (lambda m: 1e3 * m.facts["cpu_server"], ("up", "down")),
    "download, ms": (lambda m: 1e3 * m.facts["download"], ("down",)),
    "upload, ms": (lambda m: 1e3 * m.facts["upload"], ("up",)),
}
"""Costs of a message and its reply that have a fixed part and one for each megabyte, and the ways whose bytes count."""


@dataclass(frozen=True, kw_only=True)
class Law:
    """A cost = fixed + a megabyte's share, neither negative."""

    what: str
    fixed: float
    a_megabyte: float
    error: float
    """The largest relative one."""


def laws(measured: Sequence[Measurement]) -> Iterator[Law]:
    """By least squares of relative errors, over the rounds of one stage."""
    rounds = [m for m in measured if m.topic == "round" and m.facts["isolation"] == WARM and m.facts["stages"] == 1]
    for what, (cost, ways) in LAWS.items():
        points = [(sum(m.facts[f"payload_{way}"] for way in ways) / MEGABYTE, cost(m)) for m in rounds]
        points = [(megabytes, value) for megabytes, value in points if value > 0]
        if len(points) < 2:
            continue
        relative = np.array([[1 / value, megabytes / value] for megabytes, value in points])
        found, _ = nnls(relative, np.ones(len(points)))
        fixed, a_megabyte = found.tolist()
        yield Law(what=what, fixed=fixed, a_megabyte=a_megabyte, error=float(np.abs(relative @ found - 1).max()))


# What is shown --------------------------------------------------------------------------------------------------------


def tables(measured: Sequence[Measurement]) -> Iterator[Table]:
    """What was measured, for people."""
    rounds = [m for m in measured if m.topic == "round"]
    warm = [m for m in rounds if m.facts["isolation"] == WARM]
    yield harness.table(
        "A client's round, kB up and down",
        ["", "dim", *COUNTED, *COUNTED, "net/payload", "requests"],
        (
            [
                *(m.what, f"{m.facts['dim']:,}"),
                *(f"{m.facts[f'{name}_{way}'] / 1e3:,.1f}" for way in ("up", "down") for name in COUNTED),
                f"{_ratio(measured, 'overhead', m, counted='net'):.3f}",
                f"{m.facts['turns'] - m.facts['polls']:.1f}",
            ]
            for m in warm
        ),
        caption="; ".join(f"{name}: {meaning}" for name, meaning in COUNTED.items()) + "; after the first round",
    )
    yield harness.table(
        "Times fewer bytes than dense, both ways",
        ["", "dim", *COUNTED, "with polling"],
        (
            [
                *(m.what, f"{m.facts['dim']:,}"),
                *(f"{_ratio(measured, 'saving', m, counted=name, way='both'):.1f}" for name in (*COUNTED, "socket")),
            ]
            for m in warm
            if m.what != DENSE
        ),
    )
    yield harness.table(
        "Bytes of one client, by stage",
        ["", "dim", "", "payload up", "net up", "payload down", "net down", "time"],
        (
            [
                *(m.what, f"{m.facts['dim']:,}", m.facts.get("stage", "first round")),
                *(f"{m.facts[f'{name}_{way}']:,}" for way in ("up", "down") for name in ("payload", "net")),
                harness.human_seconds(m.seconds),
            ]
            for m in measured
            if m.topic == "first" or (m.topic == "message" and m.what == SECURE)
        ),
    )
    yield harness.table(
        "Where a round's time goes",
        ["", "dim", "workers", "messages", *PARTS, "all"],
        (
            [
                *(m.what, f"{m.facts['dim']:,}", m.facts["isolation"], str(m.facts["stages"])),
                *(harness.human_seconds(m.facts[part]) for part in PARTS),
                harness.human_seconds(m.seconds),
            ]
            for m in rounds
        ),
        caption="wait: nodes sleep 3 s between questions; app: fork, work, 0.5 s between looks for a reply; all: the slowest",
    )
    yield harness.table(
        "CPU time of a client's round",
        ["", "dim", "workers", "SuperLink", "SuperNode", "app", "server"],
        (
            [
                *(m.what, f"{m.facts['dim']:,}", m.facts["isolation"]),
                *(harness.human_seconds(m.facts[f"cpu_{role}"]) for role in (*ROLES, "server")),
            ]
            for m in rounds
        ),
        caption="app: workers and what they fork, with a step of training; with what all spend on waiting meanwhile",
    )
    yield from _small_tables(measured)


def _small_tables(measured: Sequence[Measurement]) -> Iterator[Table]:
    yield harness.table(
        "Fixed costs of a message and its reply, and those of a megabyte",
        ["", "fixed", "a megabyte", "largest error"],
        ([law.what, f"{law.fixed:,.1f}", f"{law.a_megabyte:,.1f}", f"{law.error:.0%}"] for law in laws(measured)),
        caption="fitted to the rounds of warm workers; bytes without polling",
    )
    for m in measured:
        if m.topic == "idle":
            shown = {name: value for name, value in m.facts.items() if name not in ("nodes", "flwr")}
            yield harness.table(
                "A node that has nothing to do", ["", "a node"], ([name, f"{value:,.4g}"] for name, value in shown.items())
            )
    yield harness.table(
        "Memory after all runs",
        ["", "workers", "resident", "peak", "share"],
        (
            [
                *(m.what, m.facts["isolation"]),
                *(f"{m.facts[f'{name}_bytes'] / 1e6:,.0f} MB" for name in ("rss", "peak", "share")),
            ]
            for m in measured
            if m.topic == "memory"
        ),
        caption="share: pages that forks share are counted once among them",
    )


def _ratio(measured: Sequence[Measurement], topic: str, of: Measurement, **facts: Any) -> float:
    wanted = {"dim": of.facts["dim"], **facts}
    return next(
        m.ratio or 0.0
        for m in measured
        if (m.topic, m.what) == (topic, of.what)
        and wanted.items() <= m.facts.items()
        and m.facts.get("isolation", WARM) == of.facts["isolation"]
    )


def picture(measured: Sequence[Measurement]) -> alt.ConcatChart:
    """Bytes of a client's round by who counts them, and where its time goes."""
    rounds = [m for m in measured if m.topic == "round"]
    labels = {id(m): f"{m.what}, {m.facts['dim']:,}" + (", default" if m.facts["isolation"] == COLD else "") for m in rounds}
    traffic = [
        {
            "run": labels[id(m)],
            "counted": f"{name}: {meaning}",
            "kB": sum(m.facts[f"{name}_{way}"] for way in ("up", "down")) / 1e3,
        }
        for m in rounds
        if m.facts["isolation"] == WARM
        for name, meaning in COUNTED.items()
    ]
    times = [
        {"run": labels[id(m)], "part": part, "order": order, "seconds": m.facts[part] / m.facts["stages"]}
        for m in rounds
        for order, part in enumerate(PARTS)
    ]
    order = alt.Y("run:N", title=None, sort=list(labels.values()))
    counted_by = [f"{name}: {meaning}" for name, meaning in COUNTED.items()]
    legend = alt.Legend(orient="bottom", columns=2)
    left = (
        alt.Chart(alt.InlineData(values=traffic), title="Bytes of a client's round, both ways", width=320, height=220)
        .mark_point(size=60, filled=True, opacity=0.8)
        .encode(
            x=alt.X("kB:Q", title="kB", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g", tickCount=5)),
            y=order,
            color=alt.Color(
                "counted:N", title=None, scale=alt.Scale(domain=counted_by, range=PALETTE[: len(COUNTED)]), legend=legend
            ),
        )
    )
    right = (
        alt.Chart(alt.InlineData(values=times), title="Time of one message and its reply", width=320, height=220)
        .mark_bar()
        .encode(
            x=alt.X("seconds:Q", title="seconds"),
            y=order,
            color=alt.Color(
                "part:N", title=None, scale=alt.Scale(domain=list(PARTS), range=PALETTE[: len(PARTS)]), legend=legend
            ),
            order="order:Q",
        )
    )
    independent = alt.Resolve(scale=alt.ScaleResolveMap(color="independent"))
    return alt.ConcatChart(concat=[left, right], columns=2, spacing=30, resolve=independent)
