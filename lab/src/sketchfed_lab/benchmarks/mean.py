"""Decoding a mean from random projections: ratios to the paper's decoder, memory, and growth with dim."""

import gc
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from sketchfed import PublicSeed
from sketchfed.codecs import ENSEMBLES, Ensemble, cheaper_decoder, make_codec, solve
from sketchfed.kernels import hadamard_
from sketchfed.report import PALETTE, save_chart
from sketchfed_lab.benchmarks import harness
from sketchfed_lab.benchmarks.harness import Measurement

OURS, PAPER, SYMMETRIC = "ours", "the paper's, eig", "the same with eigh"
FASTER_THAN_PAPER, FASTER_THAN_SYMMETRIC, CLOSE = 100.0, 20.0, 1e-9
DIM = 1024
BELIEFS = (0.1, 0.5, 0.9, 0.99, 1.0)
CLIENTS, MOST_VECTORS, MOST_GROWTH = 50, 40, 1.1
MOST_OVER_TRANSFORM = 1.6

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to time and how long: settings as (clients, size), dims as powers of two."""

    settings: Sequence[tuple[int, int]]
    logs: Sequence[int]
    rounds: int
    turn: float


FULL = Plan(settings=((10, 102), (50, 20)), logs=tuple(range(12, 23)), rounds=3, turn=0.2)
QUICK = Plan(settings=((10, 102),), logs=(12, 14), rounds=1, turn=0.02)


def main(*, folder: Path, quick: bool = False) -> None:
    """Time everything, print tables, append to `mean.jsonl` and draw `mean.svg` in the folder."""
    plan, console = QUICK if quick else FULL, Console()
    measured: list[Measurement] = []
    with harness.one_thread(), threadpool_limits(1), harness.progress(console) as bar:
        task = bar.add_task("mean", total=2 * len(plan.settings) + 2 * len(plan.logs))
        bar.refresh()
        for found in _everything(plan):
            measured += found
            bar.update(task, advance=1, refresh=True)
    measured += growth([m for m in measured if m.topic == "scale"])
    harness.append_jsonl(folder / "mean.jsonl", measured)
    save_chart(picture(measured), folder / "mean.svg")
    for table in tables(measured):
        console.print(table)
    targets = [m.met for m in measured if m.met is not None]
    console.print(f"{sum(targets)} of {len(targets)} targets met · {harness.machine()['cpu']} · {folder}")


def _everything(plan: Plan) -> Iterator[list[Measurement]]:
    for clients, size in plan.settings:
        yield against_the_paper(clients, size, plan)
        yield by_belief(clients, size, plan)
    for log in plan.logs:
        yield encoding(1 << log, plan)
        yield scale(1 << log)


# What is measured -----------------------------------------------------------------------------------------------------


def _drawn(dim: int, size: int, clients: int, name: str = "srht") -> Ensemble:
    return ENSEMBLES[name](dim, size, [PublicSeed(1).child("client", client) for client in range(clients)])


def paper_decoder(rows: Floats, y: Floats, rho: float, *, symmetric: bool) -> Floats:
    """Jiang et al. 2023, Eq. 5 without β̄: eigenvectors of the dim × dim sum, T of the eigenvalues, a pseudo-inverse.

    `rows` is G, all maps as one matrix. The paper names `eig` nowhere but says it is numpy and scipy; both ways are timed.
    """
    total = rows.T @ rows
    if symmetric:
        values, vectors = np.linalg.eigh(total)
        back = vectors.T
    else:
        spectrum, right = np.linalg.eig(total)
        values, vectors = spectrum.real, right.real
        back = np.linalg.inv(right).real
    values = np.where(np.abs(values) < 1e-9, 0.0, values)
    transformed = (vectors * (1 + rho * (values - 1))) @ back
    return np.asarray(np.linalg.pinv(transformed, hermitian=symmetric) @ (rows.T @ y))


def against_the_paper(clients: int, size: int, plan: Plan) -> list[Measurement]:
    """From maps that are drawn and numbers that have arrived to the estimate, in float64, at the paper's "Avg"."""
    ensemble, rho = _drawn(DIM, size, clients), clients / (2 * (clients - 1))
    y = torch.randn(clients, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rows = torch.stack([ensemble.forward(unit).reshape(-1) for unit in torch.eye(DIM, dtype=torch.float64)], 1).numpy()
    ours: Callable[[], Any] = partial(solve, ensemble, y, rho, tolerance=1e-12)
    peers: dict[str, Callable[[], Any]] = {
        name: partial(paper_decoder, rows, y.reshape(-1).numpy(), rho, symmetric=symmetric)
        for name, symmetric in ((PAPER, False), (SYMMETRIC, True))
    }
    seconds = harness.race(
        {name: harness.repeated(work) for name, work in {OURS: ours, **peers}.items()}, rounds=plan.rounds, turn=plan.turn
    )
    asked = {PAPER: FASTER_THAN_PAPER, SYMMETRIC: FASTER_THAN_SYMMETRIC}
    facts = {"dim": DIM, "clients": clients, "size": size, "rho": rho}
    note = partial(Measurement, topic="decoder")
    found = [note(what=OURS, seconds=seconds[OURS], facts=facts | {"decoder": cheaper_decoder(ensemble, rho, 1e-12)})]
    for name, work in peers.items():
        expected = work()
        apart = float(np.abs(ours().numpy() - expected).max() / np.abs(expected).max())
        ratio = seconds[name] / seconds[OURS]
        found.append(note(what=name, seconds=seconds[name], facts=facts, over=OURS, ratio=ratio, at_least=asked[name]))
        found.append(
            Measurement(
                topic="difference", what=name, seconds=seconds[name], facts=facts, over="largest", ratio=apart, at_most=CLOSE
            )
        )
    return found


def by_belief(clients: int, size: int, plan: Plan) -> list[Measurement]:
    """Both decoders for several ρ, and which one is chosen by itself."""
    ensemble = _drawn(DIM, size, clients)
    y = torch.randn(clients, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = []
    for rho in BELIEFS:
        works = {name: partial(solve, ensemble, y, rho, decoder=name, tolerance=1e-10) for name in ("dual", "cg")}
        seconds = harness.race(
            {name: harness.repeated(work) for name, work in works.items()}, rounds=plan.rounds, turn=plan.turn / 4
        )
        chosen = cheaper_decoder(ensemble, rho, 1e-10)
        facts = {"dim": DIM, "clients": clients, "size": size, "rho": rho, "chosen": chosen}
        best = min(seconds, key=seconds.__getitem__)
        for name, taken in seconds.items():
            found.append(
                Measurement(topic="belief", what=name, seconds=taken, facts=facts, over=best, ratio=taken / seconds[best])
            )
    return found


def encoding(dim: int, plan: Plan) -> list[Measurement]:
    """One client's projection to dim/500 numbers with its map at hand, and a whole packet, for which the map is drawn too."""
    size = max(1, dim // (10 * CLIENTS))
    x = torch.randn(dim, generator=torch.Generator().manual_seed(1))
    kept = {name: _drawn(dim, size, 1, name) for name in ("srht", "balanced")}
    work = x.clone()
    contestants = {"transform": harness.repeated(lambda: hadamard_(work.mul_(1e-3)))}
    contestants |= {name: harness.repeated(partial(ensemble.forward, x)) for name, ensemble in kept.items()}
    for name in kept:
        codec = make_codec("rand_proj_spatial", dim=dim, size=size, ensemble=name)
        contestants[f"{name}, a packet"] = harness.repeated(partial(codec.encode, x, PublicSeed(2)))
    seconds = harness.race(contestants, rounds=plan.rounds, turn=plan.turn / 4)
    found = []
    for name, taken in seconds.items():
        over = "srht" if name == "balanced" else "transform"
        most = {"srht": MOST_OVER_TRANSFORM, "balanced": 1.0}.get(name) if dim >= 2**14 else None
        facts = {"dim": dim, "size": size}
        if name != "transform":
            ratio = taken / seconds[over]
            found.append(
                Measurement(topic="encoding", what=name, seconds=taken, facts=facts, over=over, ratio=ratio, at_most=most)
            )
        else:
            found.append(Measurement(topic="encoding", what=name, seconds=taken, facts=facts))
    return found


def scale(dim: int) -> list[Measurement]:
    """A whole decode of 50 packets with dim/500 numbers each, in a process of its own: wall time, and memory at its peak."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        seconds, peak = pool.apply(_decoded_alone, (dim,))
    facts = {"dim": dim, "clients": CLIENTS, "size": max(1, dim // (10 * CLIENTS)), "peak_bytes": peak}
    vectors = None if peak is None or dim < 2**18 else peak / (4 * dim)  # below, the interpreter's own memory outweighs it
    return [
        Measurement(
            topic="scale",
            what="decode",
            seconds=seconds,
            facts=facts,
            over="vectors of memory",
            ratio=vectors,
            at_most=MOST_VECTORS,
        )
    ]


def _decoded_alone(dim: int) -> tuple[float, int | None]:
    torch.set_num_threads(1)
    codec = make_codec("rand_proj_spatial", dim=dim, size=max(1, dim // (10 * CLIENTS)), correlation="avg")
    generator = torch.Generator().manual_seed(1)
    common = torch.randn(dim, generator=generator)
    packets = [codec.encode(common + torch.randn(dim, generator=generator), PublicSeed(3), client) for client in range(CLIENTS)]
    small = make_codec("rand_proj_spatial", dim=4096, size=100, correlation="avg")
    for precision_for in (2, 300):  # compile for float64, which small problems are decoded in, and for float32
        some = [small.encode(torch.ones(4096), PublicSeed(3), client) for client in range(precision_for)]
        small.decode(some, PublicSeed(3))
    best, peak = math.inf, None
    for _ in range(2 if dim >= 2**20 else 5):
        gc.collect()
        before = _peak_reset()
        start = time.perf_counter()
        codec.decode(packets, PublicSeed(3))
        best = min(best, time.perf_counter() - start)
        after = _memory("VmHWM")
        if before is not None and after is not None:
            peak = max(peak or 0, after - before)
    return best, peak


def _peak_reset() -> int | None:
    """Forget the peak so far, and say what is in use now; None where the system has no such counters."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _memory("VmRSS")


def _memory(field: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(field)), None)


def growth(measured: Sequence[Measurement]) -> list[Measurement]:
    """How time for the largest dim compares with that for the smallest, each divided by n·dim·log dim."""
    costs = {m.facts["dim"]: m.seconds / (m.facts["dim"] * math.log2(m.facts["dim"])) for m in measured}
    first, last = min(costs), max(costs)
    facts = {"dim": last, "from_dim": first}
    note = partial(Measurement, topic="growth", what="n·dim·log dim", facts=facts, at_most=MOST_GROWTH)
    return [note(seconds=measured[-1].seconds, over=harness.human_dim(first), ratio=costs[last] / costs[first])]


# What is shown --------------------------------------------------------------------------------------------------------


def tables(measured: Sequence[Measurement]) -> Iterator[Table]:
    """What was measured, for people. Red and a cross mark a missed target."""
    topics = {topic: [m for m in measured if m.topic == topic] for topic in dict.fromkeys(m.topic for m in measured)}
    apart = {(m.what, m.facts["clients"]): m for m in topics["difference"]}
    yield harness.table(
        f"Decoding at dim {DIM:,}, float64, ρ of the paper's 'Avg'",
        ["", "clients", "size", "time", "divided by ours", "largest difference"],
        (
            [
                *(m.what, str(m.facts["clients"]), str(m.facts["size"]), harness.human_seconds(m.seconds)),
                harness.judged(m) if m.ratio else "",
                _difference(apart.get((m.what, m.facts["clients"]))),
            ]
            for m in topics["decoder"]
        ),
        caption=f"asked: at least {FASTER_THAN_PAPER:g} and {FASTER_THAN_SYMMETRIC:g} times ours, equal to {CLOSE:g}",
    )
    yield harness.table(
        "Which decoder for which belief",
        ["ρ", "clients", "size", "dual", "cg", "chosen"],
        _beliefs(topics["belief"]),
    )
    yield harness.table(
        "Encoding to dim/500 numbers",
        ["", "dim", "time", "divided by", ""],
        (
            [
                m.what,
                harness.human_dim(m.facts["dim"]),
                harness.human_seconds(m.seconds),
                m.over or "",
                harness.judged(m) if m.ratio else "",
            ]
            for m in topics["encoding"]
        ),
        caption=f"asked from 2^14 on: srht at most {MOST_OVER_TRANSFORM:g} transforms, balanced at most srht; "
        "a packet has its map drawn anew",
    )
    yield harness.table(
        f"Decoding {CLIENTS} packets of dim/500 numbers each, float32 from 2^15 on, maps drawn anew",
        ["dim", "time", "ns / (n·dim·log dim)", "peak memory, vectors"],
        (
            [
                *(harness.human_dim(m.facts["dim"]), harness.human_seconds(m.seconds)),
                f"{1e9 * m.seconds / (CLIENTS * m.facts['dim'] * math.log2(m.facts['dim'])):.2f}",
                harness.judged(m) if m.ratio else "",
            ]
            for m in topics["scale"]
        ),
        caption=f"asked: at most {MOST_VECTORS} vectors; growth by n·dim·log dim at most {MOST_GROWTH:g}, "
        f"it is {topics['growth'][0].ratio:.2f}",
    )


def _difference(measurement: Measurement | None) -> str:
    if measurement is None or measurement.ratio is None:
        return ""
    return f"{measurement.ratio:.0e}" + ("" if measurement.met else " ✗")


def _beliefs(measured: Sequence[Measurement]) -> Iterator[list[str]]:
    pairs: dict[tuple[Any, ...], dict[str, Measurement]] = {}
    for m in measured:
        pairs.setdefault((m.facts["rho"], m.facts["clients"], m.facts["size"]), {})[m.what] = m
    for key, found in pairs.items():
        times = [harness.human_seconds(found[name].seconds) for name in ("dual", "cg")]
        yield [*(f"{value:g}" for value in key), *times, found["cg"].facts["chosen"]]


def picture(measured: Sequence[Measurement]) -> alt.ConcatChart:
    """Time against dim beside n·dim·log dim, and memory in vectors."""
    scales = [m for m in measured if m.topic == "scale"]
    times = {m.facts["dim"].bit_length() - 1: m.seconds for m in scales}
    first = min(times)
    ideal = {log: times[first] * 2.0 ** (log - first) * log / first for log in times}
    lines = [
        harness.Line(label="decode", points=times, colour=PALETTE[0]),
        harness.Line(label="n·dim·log dim", points=ideal, dashed=True),
    ]
    panels = [
        harness.panel(
            lines,
            title=f"Decoding {CLIENTS} packets of dim/500 numbers",
            subtitle="seconds on the wall, from packets to the mean, maps drawn anew",
            values="seconds",
        )
    ]
    memory = {m.facts["dim"].bit_length() - 1: m.ratio for m in scales if m.ratio}
    if len(memory) > 1:
        asked: Mapping[int, float] = dict.fromkeys(memory, float(MOST_VECTORS))
        panels.append(
            harness.panel(
                [
                    harness.Line(label="decode", points=memory, colour=PALETTE[0]),
                    harness.Line(label="asked", points=asked, dashed=True),
                ],
                title="Memory at its peak",
                subtitle="in vectors of dim float32 numbers, beyond the packets themselves",
                values="vectors",
            )
        )
    return alt.ConcatChart(concat=panels, columns=2, spacing=60)
