"""The server of asynchronous runs: clients start and arrive at any time, and a full buffer of updates makes a step."""

import heapq
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from sketchfed.algorithms import DecodesAlone, RoundContext, State, combined_packet, round_seed
from sketchfed.errors import SketchfedError, StorageError, UnresolvedError, WireError
from sketchfed.kernels.draws import subset
from sketchfed.protection import Protection
from sketchfed.rounds.asynchronous import DIGITS, AsynchronousSettings
from sketchfed.rounds.engine import Engine
from sketchfed.rounds.screening import wild
from sketchfed.rounds.server import Server
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, expect_kind, number_named, unpack


@dataclass(order=True)
class Flight:
    """A client between its start and its arrival. Those that arrive earlier are smaller."""

    arrival: float
    order: int
    """The number of clients that started before it."""
    client: int = field(compare=False)
    version: int = field(compare=False)
    """The round whose model it was sent."""
    task: bytes = field(compare=False, repr=False)
    trained: bool = field(default=False, compare=False)
    reply: bytes | None = field(default=None, compare=False, repr=False)
    """None if it has not been trained yet, or failed."""
    complaint: str = field(default="no reply came", compare=False)


class BufferedServer(Server):
    """Steps when its buffer holds enough updates, from whatever model each of them started.

    Paper: Nguyen et al. 2022 (FedBuff), Alg. 1, on simulated time. A client is sent the current model when it starts. Its reply
    arrives after a delay that is drawn from the run's seed. Another client then starts, drawn from those that do not work.
    K arrivals make a step of Σ s(τ)·Δ/K, where τ is the number of steps since the client started.

    Each packet is decoded by itself, with the seed of the round in which its client started. What happens at the same time
    happens in this order: arrivals, a step if the buffer is full, starts. So without delays, and with as many clients at a time
    as the buffer holds, this is synchronous FedAvg. A client gives one update to a step at most: after its arrival it waits for
    that step. So does a client that failed.

    A client is trained before the next step of the server, all of them together, and its reply waits until it arrives. The
    result does not depend on when that is, because its data, its memory and its seed stay the same. After a checkpoint it is
    trained again.
    """

    def __init__(
        self,
        protection: Protection,
        engine: Engine,
        state: State,
        seed: PublicSeed,
        *,
        shared_start: bool,
        settings: AsynchronousSettings,
    ) -> None:
        super().__init__(protection, engine, state, seed, shared_start=shared_start)
        self._settings = settings
        self._time = 0.0
        self._started = 0
        self._staleness: float | None = None
        self._flights: list[Flight] = []
        self._models: dict[int, bytes] = {}
        """The whole model of each round from which somebody works."""

    @property
    def measured(self) -> dict[str, float | None]:
        """The simulated time, and the mean staleness of the updates in the last step."""
        return {"time": self._time, "staleness": self._staleness}

    def advance(self) -> None:
        """Let clients start and arrive until the buffer is full, and step."""
        found: dict[int, tuple[Flight, Packet]] = {}
        norms: dict[int, float] = {}
        reasons: dict[int, str] = {}
        batches = 0
        while len(found) < self._settings.buffer:
            due = self._flights and self._flights[0].arrival <= self._time
            if not due and (self._settings.starts == "arrival" or not batches or not self._flights):
                batches += self._start({*found, *reasons}, batches)
            if not self._flights:
                break  # all others have failed
            flight = self._arrived()
            try:
                packet, norm = self._received(flight)
            except SketchfedError as error:
                if flight.reply is not None:
                    self.tally.refused += 1
                reasons[flight.client] = str(error) if flight.reply is not None else flight.complaint
                continue
            found[flight.client] = flight, packet
            if norm is not None:
                norms[flight.client] = norm
            if len(found) == self._settings.buffer:
                self._screen(found, norms, reasons)
        self._screen(found, norms, reasons)
        self._tell(reasons)
        if not found:
            raise self._unusable(reasons)
        self._train()  # from the model of this round, while the engine holds it
        self._step([found[client] for client in sorted(found)])

    def _screen(self, found: dict[int, tuple[Flight, Packet]], norms: dict[int, float], reasons: dict[int, str]) -> None:
        """Leave out replies that are far longer than the others in the buffer. Other clients may take their places."""
        for client, reason in wild(norms, self.algorithm.screening).items():
            del found[client], norms[client]
            self.tally.refused += 1
            reasons[client] = reason

    def _start(self, busy: Collection[int], batch: int) -> bool:
        """Let clients start until enough of them work. Return whether there were any."""
        away = {*busy, *(flight.client for flight in self._flights)}
        idle = [client for client in range(self.engine.clients) if client not in away]
        count = min(len(idle), self._settings.together - len(self._flights))
        if count < 1:
            return False
        draw = round_seed(self.seed, self.round).child("cohort", batch)
        task = self._task(0 if self._shared_start else None)
        self._models.setdefault(self.round, self._whole())
        for place in subset(draw.stream, dim=len(idle), size=count):
            delay = self._settings.drawn(self.seed.child("delay", self._started))
            arrival = round(self._time + delay, DIGITS)
            heapq.heappush(self._flights, Flight(arrival, self._started, idle[int(place)], self.round, task))
            self.tally.downlink_bytes += len(task)
            self._started += 1
        return True

    def _arrived(self) -> Flight:
        """The next client that arrives, with its reply."""
        if not self._flights[0].trained:
            self._train()
        flight = heapq.heappop(self._flights)
        self._time = max(self._time, flight.arrival)
        self.tally.uplink_bytes += 0 if flight.reply is None else len(flight.reply)
        return flight

    def _train(self) -> None:
        """Train all clients that work and have not been trained yet."""
        flights = {flight.client: flight for flight in self._flights if not flight.trained}
        replies = self.engine.ask({client: flights[client].task for client in sorted(flights)}, "train") if flights else {}
        for client, flight in flights.items():
            flight.trained, flight.reply = True, replies.get(client)
            flight.complaint = self.engine.complaints.get(client, flight.complaint)

    def _received(self, flight: Flight) -> tuple[Packet, float | None]:
        return self._read(flight.reply or b"", self._started_from(flight))

    def _started_from(self, flight: Flight) -> RoundContext:
        return RoundContext(round=flight.version, seed=self.seed, client=flight.client)

    def _step(self, updates: list[tuple[Flight, Packet]]) -> None:
        """Step by the mean of these updates, each with its weight."""
        dim, whole = len(self.state.replica.weights), len(self._whole())
        total = torch.zeros(dim)
        for flight, packet in updates:
            change = self._decoder.decoded_alone(packet, dim, self._started_from(flight))
            weight = self._settings.weight(self.round - flight.version)
            total[: self._scaled] += change[: self._scaled] * weight
            total[self._scaled :] += change[self._scaled :]
        self._staleness = sum(self.round - flight.version for flight, _ in updates) / len(updates)
        self.tally.replies += len(updates)
        self.tally.broadcast_bytes += whole
        used = {flight.client: flight.version for flight, _ in updates}
        self.tally.known |= used
        self.engine.acknowledge(used)
        self.state, _ = self._stepped([combined_packet(total / len(updates), len(updates))])
        versions = {flight.version for flight in self._flights}
        self._models = {version: model for version, model in self._models.items() if version in versions}

    @property
    def _decoder(self) -> DecodesAlone:
        if not isinstance(self.algorithm, DecodesAlone):
            raise UnresolvedError(f"algorithm '{self.algorithm.name}' does not decode single packets.")
        return self.algorithm

    @cached_property
    def _scaled(self) -> int:
        """How many numbers of an update get its weight. A client's weight by its examples stays as it is, so that it only says
        how much the update counts among the others.
        """
        segments, dim = self.algorithm.segments, len(self.state.replica.weights)
        return dim if segments is None else dim - segments.weight

    def under_way(self) -> dict[str, Tensor]:
        """The clients that work, the models that they were sent, and the time."""
        flights = sorted(self._flights)
        numbers = [(flight.client, flight.version, flight.order) for flight in flights]
        versions = sorted(self._models)
        models = [self._models[version] for version in versions]
        return {
            "flights": torch.tensor(numbers, dtype=torch.int64).reshape(-1, 3),
            "arrivals": torch.tensor([flight.arrival for flight in flights], dtype=torch.float64),
            "clock": torch.tensor([self._time, self._started], dtype=torch.float64),
            "versions": torch.tensor([*zip(versions, map(len, models), strict=True)], dtype=torch.int64).reshape(-1, 2),
            "models": torch.from_numpy(np.frombuffer(b"".join(models), np.uint8).copy()),
        }

    def go_on(self, under_way: Mapping[str, Tensor]) -> None:
        try:
            self._restore(under_way)
        except (KeyError, TypeError, ValueError, RuntimeError, WireError) as error:
            raise StorageError(
                f"the checkpoint does not say which clients were under way: {error}. It was damaged or replaced; start the run "
                "anew in another folder."
            ) from error

    def _restore(self, under_way: Mapping[str, Tensor]) -> None:
        versions = under_way["versions"].reshape(-1, 2).tolist()
        models = torch.split(under_way["models"], [size for _, size in versions]) if versions else ()
        self._models = {version: model.numpy().tobytes() for (version, _), model in zip(versions, models, strict=True)}
        for version, model in self._models.items():
            if not 0 <= version <= self.round or number_named(expect_kind(unpack(model), "snapshot"), "round") != version:
                raise ValueError(f"the model of round {version} is one of another round")
        time, started = under_way["clock"].tolist()
        arrivals = under_way["arrivals"].tolist()
        self._flights = []
        for (client, version, order), arrival in zip(under_way["flights"].tolist(), arrivals, strict=True):
            if not (0 <= client < self.engine.clients and 0 <= order < started and time <= arrival < math.inf):
                raise ValueError(f"client {client} cannot arrive at {arrival} after {time}")
            self._flights.append(Flight(arrival, order, client, version, self._models[version]))
        if len({flight.client for flight in self._flights}) < len(self._flights):
            raise ValueError("a client works twice at the same time")
        heapq.heapify(self._flights)
        self._time, self._started = time, int(started)


def make_server(
    protection: Protection,
    engine: Engine,
    state: State,
    seed: PublicSeed,
    *,
    shared_start: bool,
    asynchronous: AsynchronousSettings | None = None,
) -> Server:
    """The server of a run, which is asynchronous if there are such settings."""
    if asynchronous is None:
        return Server(protection, engine, state, seed, shared_start=shared_start)
    return BufferedServer(protection, engine, state, seed, shared_start=shared_start, settings=asynchronous)
