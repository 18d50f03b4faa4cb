"""Speed of the kernels: ratios to other libraries and to each other, and how time grows with dim."""

import ctypes
import importlib
import importlib.util
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import altair as alt
import numba
import numpy as np
import numpy.typing as npt
import scipy.fft
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from sketchfed import PublicSeed
from sketchfed.errors import InputError
from sketchfed.kernels import transform
from sketchfed.report import MUTED, PALETTE, save_chart
from sketchfed.sketches import dense, make_sketch
from sketchfed_lab.benchmarks import harness
from sketchfed_lab.benchmarks.harness import Line, Measurement, Repeat, race, repeated, zeros

Floats = npt.NDArray[np.float32]
Loop = Callable[[Floats, int, int], None]
Makers = Mapping[str, Callable[[int], Repeat]]

FFHT_VARIABLE = "FFHT_LIBRARY"
OURS, FFHT, TABLE, STORED = "fwht", "FFHT (C)", "table scatter", "stored matrix"
FAMILIES = ("srht", "count", "balanced", "sparse", "sparse_blocks", "sampling")
ASKED = {"srht": (OURS, 1.6), "count": (TABLE, 5.0), "balanced": ("srht", 1.0)}
JUDGED = range(14, 25)  # below 2^14 the price of a call from Python outweighs the work
HEAVY = {"altair", "numba", "scipy", "torch"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Logarithms of the dims to time, and how long to look."""

    transforms: Sequence[int]
    tenths: Sequence[int]
    hundredths: Sequence[int]
    rounds: int
    turn: float
    starts: int


FULL = Plan(transforms=range(10, 25), tenths=range(10, 27), hundredths=range(14, 25, 2), rounds=20, turn=0.02, starts=9)
QUICK = Plan(transforms=range(10, 19, 2), tenths=range(10, 21, 2), hundredths=(16,), rounds=5, turn=0.008, starts=2)


def main(*, folder: Path, quick: bool = False) -> None:
    """Time everything, print tables, append to `kernels.jsonl` and draw `kernels.svg` in the folder."""
    plan, console = QUICK if quick else FULL, Console()
    peers, missing = _peers()
    measured: list[Measurement] = []
    with harness.one_thread(), harness.progress(console) as bar:
        task = bar.add_task("kernels", total=len(plan.transforms) + len(plan.tenths) + len(plan.hundredths) + 2)
        for found in _everything(plan, peers):
            measured += found
            bar.update(task, advance=1, refresh=True)
    harness.append_jsonl(folder / "kernels.jsonl", measured)
    save_chart(picture(measured), folder / "kernels.svg")
    for table in tables(measured):
        console.print(table)
    for name, remedy in missing.items():
        console.print(f"[yellow]{name} is left out:[/yellow] {remedy}")
    targets = [m.met for m in measured if m.met is not None]
    console.print(f"{sum(targets)} of {len(targets)} targets met · {harness.machine()['cpu']}, one thread, CPU time · {folder}")


def _everything(plan: Plan, peers: Makers) -> Iterator[list[Measurement]]:
    for log in plan.transforms:
        yield _transforms(log, plan, peers)
    for log in plan.tenths:
        yield _families(log, 10, plan)
    for log in plan.hundredths:
        yield _families(log, 100, plan)
    yield _dense(plan)
    yield _starts(plan.starts)


# The transform against other libraries --------------------------------------------------------------------------------


def _looped(function: Callable[..., Any]) -> Loop:
    """`function(array, log)` some number of times, compiled, so that neither side pays for Python's call."""

    def loop(x: Floats, log: int, times: int) -> None:
        for _ in range(times):
            function(x, log)

    return numba.njit(nogil=True)(loop)


_our_loop = _looped(numba.njit(lambda x, log: transform(x, 0, log)))


def _peers() -> tuple[Makers, dict[str, str]]:
    """Contestants by name, each to be made for a dim of 2^log, and how to get the missing ones."""
    peers: dict[str, Callable[[int], Repeat]] = {}
    missing: dict[str, str] = {}
    library = os.environ.get(FFHT_VARIABLE)
    if library:
        loop = _ffht_loop(library)
        peers[FFHT] = lambda log: partial(loop, zeros(1 << log), log)
    else:
        missing[FFHT] = f"set {FFHT_VARIABLE} to its shared library; lab/benchmarks/README.md tells how to build it."
    if importlib.util.find_spec("fht"):
        fht = importlib.import_module("fht").fht
        peers["fht"] = lambda log: repeated(partial(fht, _random(log)))
    else:
        missing["fht"] = "install it from PyPI; lab/benchmarks/README.md tells how."
    if importlib.util.find_spec("hadamard_transform"):
        hadamard = importlib.import_module("hadamard_transform").hadamard_transform
        peers["hadamard-transform"] = lambda log: repeated(partial(hadamard, torch.from_numpy(_random(log))))
    else:
        missing["hadamard-transform"] = "pip install hadamard-transform."
    peers["torch butterfly"] = lambda log: repeated(partial(_butterfly, torch.zeros(1 << log), torch.zeros(1 << log)))
    peers["scipy DCT"] = lambda log: repeated(partial(scipy.fft.dct, _random(log), workers=1))
    return peers, missing


def _ffht_loop(path: str) -> Loop:
    """The C library's transform, after a look at whether it is one."""
    advice = f"Give the path of libffht.so, or unset {FFHT_VARIABLE} to leave that column out."
    try:
        function = ctypes.CDLL(path).fht_float
    except (OSError, AttributeError) as error:
        raise InputError(f"{FFHT_VARIABLE} is {path!r}, which cannot be used: {error}. {advice}") from error
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.c_int
    loop = _looped(numba.njit(lambda x, log: function(x.ctypes.data, log)))
    theirs, ours = zeros(1024), zeros(1024)
    theirs[:] = ours[:] = _random(10)
    loop(theirs, 10, 1)
    _our_loop(ours, 10, 1)
    if not np.allclose(theirs, ours, rtol=1e-3, atol=1e-3):
        raise InputError(f"fht_float of {path!r} does not compute the Walsh–Hadamard transform. {advice}")
    return loop


def _butterfly(source: Tensor, target: Tensor) -> Tensor:
    """A Hadamard transform in torch: stage after stage from one buffer to the other, nothing allocated."""
    half = 1
    while half < source.numel():
        pairs, out = source.view(-1, 2, half), target.view(-1, 2, half)
        torch.add(pairs[:, 0], pairs[:, 1], out=out[:, 0])
        torch.sub(pairs[:, 0], pairs[:, 1], out=out[:, 1])
        source, target, half = target, source, 2 * half
    return source


def _random(log: int) -> Floats:
    return torch.randn(1 << log, generator=torch.Generator().manual_seed(7)).numpy()


def _transforms(log: int, plan: Plan, peers: Makers) -> list[Measurement]:
    """FFHT is close, so it gets a race of its own with many rounds; the others are far behind, and few rounds show it."""
    ours = partial(_our_loop, zeros(1 << log), log)
    near: dict[str, Repeat] = {OURS: ours, **{name: make(log) for name, make in peers.items() if name == FFHT}}
    close = race(near, rounds=2 * plan.rounds, turn=plan.turn)
    far: dict[str, Repeat] = {OURS: ours, **{name: make(log) for name, make in peers.items() if name != FFHT}}
    behind = race(far, rounds=-(-plan.rounds // 4), turn=plan.turn)
    note = partial(Measurement, topic="transform", facts={"dim": 1 << log})
    found = []
    if FFHT in close:
        found.append(note(what=FFHT, seconds=close[FFHT], over=OURS, ratio=close[FFHT] / close[OURS], at_least=1 / 1.1))
    for name in far:
        if name != OURS:
            ratio, at_least = behind[name] / behind[OURS], 10 if log >= 16 else None
            found.append(note(what=name, seconds=behind[name], over=OURS, ratio=ratio, at_least=at_least))
    return [note(what=OURS, seconds=close[OURS]), *found]


# Sketches against the bare transform, a table and each other -----------------------------------------------------------


@numba.njit(nogil=True, error_model="numpy")
def _scatter_by_table(x: Floats, buckets: npt.NDArray[np.int32], signs: npt.NDArray[np.int8], out: Floats) -> None:
    out[:] = 0
    for i in range(x.size):
        out[np.uint32(buckets[i])] += signs[i] * x[i]


@numba.njit(nogil=True)
def _copy(x: Floats, y: Floats, times: int) -> None:
    for turn in range(times):  # back and forth, or the compiler may see that one copy is enough
        source, target = (y, x) if turn & 1 else (x, y)
        for i in range(x.size):
            target[i] = source[i]


def _families(log: int, share: int, plan: Plan) -> list[Measurement]:
    """The fast families at size dim/share beside what they are measured by, then the first use of the ones that draw."""
    dim, size = 1 << log, (1 << log) // share
    facts = {"dim": dim, "size": size, "share": share}
    generator = np.random.default_rng(7)
    values = _random(log)
    x = torch.from_numpy(values)
    buckets = generator.integers(0, size, dim, dtype=np.int32)
    signs = generator.integers(0, 2, dim, dtype=np.int8) * np.int8(2) - np.int8(1)
    contestants: dict[str, Repeat] = {
        "memcpy": partial(_copy, values, zeros(dim)),
        OURS: partial(_our_loop, zeros(dim), log),
        TABLE: repeated(partial(_scatter_by_table, values, buckets, signs, zeros(size))),
    }
    for name in FAMILIES:
        contestants[name] = repeated(partial(make_sketch(name, dim=dim, size=size, seed=PublicSeed(7)).apply, x))
    rounds = plan.rounds if log <= 20 else -(-plan.rounds // 3)  # turns are long there
    seconds = race(contestants, rounds=rounds, turn=plan.turn)
    found = []
    for name, taken in seconds.items():
        over, at_most = ASKED.get(name, ("memcpy", None))
        ratio = taken / seconds[over]
        limit = at_most if log in JUDGED else None
        found.append(
            Measurement(topic="families", what=name, seconds=taken, facts=facts, over=over, ratio=ratio, at_most=limit)
        )
    for name in ASKED:
        fresh = (make_sketch(name, dim=dim, size=size, seed=PublicSeed(number)) for number in range(3))
        first = min(harness.cpu_seconds(repeated(partial(sketch.apply, x)), 1) for sketch in fresh)
        ratio = first / seconds[name]
        found.append(Measurement(topic="first use", what=name, seconds=first, facts=facts, over="later uses", ratio=ratio))
    return found


# For information: dense families, and how soon the package answers -----------------------------------------------------


def _dense(plan: Plan) -> list[Measurement]:
    """Matrices made up on the fly against the same matrix stored, where storing it is still possible."""
    dim, size = 4096, 256
    x, found = torch.from_numpy(_random(12)), []
    for name in ("ams", "gaussian"):
        sketch = make_sketch(name, dim=dim, size=size, seed=PublicSeed(7))
        multiply = partial(torch.mv, dense(sketch, dtype=torch.float32), x)
        contestants = {name: repeated(partial(sketch.apply, x)), STORED: repeated(multiply)}
        seconds = race(contestants, rounds=plan.rounds, turn=plan.turn)
        for what, taken in seconds.items():
            gflops, ratio = 2e-9 * dim * size / taken, taken / seconds[STORED]
            facts = {"dim": dim, "size": size, "gflops": gflops, "remark": f"{gflops:.2g} GFLOP/s"}
            found.append(Measurement(topic="dense", what=what, seconds=taken, facts=facts, over=STORED, ratio=ratio))
    return found


def _starts(times: int) -> list[Measurement]:
    """Wall-clock seconds of new processes, and which heavy packages each of them loaded."""
    programs = {"import numpy": "import numpy", "import sketchfed": "import sketchfed"}
    if importlib.util.find_spec("sketchfed.cli"):
        programs["sketchfed --help"] = "sys.argv = ['sketchfed', '--help']; from sketchfed.cli import main; main()"
    watch = f"import atexit, sys; atexit.register(lambda: print(*sorted({HEAVY} & set(sys.modules)), file=sys.stderr)); "
    taken, loaded = dict.fromkeys(programs, math.inf), dict.fromkeys(programs, "")
    for _ in range(times):
        for name, program in programs.items():
            start = time.perf_counter()
            done = subprocess.run([sys.executable, "-c", watch + program], check=True, capture_output=True, text=True)
            taken[name] = min(taken[name], time.perf_counter() - start)
            loaded[name] = f"wall clock, loads {done.stderr.strip() or 'nothing heavy'}"
    over = "import numpy"
    note = partial(Measurement, topic="start", over=over)
    return [note(what=name, seconds=s, ratio=s / taken[over], facts={"remark": loaded[name]}) for name, s in taken.items()]


# What is shown --------------------------------------------------------------------------------------------------------


def _rows(measured: Sequence[Measurement], topic: str) -> dict[tuple[int, int], dict[str, Measurement]]:
    """A topic's measurements by dim and dim/size, then by what was measured."""
    rows: dict[tuple[int, int], dict[str, Measurement]] = {}
    for m in measured:
        if m.topic == topic:
            rows.setdefault((m.facts["dim"], m.facts.get("share", 1)), {})[m.what] = m
    return rows


def _cells(row: Mapping[str, Measurement], names: Iterable[str]) -> Iterator[str]:
    """Nanoseconds a coordinate."""
    return (f"{row[name].seconds / row[name].facts['dim'] * 1e9:.2f}" for name in names)


def tables(measured: Sequence[Measurement]) -> Iterator[Table]:
    """What was measured, for people. Red and a cross mark a missed target."""
    transforms, families, first = (_rows(measured, topic) for topic in ("transform", "families", "first use"))
    names = [name for name in next(iter(transforms.values())) if name != OURS]
    yield harness.table(
        "Hadamard transform of float32: our nanoseconds a coordinate, and the time of others divided by ours",
        ["dim", "ours, ns", *names],
        (
            [harness.human_dim(dim), *_cells(row, [OURS]), *(harness.judged(row[name]) for name in names)]
            for (dim, _), row in transforms.items()
        ),
        caption="asked: FFHT at least 0.91 (we take at most 1.1 of its time), the others at least 10 from 2^16 on",
    )
    columns = ["memcpy", OURS, TABLE, *FAMILIES]
    yield harness.table(
        "Applying a sketch of size dim/10: nanoseconds a coordinate",
        ["dim", *(name.replace("_", " ") for name in columns)],
        ([harness.human_dim(dim), *_cells(row, columns)] for (dim, share), row in families.items() if share == 10),
    )
    limits = ", ".join(f"{name} at most {limit:g} × {over}" for name, (over, limit) in ASKED.items())
    yield harness.table(
        "Ratios between them, and the first use of a sketch, when its signs, rows or buckets are drawn",
        ["dim", "dim / size", *(f"{name} / {ASKED[name][0]}" for name in ASKED), *(f"first {name}" for name in ASKED)],
        (
            [
                *(harness.human_dim(dim), str(share), *(harness.judged(row[name]) for name in ASKED)),
                *(harness.human_seconds(first[dim, share][name].seconds) for name in ASKED),
            ]
            for (dim, share), row in families.items()
        ),
        caption=f"asked from 2^14 to 2^24: {limits}. Below, the price of a call from Python outweighs the work.",
    )
    yield harness.table(
        "For information",
        ["what", "time", "divided by that of", "", "remark"],
        (
            [m.what, harness.human_seconds(m.seconds), m.over or "", f"{m.ratio or 0:.2f}", m.facts["remark"]]
            for m in measured
            if m.topic in ("dense", "start")
        ),
    )


def picture(measured: Sequence[Measurement]) -> alt.ConcatChart:
    """Above what was asked, below how time grows beside the ideal."""
    transforms = {dim.bit_length() - 1: row for (dim, _), row in _rows(measured, "transform").items()}
    families = {dim.bit_length() - 1: row for (dim, share), row in _rows(measured, "families").items() if share == 10}
    logs = sorted({*transforms, *families})
    colours = {"memcpy": MUTED, **dict(zip((OURS, *FAMILIES), PALETTE, strict=False))}

    def level(value: float, *, label: str = "", colour: str = MUTED, first: int = logs[0]) -> Line:
        return Line(label=label, points={first: value, logs[-1]: value}, colour=colour, dashed=True)

    def peer(name: str, colour: str) -> Line:
        return Line(label=name, points={log: row[name].ratio or 0 for log, row in transforms.items()}, colour=colour)

    def share_of_limit(name: str, over: str, limit: float) -> Line:
        points = {log: (row[name].ratio or 0) / limit for log, row in families.items() if log in JUDGED}
        return Line(label=f"{name} ≤ {limit:g} × {over}", points=points, colour=colours[name])

    def growth(name: str) -> Line:
        points = {log: row[name].seconds / row[name].facts["dim"] * 1e9 for log, row in families.items()}
        return Line(label=name, points=points, colour=colours[name])

    names = [name for name in transforms[logs[0]] if name != OURS]
    peers = [peer(name, colour) for name, colour in zip(names, PALETTE, strict=False)]
    asked = [share_of_limit(name, over, limit) for name, (over, limit) in ASKED.items()]
    bare = growth(OURS)
    least = min(value / log for log, value in bare.points.items())
    ideal = Line(label="dim · log dim", points={log: least * log for log in logs}, colour=bare.colour, dashed=True)
    others = [growth(name) for name in FAMILIES if name != "srht"]
    flat = [level(min(line.points.values()), colour=line.colour) for line in others]
    panels = [
        harness.panel(
            [*peers, level(1, label="sketchfed"), level(10, label="asked: 10", first=16)],
            title="Hadamard transform against others",
            subtitle="their time divided by ours",
            values="ratio",
        ),
        harness.panel(
            [*asked, Line(label="the limit", points=dict.fromkeys(asked[0].points, 1), dashed=True)],
            title="Sketches against what was asked of them",
            subtitle="size = dim/10; met below the dashed line. On the left they pay for Python's call",
            values="share of the limit",
        ),
        harness.panel(
            [growth("memcpy"), bare, growth("srht"), ideal],
            title="Growth of the transform",
            subtitle="dashed: the ideal, through the best point of the bare transform",
            values="ns per coordinate",
        ),
        harness.panel(
            [growth("memcpy"), *others, *flat],
            title="Growth of the other families",
            subtitle="dashed: proportional to dim, through the best point of each",
            values="ns per coordinate",
        ),
    ]
    return alt.ConcatChart(concat=panels, columns=2, spacing=30)
