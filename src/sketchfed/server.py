"""The server's side of a run: whom to ask, what to send, what to accept, and how many bytes that took."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from sketchfed.algorithms import Algorithm, RoundContext, State
from sketchfed.algorithms.base import cohort, to_snapshot
from sketchfed.engines.base import Engine
from sketchfed.errors import DivergedError, SketchfedError, WireError
from sketchfed.kernels.finite import all_finite
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, pack, unpack

log = logging.getLogger("sketchfed")


@dataclass
class Ledger:
    """What a run has cost since its start, counted on the bytes themselves, and what the server knows of its clients."""

    uplink_bytes: int = 0
    downlink_bytes: int = 0
    broadcast_bytes: int = 0
    """What a client that never misses a round receives: each update, or each model, once."""
    replies: int = 0
    refused: int = 0
    known: dict[int, int] = field(default_factory=dict)
    """The round of each client's replica, as of its last reply."""
    updates: list[bytes] = field(default_factory=list)
    """The latest updates, as broadcast, for those who missed them: no more than a whole model has bytes."""


class Server:
    """Drives rounds over an engine. Everything it holds between rounds is `state` and `ledger`."""

    def __init__(self, algorithm: Algorithm, engine: Engine, state: State, seed: PublicSeed, *, shared_start: bool) -> None:
        """`shared_start`: whether clients can rebuild the first weights themselves, so that nobody has to send them."""
        self.algorithm, self.engine, self.state, self.seed = algorithm, engine, state, seed
        self.ledger = Ledger()
        self._shared_start = shared_start
        self._packed = (-1, b"")
        self._whole_size = len(self._whole())

    @property
    def round(self) -> int:
        """How many rounds are behind us."""
        return self.state.replica.round

    def cohort(self) -> list[int]:
        """The clients of the next round, uniform without replacement."""
        population = self.engine.clients
        return cohort(self.seed, self.round, population=population, count=self.algorithm.planned(population))

    def advance(self) -> None:
        """One round."""
        tasks = self._tasks(self.cohort())
        replies = self.engine.ask(tasks)
        self.ledger.downlink_bytes += sum(len(task) for task in tasks.values())
        packets, reasons = self._accepted(tasks, replies)
        if not packets:
            raise DivergedError(f"round {self.round + 1} got no usable reply: {next(iter(reasons.values())).rstrip('.')}")
        self.state, update = self._stepped(packets)
        packed = None if update is None else pack(update.stamped(round=self.round - 1))
        self.ledger.broadcast_bytes += self._whole_size if packed is None else len(packed)
        if packed is not None:
            self._remember(packed)

    def _stepped(self, packets: list[Packet]) -> tuple[State, Packet | None]:
        """The state after this round and its update, all of it finite."""
        try:
            state, update = self.algorithm.server(self.state, packets, self.seed)
        except SketchfedError as error:
            raise DivergedError(f"the replies of round {self.round + 1} add up to no step: {str(error).rstrip('.')}") from error
        if not all_finite(state.replica.weights):
            raise DivergedError(f"the weights after round {self.round + 1} are no longer finite")
        return state, update

    def _tasks(self, cohort: list[int]) -> dict[int, bytes]:
        """What each client needs to be at this round, in the fewest bytes. Clients with equal needs share one object."""
        held = {client: self.ledger.known.get(client, 0 if self._shared_start else None) for client in cohort}
        made = {at: self._task(at) for at in set(held.values())}
        return {client: made[at] for client, at in held.items()}

    def _task(self, at: int | None) -> bytes:
        """Nothing new, the missed updates, or the whole model, for a client whose replica is at round `at`."""
        if at == self.round:
            return pack(Packet(kind="begin", arrays={}, scalars={"round": self.round}))
        missed = self.round - at if at is not None else len(self.ledger.updates) + 1
        if missed > len(self.ledger.updates):
            return self._whole()
        replay = b"".join(self.ledger.updates[-missed:])
        return replay if len(replay) < self._whole_size else self._whole()

    def _remember(self, update: bytes) -> None:
        """Keep an update for those who missed it, and forget those that a whole model is cheaper than."""
        updates = self.ledger.updates
        updates.append(update)
        while sum(map(len, updates)) > self._whole_size:
            updates.pop(0)

    def _whole(self) -> bytes:
        if self._packed[0] != self.round:
            snapshot = to_snapshot(self.state.replica, self.algorithm.replicated)
            self._packed = self.round, pack(snapshot)
        return self._packed[1]

    def _accepted(self, tasks: Mapping[int, bytes], replies: Mapping[int, bytes]) -> tuple[list[Packet], dict[int, str]]:
        """The packets that can be used, in the order of clients, and why others cannot: they are dropped, not fatal."""
        packets: dict[int, Packet] = {}
        norms: dict[int, float] = {}
        reasons: dict[int, str] = {}
        for client in tasks:
            if client not in replies:
                reasons[client] = self.engine.complaints.get(client, "no reply came")
                continue
            self.ledger.uplink_bytes += len(replies[client])
            try:
                packets[client], norm = self._read(replies[client], client)
                if norm is not None:
                    norms[client] = norm
            except SketchfedError as error:
                self.ledger.refused += 1
                reasons[client] = str(error)
        for client, reason in wild(norms, self.algorithm.screening).items():
            del packets[client]
            self.ledger.refused += 1
            reasons[client] = reason
        self.ledger.replies += len(packets)
        self.ledger.known |= dict.fromkeys(packets, self.round)
        self._tell(reasons)
        return list(packets.values()), reasons

    def _read(self, reply: bytes, client: int) -> tuple[Packet, float | None]:
        """The packet of a reply, if it is one that this round can use, and its norm."""
        packet = unpack(reply)
        if packet.scalars.get("round") != self.round:
            raise WireError(f"it is for round {packet.scalars.get('round')!r}, not {self.round}.")
        if packet.clients != 1:  # who claims to speak for many would outweigh all others in the mean
            raise WireError(f"it claims to stand for {packet.clients:,} clients; a client speaks for itself.")
        context = RoundContext(round=self.round, seed=self.seed, client=client)
        return packet, self.algorithm.check(packet, len(self.state.replica.weights), context)

    def _tell(self, reasons: Mapping[int, str]) -> None:
        """Log who is left out of this round, a line a reason."""
        for reason in dict.fromkeys(reasons.values()):
            clients = [client for client, own in reasons.items() if own == reason]
            named = ", ".join(map(str, clients[:5])) + (f" and {len(clients) - 5} more" if len(clients) > 5 else "")
            log.warning("round %d goes on without client %s: %s", self.round + 1, named, reason)


def wild(norms: Mapping[int, float], ratio: float) -> dict[int, str]:
    """Clients whose norm is not finite, or more than `ratio` times the median of three or more, and what is said of them.

    One reply of 1e30 makes the mean worthless, and a bound for all runs does not exist: how long updates are depends on the
    model and shrinks as it learns. The others of the round tell, as long as most of them are honest. Where the median is zero
    nothing can be told.
    """
    reasons = {client: "the norm of what it sent is not finite." for client, norm in norms.items() if not math.isfinite(norm)}
    finite = {client: norm for client, norm in norms.items() if client not in reasons}
    middle = median([*finite.values(), *(math.inf for _ in reasons)]) if len(norms) >= 3 else 0.0
    if ratio and 0 < middle < math.inf:
        reasons |= {
            client: f"what it sent has norm {norm:.3g}, more than {ratio:g} times the median {middle:.3g} of this round."
            for client, norm in finite.items()
            if norm > ratio * middle
        }
    return reasons
