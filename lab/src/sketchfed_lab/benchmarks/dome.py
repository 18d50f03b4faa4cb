"""Subspaces that follow the gradients: one update of each rule against a QR from scratch, and the memory it takes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import altair as alt
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from sketchfed import PublicSeed
from sketchfed.report import MUTED, PALETTE, save_chart
from sketchfed.subspaces import UPDATES, Subspace, UpdateRule
from sketchfed_lab.benchmarks import harness
from sketchfed_lab.benchmarks.harness import Measurement
from sketchfed_lab.benchmarks.peers.memory import forget_peak, peak_bytes

QR = "a QR from scratch"
FASTER_THAN_QR, MOST_MEMORY = 5.0, 3.0
USES = ("apply", "apply to 16", "adjoint", "diagonal", "expected")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The subspace to follow, and how many cycles of updates to time."""

    dim: int
    size: int
    cycles: int


FULL = Plan(dim=1_000_000, size=100, cycles=2)
QUICK = Plan(dim=100_000, size=50, cycles=1)
WARM_UP = Plan(dim=1_000, size=8, cycles=1)


def main(*, folder: Path, quick: bool = False) -> None:
    """Time everything, print tables, append to `dome.jsonl` and draw `dome.svg` in the folder."""
    plan, console = QUICK if quick else FULL, Console()
    measured: list[Measurement] = []
    with harness.one_thread(), harness.progress(console) as bar:
        task = bar.add_task("dome", total=len(UPDATES))
        bar.refresh()
        for name in UPDATES:
            measured += followed(name, plan)
            bar.update(task, advance=1, refresh=True)
    harness.append_jsonl(folder / "dome.jsonl", measured)
    save_chart(picture(measured), folder / "dome.svg")
    for table in tables(measured):
        console.print(table)
    targets = [m.met for m in measured if m.met is not None]
    console.print(f"{sum(targets)} of {len(targets)} targets met · {harness.machine()['cpu']} · {folder}")


# What is measured -----------------------------------------------------------------------------------------------------


class Follower:
    """A subspace, full of directions, and what was sensed in it: a step is what following it takes between two rounds."""

    def __init__(self, rule: UpdateRule, plan: Plan) -> None:
        self.rule = rule
        self.draws = torch.Generator().manual_seed(1)
        self.subspace = rule.begin(dim=plan.dim, size=plan.size, seed=PublicSeed(1))
        tracked = rule.tracked(plan.size)
        self.cycle = max(1, self.subspace.basis.capacity - tracked)
        """Updates between two compressions of the basis, of which one compresses."""
        while self.subspace.basis.rank < tracked:
            self.step()

    def step(self) -> None:
        sensed = torch.randn(self.subspace.size, generator=self.draws)
        self.subspace = self.rule.updated(self.subspace, sensed=sensed)
        assert self.subspace.kept == self.subspace.size or self.subspace.probes is not None  # drawn here, not at first use

    def repeat(self, times: int) -> None:
        for _ in range(times * self.cycle):
            self.step()


def from_scratch(matrix: Tensor) -> None:
    torch.linalg.qr(matrix)


def followed(name: str, plan: Plan) -> list[Measurement]:
    """Updates of one rule beside QRs of a matrix as large as S, and the most memory that it held during them."""
    Follower(UPDATES[name](), WARM_UP).repeat(2)  # what is compiled here is not counted as held
    forget_peak()
    before = peak_bytes()
    follower = Follower(UPDATES[name](), plan)
    follower.repeat(1)
    follower.step()  # by now the basis was full at least once, and was compressed to new memory
    held = peak_bytes()
    matrix = torch.randn(plan.dim, plan.size, generator=torch.Generator().manual_seed(2))
    peer, ours = float("inf"), float("inf")
    for _ in range(plan.cycles):
        peer = min(peer, harness.cpu_seconds(harness.repeated(partial(from_scratch, matrix)), 1))
        ours = min(ours, harness.cpu_seconds(follower.repeat, 1) / follower.cycle)
    facts = {"rule": name, "dim": plan.dim, "size": plan.size, "cycle": follower.cycle, "kept": follower.subspace.kept}
    note = partial(Measurement, facts=facts)
    found = [
        note(topic="update", what=name, seconds=ours),
        note(topic="update", what=QR, seconds=peer, over=name, ratio=peer / ours, at_least=FASTER_THAN_QR),
    ]
    if before is not None and held is not None:
        ratio = (held - before) / (4 * plan.dim * plan.size)
        found.append(note(topic="memory", what=name, seconds=0.0, over="dim·size floats", ratio=ratio, at_most=MOST_MEMORY))
    return found + [note(topic="use", what=what, seconds=used(follower.subspace, what)) for what in USES]


def used(subspace: Subspace, what: str) -> float:
    x, y = torch.ones(16, subspace.dim), torch.ones(subspace.size)
    uses = {
        "apply": lambda: subspace.apply(x[0]),
        "apply to 16": lambda: subspace.apply(x),
        "adjoint": lambda: subspace.adjoint(y),
        "diagonal": subspace.diagonal,
        "expected": subspace.expected_diagonal,
    }
    return harness.race({what: harness.repeated(uses[what])}, rounds=2, turn=1e-3)[what]


# What is shown --------------------------------------------------------------------------------------------------------


def tables(measured: Sequence[Measurement]) -> Iterator[Table]:
    """What was measured, for people. Red and a cross mark a missed target."""
    rules: dict[str, dict[tuple[str, str], Measurement]] = {}
    for m in measured:
        rules.setdefault(m.facts["rule"], {})[m.topic, m.what] = m
    first = measured[0].facts
    yield harness.table(
        f"An update of a subspace, dim {first['dim']:,}, size {first['size']}, on average over a cycle of compressions",
        ["", "kept", "time", QR, "QR / ours", "memory / S", *USES],
        (_row(name, found) for name, found in rules.items()),
        caption=f"asked: a QR at least {FASTER_THAN_QR:g} times ours; memory at most {MOST_MEMORY:g} times that of S",
    )


def _row(name: str, found: dict[tuple[str, str], Measurement]) -> list[str]:
    ours, peer, memory = found["update", name], found["update", QR], found.get(("memory", name))
    times = [harness.human_seconds(m.seconds) for m in (ours, peer)]
    uses = [harness.human_seconds(found["use", what].seconds) for what in USES]
    return [name, str(ours.facts["kept"]), *times, harness.judged(peer), harness.judged(memory) if memory else "", *uses]


def picture(measured: Sequence[Measurement]) -> alt.LayerChart:
    """How many updates fit into the time of one QR, a row a rule."""
    rows = [{"rule": m.facts["rule"], "ratio": m.ratio} for m in measured if m.what == QR]
    powers = alt.Axis(values=[10**power for power in range(7)], format=",d")
    title = "time of a QR from scratch, divided by that of an update"
    x = alt.X("ratio:Q", title=title, scale=alt.Scale(type="log"), axis=powers)
    y = alt.Y("rule:N", title=None, sort=list(UPDATES), axis=alt.Axis(grid=True))
    drawn = [
        alt.Chart(alt.InlineData(values=[{"ratio": FASTER_THAN_QR}])).mark_rule(color=MUTED).encode(x=x),
        alt.Chart(alt.InlineData(values=rows)).mark_point(filled=True, size=60, color=PALETTE[0]).encode(x=x, y=y),
    ]
    facts = measured[0].facts
    subtitle = f"dim {facts['dim']:,}, size {facts['size']}, one core; line: the least that is asked"
    return alt.LayerChart(
        layer=drawn, title=alt.Title("An update of a subspace", subtitle=subtitle), width=420, height=alt.Step(26)
    )
