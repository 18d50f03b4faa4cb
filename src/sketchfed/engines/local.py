"""All clients in this process, those of a round computed in parallel."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from torch import Tensor

from sketchfed.algorithms import Replica
from sketchfed.engines.participant import Participant
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
        self.memories: dict[int, Tensor] = {}
        self.changed: set[int] = set()
        """Clients whose memory changed since the last checkpoint."""
        self.replica = start
        self._participant, self._examples = participant, examples
        self._pool = ThreadPoolExecutor(1 if participant.trainer.sequential else workers, "client")

    def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        self.complaints = {}
        received: dict[int, Replica] = {}  # by identity of the task: clients with equal needs are sent the same object
        tasks: list[tuple[int, Replica]] = []
        for client, task in requests.items():
            try:
                if id(task) not in received:
                    received[id(task)] = self._participant.receive(self.replica, task)
                    self.replica = received[id(task)]
                tasks.append((client, received[id(task)]))
            except SketchfedError as error:
                self.complaints[client] = str(error)
        replies = {}
        for (client, _), (reply, memory) in zip(tasks, self._pool.map(self._work, tasks), strict=True):
            if reply is not None:
                replies[client] = reply
            if memory is not None:
                self.memories[client] = memory
                self.changed.add(client)
        return replies

    def _work(self, task: tuple[int, Replica]) -> tuple[bytes | None, Tensor | None]:
        client, replica = task
        try:
            return self._participant.answer(replica, self._examples(client), self.memories.get(client), client)
        except SketchfedError as error:  # one bad client does not stop a round
            self.complaints[client] = str(error)
            return None, None

    def each(self, function: Callable[[Examples], tuple[float, int]], chunks: Sequence[Examples]) -> list[tuple[float, int]]:
        """Apply a function to chunks of data in parallel, results in order."""
        return list(self._pool.map(function, chunks))

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
