"""Noise and mechanisms: samples a second, ratios to other samplers, and what privacy costs a client.

OpenDP's column appears where it is installed: pip install opendp.
"""

import importlib.util
import math
from collections.abc import Callable, Iterator, Sequence
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

from sketchfed import PublicSeed, SecretSeed
from sketchfed.privacy import DiscreteGaussian, GaussianNoise, discrete_gaussian, secret_normals, variance_above
from sketchfed.report import PALETTE, save_chart
from sketchfed.seeds import SecretStream
from sketchfed_lab.benchmarks import harness
from sketchfed_lab.benchmarks.harness import Measurement

OURS, NUMPY, OPENDP = "ours", "numpy, vectorised", "OpenDP"
ASKED = {OPENDP: 20.0, NUMPY: 1.0}
PLAIN, GAUSSIAN, DISCRETE = "plain numpy", "gaussian", "discrete_gaussian"

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to time and how long: deviations of the noise, samples in a call, shapes of a client's rows."""

    deviations: Sequence[float]
    samples: int
    opendp_samples: int
    shapes: Sequence[tuple[int, int]]
    rounds: int
    turn: float


FULL = Plan(
    deviations=(0.5, 4.5, 100.0, 1e4, 1e6),
    samples=200_000,
    opendp_samples=5_000,
    shapes=((600, 509), (60, 5_089), (1, 50_890)),
    rounds=5,
    turn=0.2,
)
QUICK = Plan(deviations=(4.5,), samples=20_000, opendp_samples=500, shapes=((60, 509),), rounds=1, turn=0.02)


def main(*, folder: Path, quick: bool = False) -> None:
    """Time everything, print tables, append to `privacy.jsonl` and draw `privacy.svg` in the folder."""
    plan, console = QUICK if quick else FULL, Console()
    measured: list[Measurement] = []
    with harness.one_thread(), harness.progress(console) as bar:
        task = bar.add_task("privacy", total=len(plan.deviations) + 1 + len(plan.shapes))
        bar.refresh()
        for found in _everything(plan):
            measured += found
            bar.update(task, advance=1, refresh=True)
    harness.append_jsonl(folder / "privacy.jsonl", measured)
    save_chart(picture(measured), folder / "privacy.svg")
    for table in tables(measured):
        console.print(table)
    if importlib.util.find_spec("opendp") is None:
        console.print("[yellow]OpenDP is left out:[/yellow] pip install opendp")
    targets = [m.met for m in measured if m.met is not None]
    console.print(f"{sum(targets)} of {len(targets)} targets met · {harness.machine()['cpu']} · {folder}")


def _everything(plan: Plan) -> Iterator[list[Measurement]]:
    for deviation in plan.deviations:
        yield sampling(deviation, plan)
    yield normals(plan)
    for units, size in plan.shapes:
        yield mechanisms(units, size, plan)


# What is measured -----------------------------------------------------------------------------------------------------


def sampling(deviation: float, plan: Plan) -> list[Measurement]:
    """Discrete Gaussian noise of one deviation, as a call draws it: seconds of a sample."""
    variance = variance_above(deviation)
    coarse = int(4 * deviation**2), 4  # numpy's version compares in 64 bits and cannot take finer fractions
    works: dict[str, tuple[int, Callable[[], Any]]] = {
        OURS: (plan.samples, partial(discrete_gaussian, SecretSeed(), plan.samples, variance=variance))
    }
    if deviation <= 1e4:
        works[NUMPY] = plan.samples, partial(vectorised, SecretSeed(), plan.samples, *coarse)
    if (drawn := opendp_sampler(deviation)) is not None:
        works[OPENDP] = plan.opendp_samples, partial(drawn, [0] * plan.opendp_samples)
    contestants = {name: harness.repeated(work) for name, (_, work) in works.items()}
    seconds = harness.race(contestants, rounds=plan.rounds, turn=plan.turn)
    each = {name: seconds[name] / count for name, (count, _) in works.items()}
    found = []
    for name, taken in each.items():
        facts = {"deviation": deviation, "samples": works[name][0], "million_a_second": round(1e-6 / taken, 3)}
        over = {} if name == OURS else {"over": OURS, "ratio": taken / each[OURS], "at_least": ASKED[name]}
        found.append(Measurement(topic="discrete", what=name, seconds=taken, facts=facts, **over))  # type: ignore[arg-type]
    return found


def opendp_sampler(deviation: float) -> Callable[[list[int]], list[int]] | None:
    """OpenDP's measurement of a vector of integers, which adds the same noise by the same algorithms; None if not installed."""
    if importlib.util.find_spec("opendp") is None:
        return None
    dp = importlib.import_module("opendp.prelude")
    dp.enable_features("contrib")
    made = dp.m.make_gaussian(dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float), scale=deviation)
    return made  # type: ignore[no-any-return]


def vectorised(secret: SecretSeed, count: int, p: int, q: int) -> Integers:
    """Canonne, Kamath & Steinke 2020 for variance p/q in numpy: each step for all samples that are still undecided at once."""
    stream, t = SecretStream(secret), math.isqrt(p // q) + 1
    found: list[Integers] = []
    have = 0
    while have < count:
        tried = _laplace(stream, t, int((count - have) * 2.4) + 64)
        kept = tried[_heads(stream, (np.abs(tried) * q * t - p) ** 2, 2 * p * q * t * t)]
        found.append(kept)
        have += len(kept)
    return np.concatenate(found)[:count]


def _below(stream: SecretStream, most: int, count: int) -> Integers:
    """Uniform integers below `most`, without bias."""
    numbers = np.frombuffer(stream.read(8 * count), "<u8").copy()
    limit = (1 << 64) - (1 << 64) % most
    while limit < 1 << 64 and (bad := np.flatnonzero(numbers >= np.uint64(limit))).size:
        numbers[bad] = np.frombuffer(stream.read(8 * bad.size), "<u8")
    return (numbers % np.uint64(most)).astype(np.int64)


def _heads_below_one(stream: SecretStream, part: Integers, whole: int) -> npt.NDArray[np.bool_]:
    answers, open_, k = np.zeros(len(part), np.bool_), np.arange(len(part)), 1
    while open_.size:
        up = _below(stream, whole * k, open_.size) < part[open_]
        answers[open_[~up]] = k % 2 == 1
        open_, k = open_[up], k + 1
    return answers


def _heads(stream: SecretStream, part: Integers, whole: int) -> npt.NDArray[np.bool_]:
    times = part // whole
    answers = _heads_below_one(stream, part - times * whole, whole)
    for number in range(int(times.max(initial=0))):
        still = np.flatnonzero(answers & (times > number))
        if not still.size:
            break
        answers[still] = _heads_below_one(stream, np.full(still.size, whole), whole)
    return answers


def _laplace(stream: SecretStream, t: int, count: int) -> Integers:
    rest = _below(stream, t, count)
    rest = rest[_heads_below_one(stream, rest, t)]
    times, going = np.zeros(len(rest), np.int64), np.arange(len(rest))
    while going.size:
        going = going[_heads_below_one(stream, np.ones(going.size, np.int64), 1)]
        times[going] += 1
    heights = rest + t * times
    negative = _below(stream, 2, len(heights)) == 1
    signed: Integers = np.where(negative, -heights, heights)[~(negative & (heights == 0))]
    return signed


def normals(plan: Plan) -> list[Measurement]:
    """Normal numbers from a secret, and numpy's from a generator that is none."""
    generator, count = np.random.default_rng(1), plan.samples
    seconds = harness.race(
        {
            OURS: harness.repeated(partial(secret_normals, SecretSeed(), count)),
            "numpy, not secret": harness.repeated(partial(generator.normal, size=count)),
        },
        rounds=plan.rounds,
        turn=plan.turn,
    )
    note = partial(Measurement, topic="normals")
    base = seconds["numpy, not secret"] / count
    return [
        note(what="numpy, not secret", seconds=base, facts={"million_a_second": round(1e-6 / base, 3)}),
        note(
            what=OURS,
            seconds=seconds[OURS] / count,
            facts={"million_a_second": round(1e-6 * count / seconds[OURS], 3)},
            over="numpy, not secret",
            ratio=seconds[OURS] / count / base,
        ),
    ]


def mechanisms(units: int, size: int, plan: Plan) -> list[Measurement]:
    """What a client does to its rows: clip each, add them up, add noise; beside numpy with noise that is not secret."""
    rows = torch.randn(units, size, generator=torch.Generator().manual_seed(1))
    gaussian = GaussianNoise(size=size, clip=1.0, deviation=1.0)
    discrete = DiscreteGaussian.planned(size=size, clip=1.0, multiplier=1.0, clients=100, least=80, units=units)
    secret, shared, generator = SecretSeed(), PublicSeed(1), np.random.default_rng(1)

    def plain() -> npt.NDArray[np.float32]:
        x = rows.numpy()
        factors = np.minimum(1, 1 / np.linalg.norm(x, axis=1))
        return np.asarray(factors @ x + generator.standard_normal(size, dtype=np.float32))

    seconds = harness.race(
        {
            PLAIN: harness.repeated(plain),
            GAUSSIAN: harness.repeated(lambda: gaussian.noised(gaussian.clipped_sum(rows), secret)),
            DISCRETE: harness.repeated(lambda: discrete.noised(discrete.clipped_sum(rows, secret, shared), secret)),
        },
        rounds=plan.rounds,
        turn=plan.turn / 4,
    )
    facts = {"units": units, "size": size, "bits": discrete.bits}
    note = partial(Measurement, topic="mechanism", facts=facts)
    return [
        note(what=name, seconds=taken)
        if name == PLAIN
        else note(what=name, seconds=taken, over=PLAIN, ratio=taken / seconds[PLAIN])
        for name, taken in seconds.items()
    ]


# What is shown --------------------------------------------------------------------------------------------------------


def tables(measured: Sequence[Measurement]) -> Iterator[Table]:
    """What was measured, for people. Red and a cross mark a missed target."""
    of = {topic: [m for m in measured if m.topic == topic] for topic in ("discrete", "normals", "mechanism")}
    yield harness.table(
        "Discrete Gaussian noise, exact, from a cipher",
        ["", "deviation", "million a second", "divided by ours"],
        ([m.what, f"{m.facts['deviation']:g}", _rate(m), harness.judged(m) if m.ratio else ""] for m in of["discrete"]),
        caption=f"asked: at least {ASKED[OPENDP]:g} times our time for OpenDP, {ASKED[NUMPY]:g} for numpy",
    )
    yield harness.table(
        "Normal numbers",
        ["", "million a second", "divided by numpy"],
        ([m.what, _rate(m), harness.judged(m) if m.ratio else ""] for m in of["normals"]),
    )
    yield harness.table(
        "A client's rows clipped, added up and noised",
        ["", "rows", "numbers", "time", f"divided by {PLAIN}"],
        (
            [
                *(m.what, str(m.facts["units"]), f"{m.facts['size']:,}", harness.human_seconds(m.seconds)),
                harness.judged(m) if m.ratio else "",
            ]
            for m in of["mechanism"]
        ),
        caption="discrete_gaussian also rotates and rounds every row",
    )


def _rate(measurement: Measurement) -> str:
    return f"{measurement.facts['million_a_second']:.3g}"


def picture(measured: Sequence[Measurement]) -> alt.LayerChart:
    """Samples a second against the deviation, both axes logarithmic."""
    rows = [
        {"what": m.what, "deviation": m.facts["deviation"], "rate": m.facts["million_a_second"]}
        for m in measured
        if m.topic == "discrete"
    ]
    powers = [10.0**power for power in range(-3, 8)]
    names = [name for name in (OURS, NUMPY, OPENDP) if any(row["what"] == name for row in rows)]
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        x=alt.X("deviation:Q", title="deviation", scale=alt.Scale(type="log"), axis=alt.Axis(values=powers, grid=False)),
        y=alt.Y("rate:Q", title="million samples a second", scale=alt.Scale(type="log"), axis=alt.Axis(values=powers)),
        color=alt.Color("what:N", title=None, scale=alt.Scale(domain=names, range=PALETTE[: len(names)])),
    )
    drawn: list[Any] = [base.mark_line(strokeWidth=2), base.mark_point(filled=True, size=30)]
    title = alt.Title("Exact discrete Gaussian noise", subtitle="one core, randomness from a cipher")
    return alt.LayerChart(layer=drawn, title=title, width=380, height=280)
