"""All clients in this process, those of a round computed in parallel."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from sketchfed.algorithms import Replica
from sketchfed.engines.kept import KeptExamples
from sketchfed.engines.participant import Participant
from sketchfed.engines.secure import SecureClients
from sketchfed.errors import SketchfedError
from sketchfed.training import Examples


class LocalEngine:
    """Clients in threads. Results are the same bits for any number of workers: each client computes alone, in one thread.

    Replicas of clients that are at the same round are equal bit for bit, however they got there, so the engine keeps one for
    all: memory and time follow the participants of a round, not the population. Tasks are read as they came nevertheless.
    """

    def __init__(
        self,
        participant: Participant,
        examples: Callable[[int], Examples],
        *,
        clients: int,
        start: Replica | None,
        workers: int,
    ) -> None:
        self.clients = clients
        self.complaints: dict[int, str] = {}
        self.unheard: tuple[int, ...] = ()  # who does not answer here sends nothing
        self.memories: dict[int, Tensor] = {}
        self.changed: set[int] = set()
        """Clients whose memory changed since the last checkpoint."""
        self.replica = start
        self._pending: dict[int, tuple[int, Tensor]] = {}
        self._participant, self._examples = participant, KeptExamples(examples)
        # Torch counts threads for each thread that calls it: what the main thread was told, these would not know.
        self._pool = ThreadPoolExecutor(
            1 if participant.trainer.sequential else workers, "client", initializer=torch.set_num_threads, initargs=(1,)
        )
        self._secure = SecureClients(participant, self._examples, clients=clients, pool=self._pool)

    def ask(self, requests: Mapping[int, bytes], stage: str = "train") -> dict[int, bytes]:
        self.complaints = {}
        if stage != "train":
            answers = self._secure.ask(requests, stage, self._receive)
            self.complaints = self._secure.complaints
            return answers
        received: dict[int, Replica] = {}  # by identity of the task: clients with equal needs are sent the same object
        tasks: list[tuple[int, Replica]] = []
        for client, task in requests.items():
            try:
                if id(task) not in received:
                    received[id(task)] = self._receive(task)
                tasks.append((client, received[id(task)]))
            except SketchfedError as error:
                self.complaints[client] = str(error)
        replies: dict[int, bytes] = {}
        for (client, replica), (reply, memory) in zip(tasks, self._pool.map(self._work, tasks), strict=True):
            if reply is not None:
                replies[client] = reply
            if memory is not None:
                self._pending[client] = replica.round, memory
        return replies

    def acknowledge(self, rounds: Mapping[int, int]) -> None:
        for client, index in rounds.items():
            made, memory = self._pending.get(client, (None, None))
            if made == index and memory is not None:
                self.memories[client] = memory
                self.changed.add(client)
        self._pending = {}

    @property
    def directory(self) -> Mapping[int, bytes]:
        return self._secure.directory

    def _receive(self, task: bytes) -> Replica:
        self.replica = self._participant.receive(self.replica, task)
        return self.replica

    def _work(self, task: tuple[int, Replica]) -> tuple[bytes | None, Tensor | None]:
        client, replica = task
        try:
            return self._participant.answer(replica, self._examples(client), self.memories.get(client), client)
        except SketchfedError as error:  # one bad client does not stop a round
            self.complaints[client] = str(error)
            return None, None

    def take_changes(self) -> tuple[dict[int, Tensor], set[int]]:
        """All memories, and whose changed since the last time: what the next checkpoint has to write."""
        changed, self.changed = self.changed, set()
        return self.memories, changed

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
