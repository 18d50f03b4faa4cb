"""Small federations in this process: a server, its clients, and a tap on everything that passes between them."""

from collections.abc import Callable, Collection, Mapping

import torch
from torch import nn

from sketchfed.algorithms import Algorithm, Replica
from sketchfed.algorithms.beside import extended
from sketchfed.algorithms.forms import seen
from sketchfed.algorithms.settings import decoding_on
from sketchfed.devices import CPU
from sketchfed.protection import PrivacySettings, SecureSettings, completed_work, make_protection
from sketchfed.rounds import AsynchronousSettings, Engine, LocalEngine, Participant, Relay
from sketchfed.rounds.buffered import make_server
from sketchfed.rounds.server import Server
from sketchfed.seeds import PublicSeed
from sketchfed.testing.problems import SEED, dense_model
from sketchfed.training import ClientMemory, Examples, make_trainer
from sketchfed.vectors import flatten

Tamper = Callable[[dict[int, bytes]], dict[int, bytes]]


class Tap(Relay):
    """An engine that keeps all bytes it moved, and may change what comes back."""

    def __init__(self, inner: Engine, tamper: Tamper = dict) -> None:
        super().__init__(inner)
        self.tamper = tamper
        self.tasks: list[dict[int, bytes]] = []
        self.replies: list[dict[int, bytes]] = []
        self.stages: list[str] = []

    def ask(self, requests: Mapping[int, bytes], stage: str = "train") -> dict[int, bytes]:
        self.stages.append(stage)
        self.tasks.append(dict(requests))
        self.replies.append(self.tamper(dict(self.inner.ask(requests, stage))))
        return self.replies[-1]


class Apart:
    """An engine whose clients share nothing: each has the replica that its own tasks brought it to."""

    def __init__(self, participant: Participant, data: list[Examples], start: Replica | None) -> None:
        self.participant, self.data, self.clients = participant, data, len(data)
        self.replicas: dict[int, Replica | None] = dict.fromkeys(range(len(data)), start)
        self.memories: dict[int, ClientMemory] = {}
        self.complaints: dict[int, str] = {}

    directory: Mapping[int, bytes] = {}  # it takes no part in secure sums
    agreed = b""
    unheard: Collection[int] = ()

    def acknowledge(self, rounds: Mapping[int, int]) -> None:
        """Nothing waits for it: what a client keeps is kept at once."""

    def ask(self, requests: Mapping[int, bytes], stage: str = "train") -> dict[int, bytes]:
        replies = {}
        for client, task in requests.items():
            self.replicas[client] = replica = self.participant.receive(self.replicas[client], task)
            replies[client], self.memories[client] = self.participant.answer(
                replica, self.data[client], self.memories.get(client), client
            )
        return replies


def federation(
    algorithm: Algorithm,
    data: list[Examples],
    *,
    module: nn.Module | None = None,
    loss: str = "squares",
    seed: PublicSeed = SEED,
    workers: int = 1,
    apart: bool = False,
    shared_start: bool | None = None,
    tamper: Tamper = dict,
    privacy: PrivacySettings | None = None,
    secure: SecureSettings | None = None,
    device: torch.device = CPU,
    asynchronous: AsynchronousSettings | None = None,
) -> Server:
    """A server over clients with this data, which train, encode and decode on a device; its engine is a `Tap`."""
    module = module or dense_model("linear")
    shared_start = algorithm.shows_weights if shared_start is None else shared_start
    trainer = make_trainer(module, loss, device=device)
    trainer.check(data[0])
    algorithm = completed_work(decoding_on(algorithm, device).resolved(trainer.dim, len(data), module), privacy)
    sizes = [len(part.x) for part in data]
    protection = make_protection(algorithm, privacy=privacy, secure=secure, dim=trainer.dim, sizes=sizes, seed=seed)
    state = protection.algorithm.begin(flatten(module))
    trainer = extended(trainer, protection.algorithm, sizes, seed)
    algorithm = protection.algorithm
    participant = Participant(trainer=trainer, seed=seed, protection=protection)
    start = seen(algorithm.given(seed, 0), state.replica) if shared_start else None
    engine: Engine = (
        Apart(participant, data, start)
        if apart
        else LocalEngine(participant, data.__getitem__, clients=len(data), start=start, workers=workers)
    )
    return make_server(protection, Tap(engine, tamper), state, seed, shared_start=shared_start, asynchronous=asynchronous)


def advanced(server: Server, rounds: int) -> Server:
    """The server, this many rounds later."""
    for _ in range(rounds):
        server.advance()
    return server


def weights_of(server: Server) -> torch.Tensor:
    """The server's weights."""
    return server.state.replica.weights
