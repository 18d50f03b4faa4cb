"""A cohort and its server, each in a process of its own, for `scale.py`.

`python -m sketchfed_lab.benchmarks.sides CELL` prints what was measured.

The clients are in a fork of the server, so that memory and time of one side are not the other's and every message really
leaves. The server is the one of every run; only what moves the bytes is made for this.
"""

import ctypes
import gc
import json
import logging
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from sketchfed import PublicSeed, SecretSeed
from sketchfed.algorithms import Iterative, Replica
from sketchfed.caches import clear_caches
from sketchfed.config import load_config
from sketchfed.protection import SecureSums
from sketchfed.rounds import Participant, Server
from sketchfed.secure import SECURE, STAGES, Identity, SecureClient, Stage, Terms, request_kind, sum_of
from sketchfed.training import Examples, PerceptronTrainer, make_trainer
from sketchfed.vectors import flatten
from sketchfed.wire import Packet, pack, split, unpack
from sketchfed_lab.benchmarks.harness import one_thread
from sketchfed_lab.benchmarks.peers.memory import forget_peak, peak_bytes

RATIO, COLLUDERS, SURVIVORS = 0.01, 0.1, 0.9
INPUTS, CLASSES, EXAMPLES = 64, 10, 10
HIDDEN = {100_000: (288, 272), 1_000_000: (960, 960)}
ITERATIVE: dict[str, Any] = {"algorithm": {"name": "iterative"}, "sketch": {"ratio": RATIO}}
ARMS: dict[str, dict[str, Any]] = {
    "dense": {"algorithm": {"name": "fedavg"}, "codec": {"name": "dense"}},
    "sketched": ITERATIVE,
    "secure": {
        **ITERATIVE,
        "privacy": {"name": "discrete_gaussian", "noise_multiplier": 1.0},
        "secure": {"survivors": SURVIVORS, "colluders": COLLUDERS},
    },
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cohort of one arm: all clients take part, and a share `dropouts` leaves a secure sum on the way."""

    arm: str
    hidden: Sequence[int]
    clients: int
    rounds: int
    sampled: int
    dropouts: float = 0.0

    @property
    def leaving(self) -> dict[int, Stage]:
        """Of those who leave, every other one does so before it sends its values, the rest before they help to unmask."""
        gone = round(self.dropouts * self.clients)
        return {(2 * at + 1) * self.clients // (2 * gone): "unmask" if at % 2 else "masked" for at in range(gone)}

    @property
    def timed(self) -> frozenset[int]:
        staying = [client for client in range(self.clients) if client not in self.leaving]
        return frozenset(staying[:: max(1, len(staying) // self.sampled)][: self.sampled])


# The clients ----------------------------------------------------------------------------------------------------------


@dataclass
class Clients:
    """All clients, one after the other. Some are timed, with nothing at hand that others computed or a round before left."""

    participant: Participant
    held: Replica
    identities: Mapping[int, Identity]
    timed: frozenset[int]
    notes: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.examples = Examples(
            torch.rand(EXAMPLES, INPUTS, generator=generator), torch.randint(CLASSES, (EXAMPLES,), generator=generator)
        )
        self.directory = {client: identity.public for client, identity in self.identities.items()}
        self.sums: defaultdict[int, dict[bytes, SecureClient]] = defaultdict(dict)
        self.reached: dict[bytes, Replica] = {}
        self._inside: dict[str, float] = defaultdict(float)

    def reply(self, client: int, stage: str, request: bytes) -> bytes:
        if client in self.timed:
            clear_caches()
        self._inside.clear()
        start = time.process_time()
        reply = self._reply(client, stage, request)
        taken = time.process_time() - start
        if client in self.timed:
            parts = dict(self._inside)
            rest = "encode" if stage in ("train", "masked") else stage
            parts[rest] = taken - sum(parts.values())
            for name, seconds in parts.items():
                self.notes[name].append(seconds)
        return reply

    def _reply(self, client: int, stage: str, request: bytes) -> bytes:
        if stage == "train":
            return self.participant.answer(self._replica(client, request), self.examples, None, client)[0]
        packets = [unpack(part) for part in split(request, most=1 << 20)]
        first, *carried = [packet for packet in packets if packet.kind.startswith(SECURE)]
        task = b"".join(pack(packet) for packet in packets if not packet.kind.startswith(SECURE))
        reply = self._stage(client, first, task)
        for packet in carried:  # a stage of the next round's sum
            with self.clocked(packet.kind.removeprefix(SECURE)):
                reply += self._stage(client, packet, b"")
        return reply

    def _stage(self, client: int, packet: Packet, task: bytes) -> bytes:
        sums = self.sums[client]
        if packet.kind == request_kind("keys"):
            identity = self.identities[client]
            made, reply = self.participant.join(packet, client, identity, self.directory, set())
            sums[made.name] = made
            for old in list(sums)[:-2]:
                del sums[old]
            return reply
        session = sums[sum_of(packet)]
        if packet.kind != request_kind("masked"):
            return pack(session.answer(packet))
        replica = self._replica(client, task)
        with self.inside("mask", SecureClient, "answer"):
            return self.participant.masked(session, packet, replica, self.examples, None, client)[0]

    def _replica(self, client: int, task: bytes) -> Replica:
        """The replica that a task leads to; those whom nobody times are given it."""
        if client not in self.timed and task in self.reached:
            return self.reached[task]
        start = time.process_time()
        self.reached[task] = replica = self.participant.receive(self.held, task)
        self._inside["receive"] += time.process_time() - start
        return replica

    @contextmanager
    def inside(self, name: str, owner: type, method: str) -> Iterator[None]:
        """Note the seconds that are spent in a method of a class meanwhile."""
        original = getattr(owner, method)

        def watched(*arguments: Any, **options: Any) -> Any:
            with self.clocked(name):
                return original(*arguments, **options)

        with patch.object(owner, method, watched):
            yield

    @contextmanager
    def clocked(self, name: str) -> Iterator[None]:
        """Note the seconds that are spent meanwhile."""
        start = time.process_time()
        try:
            yield
        finally:
            self._inside[name] += time.process_time() - start

    def round_over(self) -> dict[str, list[float]]:
        """What was noted in this round."""
        self.held = max(self.reached.values(), key=lambda replica: replica.round)
        self.reached = {}
        noted, self.notes = dict(self.notes), defaultdict(list)
        return noted


def held_bytes() -> int | None:
    """What this process holds now, without what is free to use again; its peak is counted from here."""
    gc.collect()
    with suppress(OSError, AttributeError):  # only some systems can give it back
        ctypes.CDLL(None).malloc_trim(0)
    forget_peak()
    return peak_bytes()


def grown_since(held: int | None) -> int | None:
    peak = peak_bytes()
    return None if peak is None or held is None else peak - held


# The server -----------------------------------------------------------------------------------------------------------


@dataclass
class Laps:
    """CPU seconds of this process by what it was doing; nothing is counted while that is None."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    doing: str | None = None
    since: float = 0.0

    def __call__(self, doing: str | None) -> None:
        now = time.process_time()
        if self.doing is not None:
            self.seconds[self.doing] += now - self.since
        self.doing, self.since = doing, time.process_time()


@dataclass
class Wire:
    """An engine over anything that delivers a request and brings the reply; it counts bytes, and stops the server's clock."""

    clients: int
    directory: Mapping[int, bytes]
    deliver: Callable[[int, str, bytes], bytes]
    leaving: Mapping[int, Stage]
    laps: Laps
    complaints: Mapping[int, str] = field(default_factory=dict)
    agreed: bytes = b""
    unheard: tuple[int, ...] = ()
    terms: Terms | None = None
    """Those of the last secure sum."""
    up: Counter[str] = field(default_factory=Counter)
    down: Counter[str] = field(default_factory=Counter)
    """Bytes by stage, of those who stay."""

    def acknowledge(self, rounds: Mapping[int, int]) -> None:
        """Nothing waits for it: these clients keep nothing of a round but their replica."""

    def ask(self, requests: Mapping[int, bytes], stage: str = "train") -> dict[int, bytes]:
        self.laps(None)
        if stage == "keys":
            self.terms = Terms.from_packet(unpack(next(iter(requests.values()))))
        replies: dict[int, bytes] = {}
        for client, request in requests.items():
            left = self.leaving.get(client)
            if left is not None and stage in STAGES[STAGES.index(left) :]:
                continue
            replies[client] = self.deliver(client, stage, request)
            if left is None:
                self.up[stage] += len(replies[client])
                self.down[stage] += len(request)
        self.laps("unmask" if stage == "unmask" else "read" if stage == "train" else f"read {stage}")
        return replies


class WatchedServer(Server):
    """The server, its clock set between what it does."""

    laps: Laps

    def timed_round(self) -> dict[str, float]:
        """Seconds of a round by what they were for; ε is worked out after each, as in every run."""
        step = type(self.algorithm).server

        def watched(*arguments: Any, **options: Any) -> Any:
            self.laps("step")
            return step(*arguments, **options)

        self.laps.seconds.clear()
        self.laps("tasks")
        with patch.object(type(self.algorithm), "server", watched):
            self.advance()
        if self.privacy_ledger is not None:
            self.laps("account")
            self.privacy_ledger.epsilon()
        self.laps(None)
        return dict(self.laps.seconds)


def prepared(cell: Cell) -> tuple[WatchedServer, Clients, Wire, dict[str, Any]]:
    """Both sides of a cell, with a wire that does not leave the process, and what describes it."""
    torch.manual_seed(0)
    widths = (INPUTS, *cell.hidden, CLASSES)
    layers = [layer for i, o in pairwise(widths) for layer in (nn.Linear(i, o), nn.ReLU())]
    module = nn.Sequential(*layers[:-1])
    arm, own = ARMS[cell.arm], {"rounds": cell.rounds + 2, "local_steps": 5, "local_rate": 0.05}
    trainer, sizes, seed = make_trainer(module, "cross_entropy"), [EXAMPLES] * cell.clients, PublicSeed(7)
    config = load_config({**arm, "seed": 7, "algorithm": arm["algorithm"] | own})
    config = config.completed(dim=trainer.dim, sizes=sizes, module=module)
    participant = config.participant(trainer, sizes, module)
    state = config.algorithm.begin(flatten(module))
    secret, secure = SecretSeed(), isinstance(participant.protection, SecureSums)
    identities = {client: Identity.of(secret.child("client", client)) for client in range(cell.clients)} if secure else {}
    clients = Clients(participant, state.replica, identities, cell.timed)
    wire = Wire(cell.clients, clients.directory, clients.reply, cell.leaving, Laps())
    server = WatchedServer(participant.protection, wire, state, seed, shared_start=True)
    server.laps = wire.laps
    facts = {"arm": cell.arm, "clients": cell.clients, "left": len(cell.leaving), "dim": trainer.dim, "size": trainer.dim}
    if isinstance(config.algorithm, Iterative):
        facts["size"] = config.algorithm.sketch.size_for(trainer.dim)
    return server, clients, wire, facts


def warm_up(cell: Cell) -> None:
    """Load and compile what both sides need, so that it is in neither's time or memory."""
    server, clients, *_ = prepared(replace(cell, clients=4, dropouts=0.0))
    for _ in range(2):
        server.timed_round()
        clients.round_over()


def serve(cell: Cell, clients: Clients, server: Connection) -> None:
    """Answer as long as somebody asks: a header, a request and a reply, or what was noted in a round that is over."""
    warm_up(cell)  # a fork has not touched the libraries yet
    held = held_bytes()
    while header := json.loads(server.recv_bytes()):
        if header == ["over"]:
            server.send_bytes(json.dumps([clients.round_over(), grown_since(held)]).encode())
        else:
            client, stage = header
            server.send_bytes(clients.reply(client, stage, server.recv_bytes()))


def measure(cell: Cell) -> dict[str, Any]:
    """The cell in this process and a fork of it.

    The first round is not counted: nobody has an update to follow yet, nor keys that an earlier round carried along. The run
    has one more round than are measured, so that the last one carries the keys of the next, too.
    """
    warm_up(cell)
    server, clients, wire, facts = prepared(cell)
    context = get_context("fork")
    ours, theirs = context.Pipe()
    with clients.inside("train", PerceptronTrainer, "train"):
        fork = context.Process(target=serve, args=(cell, clients, theirs), daemon=True)
        fork.start()

    def deliver(client: int, stage: str, request: bytes) -> bytes:
        ours.send_bytes(json.dumps([client, stage]).encode())
        ours.send_bytes(request)
        return ours.recv_bytes()

    wire.deliver, held = deliver, held_bytes()
    rounds: list[dict[str, float]] = []
    noted: dict[str, list[float]] = defaultdict(list)
    for index in range(cell.rounds + 1):
        wire.up.clear()
        wire.down.clear()
        before = (server.tally.uplink_bytes, server.tally.downlink_bytes)
        seconds = server.timed_round()
        ours.send_bytes(json.dumps(["over"]).encode())
        notes, taken = json.loads(ours.recv_bytes())
        if index:
            rounds.append(seconds)
            for name, values in notes.items():
                noted[name] += values
    ours.send_bytes(b"[]")
    fork.join()
    if wire.terms is not None:
        facts |= {name: getattr(wire.terms, name) for name in ("bits", "neighbours", "threshold")}
    staying = cell.clients - len(cell.leaving)
    return {
        "facts": facts,
        "client": {name: median(values) for name, values in noted.items()},
        "server": min(rounds, key=lambda parts: sum(parts.values())),
        "client_bytes": {
            "up_bytes": {stage: round(total / staying) for stage, total in wire.up.items()},
            "down_bytes": {stage: round(total / staying) for stage, total in wire.down.items()},
        },
        "server_bytes": {
            "uplink_bytes": server.tally.uplink_bytes - before[0],
            "downlink_bytes": server.tally.downlink_bytes - before[1],
        },
        "memory": {"client": taken, "server": grown_since(held)},
    }


if __name__ == "__main__":
    logging.getLogger("sketchfed").setLevel(logging.ERROR)  # that clients leave is intended
    with one_thread():
        print(json.dumps(measure(Cell(**json.loads(sys.argv[1])))))
