"""What secure sums cost beside sums in the clear, in bytes and time, and masks beside Flower's."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import altair as alt
import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from sketchfed import SecretSeed
from sketchfed.caches import clear_caches
from sketchfed.report import MUTED, PALETTE, save_chart
from sketchfed.secure import (
    STAGES,
    Identity,
    SecureClient,
    SecureServer,
    Stage,
    Terms,
    add_masks,
    planned_terms,
    run_stages,
    word_for,
)
from sketchfed.wire import Bits, Packet, pack, unpack
from sketchfed_lab.benchmarks import harness
from sketchfed_lab.benchmarks.harness import Measurement

OURS, CLEAR = "secure", "in the clear"
FASTER_THAN_FLOWER = 2.0
BITS = 16
MASKS = 20


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Cohorts, numbers a client adds, shares of clients that leave, sizes of masks, and how long to look at those."""

    clients: Sequence[int]
    size: int
    dropouts: Sequence[float]
    sampled: int
    masks: Sequence[tuple[int, int]]
    rounds: int
    turn: float


FULL = Plan(
    clients=(10, 30, 100, 300, 1_000),
    size=100_000,
    dropouts=(0.0, 0.05, 0.1),
    sampled=5,
    masks=((10_000, 32), (100_000, 32), (1_000_000, 32), (1_000_000, 24), (1_000_000, 16), (1_000_000, 8)),
    rounds=5,
    turn=0.3,
)
QUICK = Plan(
    clients=(10, 30), size=10_000, dropouts=(0.0, 0.1), sampled=2, masks=((100_000, 32), (100_000, 16)), rounds=2, turn=0.05
)


def main(*, folder: Path, quick: bool = False) -> None:
    """Time everything, print tables, append to `secure.jsonl` and draw `secure.svg` in the folder."""
    plan, console = QUICK if quick else FULL, Console()
    measured: list[Measurement] = []
    with harness.one_thread(), harness.progress(console) as bar:
        overhead(4, 0.0, replace(plan, size=100))  # compiles and loads what all share
        task = bar.add_task("secure", total=len(plan.masks) + len(plan.clients) * len(plan.dropouts))
        bar.refresh()
        for found in _everything(plan):
            measured += found
            bar.update(task, advance=1, refresh=True)
    harness.append_jsonl(folder / "secure.jsonl", measured)
    save_chart(picture(measured), folder / "secure.svg")
    for table in tables(measured):
        console.print(table)
    targets = [m.met for m in measured if m.met is not None]
    console.print(f"{sum(targets)} of {len(targets)} targets met · {harness.machine()['cpu']} · {folder}")


def _everything(plan: Plan) -> Iterator[list[Measurement]]:
    for size, bits in plan.masks:
        yield masking(size, bits, plan)
    for count in plan.clients:
        for dropouts in plan.dropouts:
            yield overhead(count, dropouts, plan)


# Masks ----------------------------------------------------------------------------------------------------------------


def _flowers_masks(seed: bytes, num_range: int, dimensions_list: list[tuple[int, ...]]) -> list[npt.NDArray[np.int64]]:
    """What `pseudo_rand_gen` of flwr 1.41.0 (flwr/common/secure_aggregation/secaggplus_utils.py) calls for arrays.

    It folds the seed into 32 bits and takes numpy's legacy generator. That is no cipher; it is here to be timed.
    """
    folded = 0
    for start in range(0, len(seed), 4):
        folded ^= int.from_bytes(seed[start : start + 4], "little")
    generator = np.random.RandomState(folded)
    return [generator.randint(0, num_range - 1, shape, dtype=np.int64) for shape in dimensions_list]


def flower() -> tuple[str, Callable[..., Any]]:
    """Flower's generator of masks and what to call it; where Flower is not installed, its numpy call."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    try:
        from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
    except ImportError:
        return "Flower's numpy call, copied", _flowers_masks
    return f"Flower {version('flwr')}", pseudo_rand_gen


def masking(size: int, bits: int, plan: Plan) -> list[Measurement]:
    """Twenty masks: ours drawn and added to a vector, Flower's only drawn."""
    keys = [bytes([number]) * 32 for number in range(MASKS)]
    words = np.zeros(size, word_for(bits))
    label, generate = flower()

    def theirs() -> None:
        for key in keys:
            generate(key, 1 << bits, [(size,)])

    works: dict[str, Callable[[], object]] = {OURS: partial(add_masks, words, added=keys, subtracted=()), label: theirs}
    seconds = harness.race({name: harness.repeated(work) for name, work in works.items()}, rounds=plan.rounds, turn=plan.turn)
    facts = {"size": size, "bits": bits, "masks": MASKS}
    ratio = seconds[label] / seconds[OURS]
    return [
        Measurement(topic="masks", what=OURS, seconds=seconds[OURS], facts=facts),
        Measurement(
            topic="masks",
            what=label,
            seconds=seconds[label],
            facts=facts,
            over=OURS,
            ratio=ratio,
            at_least=FASTER_THAN_FLOWER,
        ),
    ]


# The whole sum --------------------------------------------------------------------------------------------------------


@dataclass
class Cohort:
    """Clients in this process. Some are timed, with nothing remembered that other clients have computed."""

    terms: Terms
    timed: frozenset[int]
    leaving: Mapping[int, Stage]
    secret: SecretSeed = field(default_factory=SecretSeed)
    clients: dict[int, SecureClient] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    up: dict[int, int] = field(default_factory=dict)
    down: dict[int, int] = field(default_factory=dict)
    outside: float = 0.0
    """Seconds that belong to clients, not to the server."""

    def __post_init__(self) -> None:
        self.identities = {client: Identity.of(self.secret.child("client", client)) for client in self.terms.clients}
        self.directory = {client: identity.public for client, identity in self.identities.items()}
        self.values = torch.randint(0, 1 << self.terms.bits, (self.terms.size,))

    def ask(self, stage: Stage, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        start, replies = time.process_time(), {}
        clear_caches()
        for client, request in requests.items():
            if client in self.leaving and STAGES.index(stage) >= STAGES.index(self.leaving[client]):
                continue
            if client in self.timed:
                clear_caches()
            began = time.process_time()
            replies[client] = self._answer(client, request)
            self.seconds[client] = self.seconds.get(client, 0.0) + time.process_time() - began
            self.up[client] = self.up.get(client, 0) + len(replies[client])
            self.down[client] = self.down.get(client, 0) + len(request)
        clear_caches()
        self.outside += time.process_time() - start
        return replies

    def _answer(self, client: int, request: bytes) -> bytes:
        packet = unpack(request)
        if client in self.clients:
            return pack(self.clients[client].answer(packet, self.values))
        terms = Terms.from_packet(packet)
        if client in self.timed:
            terms = replace(terms)  # it draws the graph itself
        self.clients[client], reply = SecureClient.join(terms, client, self.identities[client], self.directory, self.secret)
        return pack(reply)


def overhead(count: int, dropouts: float, plan: Plan) -> list[Measurement]:
    """A client's and the server's seconds and bytes for one sum, and the same for a sum in the clear.

    Of those who leave, every other one does so before it sends its values, the rest before they help to unmask.
    """
    gone = max(1, round(dropouts * count)) if dropouts else 0
    leaving: dict[int, Stage] = {(2 * at + 1) * count // (2 * gone): "unmask" if at % 2 else "masked" for at in range(gone)}
    terms = planned_terms(session=bytes(16), round=0, clients=range(count), size=plan.size, bits=BITS, least=count - gone)
    staying = [client for client in terms.clients if client not in leaving]
    timed = staying[:: max(1, len(staying) // plan.sampled)][: plan.sampled]
    cohort = Cohort(terms, frozenset(timed), leaving)
    start = time.process_time()
    run_stages(SecureServer(terms, cohort.directory), cohort.ask)
    served = time.process_time() - start - cohort.outside
    clear = _in_the_clear(cohort.values, count - sum(stage == "masked" for stage in leaving.values()))
    facts = {"clients": count, "dropouts": dropouts, "left": gone, "size": plan.size, "bits": BITS}
    facts |= {"neighbours": terms.neighbours, "threshold": terms.threshold}
    traffic = {"up_bytes": round(fmean(cohort.up[c] for c in timed)), "down_bytes": round(fmean(cohort.down[c] for c in timed))}
    own = fmean(cohort.seconds[client] for client in timed)
    note = partial(Measurement, topic="sum", facts=facts)
    return [
        note(what="client", seconds=own, facts=facts | traffic, over=CLEAR, ratio=own / clear.client),
        note(what="server", seconds=served, over=CLEAR, ratio=served / clear.server),
        note(what=f"client, {CLEAR}", seconds=clear.client, facts=facts | {"up_bytes": clear.up_bytes, "down_bytes": 0}),
        note(what=f"server, {CLEAR}", seconds=clear.server),
        Measurement(
            topic="bytes",
            what="client",
            seconds=own,
            facts=facts | traffic,
            over=CLEAR,
            ratio=(traffic["up_bytes"] + traffic["down_bytes"]) / clear.up_bytes,
        ),
    ]


@dataclass(frozen=True)
class _Clear:
    client: float
    server: float
    up_bytes: int


def _in_the_clear(values: Tensor, count: int) -> _Clear:
    """The same integers packed and sent as they are, unpacked and added."""

    def reply() -> bytes:
        return pack(Packet(kind="plain", arrays={"values": Bits(values, bits=BITS)}))

    sent = reply()
    client = harness.race({"client": harness.repeated(reply)}, rounds=3, turn=0.02)["client"]
    start, total = time.process_time(), np.zeros(len(values), word_for(BITS))
    for _ in range(count):
        array = unpack(sent).arrays["values"]
        total += (array.values if isinstance(array, Bits) else array).numpy().astype(total.dtype)
    return _Clear(client, time.process_time() - start, len(sent))


# What is shown --------------------------------------------------------------------------------------------------------


def tables(measured: Sequence[Measurement]) -> Iterator[Table]:
    """What was measured, for people. Red and a cross mark a missed target."""
    yield harness.table(
        f"{MASKS} masks: ours drawn and added, Flower's only drawn",
        ["", "numbers", "bits", "time", "million numbers a second", "divided by ours"],
        (
            [
                *(m.what, f"{m.facts['size']:,}", str(m.facts["bits"]), harness.human_seconds(m.seconds)),
                f"{MASKS * m.facts['size'] / m.seconds / 1e6:,.0f}",
                harness.judged(m) if m.ratio else "",
            ]
            for m in measured
            if m.topic == "masks"
        ),
        caption=f"asked: at least {FASTER_THAN_FLOWER:g}",
    )
    sums = [m for m in measured if m.topic == "sum"]
    if not sums:
        return
    yield harness.table(
        f"A sum of {sums[0].facts['size']:,} integers of {BITS} bits; clear: the same integers as they are",
        ["clients", "leave", "neighbours", "up", "down", "bytes/clear", "client", "/clear", "server", "/clear"],
        (_row(sums, *key) for key in dict.fromkeys((m.facts["clients"], m.facts["dropouts"]) for m in sums)),
        caption="CPU time of one thread for one sum; bytes of all stages, up and down, against the values in the clear",
    )


def _row(sums: Sequence[Measurement], clients: int, dropouts: float) -> list[str]:
    found = {m.what: m for m in sums if (m.facts["clients"], m.facts["dropouts"]) == (clients, dropouts)}
    client, server, clear = found["client"], found["server"], found[f"client, {CLEAR}"]
    up, down = client.facts["up_bytes"], client.facts["down_bytes"]
    return [
        *(f"{clients:,}", str(client.facts["left"]), str(client.facts["neighbours"])),
        *(f"{up / 1e3:,.1f} kB", f"{down / 1e3:,.1f} kB", f"{(up + down) / clear.facts['up_bytes']:.3f}"),
        *(harness.human_seconds(client.seconds), f"{client.ratio:,.0f}"),
        *(harness.human_seconds(server.seconds), f"{server.ratio:,.1f}"),
    ]


def picture(measured: Sequence[Measurement]) -> alt.ConcatChart:
    """Bytes and time over the number of clients, secure and in the clear."""
    sums = [m for m in measured if m.topic == "sum"]
    rates = sorted({m.facts["dropouts"] for m in sums})
    traffic = [
        {"clients": m.facts["clients"], "value": m.facts[name] / 1e3, "line": label}
        for m in sums
        if m.facts["dropouts"] == rates[0]
        for what, name, label in (
            ("client", "up_bytes", "up, secure"),
            ("client", "down_bytes", "down, secure"),
            (f"client, {CLEAR}", "up_bytes", f"up, {CLEAR}"),
        )
        if m.what == what
    ]

    def times(who: str) -> list[dict[str, Any]]:
        secure = [
            {"clients": m.facts["clients"], "value": 1e3 * m.seconds, "line": f"{m.facts['dropouts']:.0%} leave"}
            for m in sums
            if m.what == who
        ]
        return secure + [
            {"clients": m.facts["clients"], "value": 1e3 * m.seconds, "line": CLEAR}
            for m in sums
            if m.what == f"{who}, {CLEAR}" and m.facts["dropouts"] == rates[0]
        ]

    leave = [f"{rate:.0%} leave" for rate in rates]
    size = sums[0].facts["size"] if sums else 0
    return alt.ConcatChart(
        concat=[
            _panel(
                traffic,
                ["up, secure", "down, secure", f"up, {CLEAR}"],
                title="Bytes of a client",
                subtitle=f"{size:,} integers of {BITS} bits, all stages, nobody leaves",
                values="kB",
            ),
            _panel(times("client"), [*leave, CLEAR], title="Time of a client", subtitle="all stages, one thread", values="ms"),
            _panel(times("server"), [*leave, CLEAR], title="Time of the server", subtitle="whole sum, one thread", values="ms"),
        ],
        columns=3,
        spacing=30,
        resolve=alt.Resolve(scale=alt.ScaleResolveMap(color="independent")),
    )


def _panel(
    rows: Sequence[Mapping[str, Any]], lines: Sequence[str], *, title: str, subtitle: str, values: str
) -> alt.LayerChart:
    """Lines over the number of clients, both axes logarithmic; what is in the clear is dashed."""
    colours = [MUTED if CLEAR in line else PALETTE[number] for number, line in enumerate(lines)]
    counts = sorted({row["clients"] for row in rows})
    scale = alt.Scale(domain=list(lines), range=colours)
    base = alt.Chart(alt.InlineData(values=[{**row, "clear": CLEAR in row["line"]} for row in rows])).encode(
        x=alt.X(
            "clients:Q", title="clients", scale=alt.Scale(type="log", nice=False), axis=alt.Axis(values=counts, grid=False)
        ),
        y=alt.Y("value:Q", title=values, scale=alt.Scale(type="log"), axis=alt.Axis(format="~g", tickCount=6)),
        color=alt.Color("line:N", title=None, scale=scale, legend=alt.Legend(orient="bottom", columns=2, symbolType="circle")),
    )
    drawn: list[Any] = [
        base.transform_filter("datum.clear").mark_line(strokeDash=[4, 3], strokeWidth=1.5),
        base.transform_filter("!datum.clear").mark_line(strokeWidth=2),
        base.transform_filter("!datum.clear").mark_circle(size=24, opacity=1),
    ]
    return alt.LayerChart(layer=drawn, title=alt.Title(title, subtitle=subtitle), width=300, height=260)
