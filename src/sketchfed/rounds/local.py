"""An engine that runs all clients in this process. The clients of a round run in parallel."""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch

from sketchfed.algorithms import Replica
from sketchfed.algorithms.forms import unified
from sketchfed.errors import InputError, SketchfedError, reason
from sketchfed.rounds.engine import Requests
from sketchfed.rounds.kept import KeptExamples
from sketchfed.rounds.participant import Participant
from sketchfed.rounds.secure_clients import SecureClients
from sketchfed.secure import Identity
from sketchfed.training import ClientMemory, Examples, Judged

log = logging.getLogger("sketchfed")


class LocalEngine:
    """Runs clients in threads. Results are bitwise equal for any number of workers, because each client uses one thread.

    All clients at the same round hold bitwise equal replicas, no matter how they got there, so the engine keeps one replica
    for all of them. Memory and time therefore grow with the participants of a round, not with the population. The engine still
    reads every task as it was sent.
    """

    def __init__(
        self,
        participant: Participant,
        examples: Callable[[int], Examples],
        *,
        clients: int,
        start: Replica | None,
        workers: int,
        judged: Callable[[int], Judged] | None = None,
        identities: Callable[[int], Identity] | None = None,
    ) -> None:
        """`judged` gives the data on which a client is evaluated, and `identities` its long-term key for secure sums. By
        default, these keys are drawn here.
        """
        self.clients = clients
        self.complaints: dict[int, str] = {}
        self.agreed = participant.agreed
        self.unheard: tuple[int, ...] = ()  # no reply is lost here: a client that fails sends nothing
        self.memories: dict[int, ClientMemory] = {}
        self.changed: set[int] = set()
        """Clients whose memory changed since the last checkpoint."""
        self.replica = start
        self.held_by_server: Callable[[], Replica | None] = lambda: None
        """Returns the server's replica. A client that comes to the same numbers then shares its memory."""
        self._pending: dict[int, tuple[int, ClientMemory]] = {}
        self._participant, self._examples, self._judged = participant, KeptExamples(examples), judged
        # Torch keeps a thread count per calling thread, so the setting of the main thread does not apply to the pool.
        self._pool = ThreadPoolExecutor(
            1 if participant.trainer.sequential else workers, "client", initializer=torch.set_num_threads, initargs=(1,)
        )
        self._secure = SecureClients(participant, self._examples, clients=clients, pool=self._pool, identities=identities)

    def ask(self, requests: Mapping[int, bytes], stage: str = "train") -> dict[int, bytes]:
        self.complaints = {}
        if stage not in ("train", "evaluate"):
            answers = self._secure.ask(requests, stage, self._receive, self.memories)
            self.complaints = self._secure.complaints
            for client, made in self._secure.kept.items():
                self._keep(client, *made)
            return answers
        tasks = self._received(requests)
        replies: dict[int, bytes] = {}
        work = self._work if stage == "train" else self._evaluate
        for (client, replica), (reply, memory) in zip(tasks, self._pool.map(work, tasks), strict=True):
            if reply is not None:
                replies[client] = reply
            if memory is not None:
                self._keep(client, replica.round, memory)
        return replies

    def _received(self, requests: Mapping[int, bytes]) -> list[tuple[int, Replica]]:
        """Read all tasks. While clients train, nobody holds their bytes any more."""
        sent, found = dict(requests), list[tuple[int, Replica]]()
        if isinstance(requests, Requests):
            requests.clear()
        read: dict[int, Replica] = {}  # keyed by the task's id(): clients with equal needs share one object
        for client, task in sent.items():
            try:
                if id(task) not in read:
                    read[id(task)] = self._receive(task)
                found.append((client, read[id(task)]))
            except SketchfedError as error:
                self.complaints[client] = str(error)
        return found

    def _keep(self, client: int, index: int, memory: ClientMemory) -> None:
        self._pending.pop(client, None)
        if memory or client in self.memories:
            self._pending[client] = index, memory

    def take_pending(self) -> dict[int, tuple[int, ClientMemory]]:
        """Return the new memories that no acknowledgement made valid yet, each with its round, and forget them."""
        pending, self._pending = self._pending, {}
        return pending

    def acknowledge(self, rounds: Mapping[int, int]) -> None:
        for client, index in rounds.items():  # others may have answered a request of which the server has not seen the answer
            made, memory = self._pending.pop(client, (None, None))
            if made == index and memory is not None:
                self.memories[client] = memory
                self.changed.add(client)

    @property
    def directory(self) -> Mapping[int, bytes]:
        return self._secure.directory

    def _receive(self, task: bytes) -> Replica:
        self.replica = self._participant.receive(self.replica, task)
        if (held := self.held_by_server()) is not None:
            self.replica = unified(self.replica, held)
        return self.replica

    def _work(self, task: tuple[int, Replica]) -> tuple[bytes | None, ClientMemory | None]:
        client, replica = task
        try:
            return self._participant.answer(replica, self._examples(client), self.memories.get(client), client)
        except Exception as error:  # a client whose model, loss or data raises must not stop the round
            log.debug("client %d failed", client, exc_info=True)
            self.complaints[client] = reason(error)
            return None, None

    def _evaluate(self, task: tuple[int, Replica]) -> tuple[bytes | None, None]:
        client, replica = task
        try:
            if self._judged is None:
                raise InputError("this engine holds no data on which clients could be evaluated. Pass `judged` to it.")
            return self._participant.judged(replica, self._judged(client), self.memories.get(client), client), None
        except Exception as error:  # of the client's model, data or evaluation
            log.debug("client %d could not be evaluated", client, exc_info=True)
            self.complaints[client] = reason(error)
            return None, None

    def take_changes(self) -> tuple[dict[int, ClientMemory], set[int]]:
        """Return all memories, and the clients whose memory changed since the last call and must be saved."""
        changed, self.changed = self.changed, set()
        return self.memories, changed

    def close(self, *, wait: bool = True) -> None:
        """Release the threads. With `wait`, clients that are at work finish it first."""
        self.replica = None
        self._pool.shutdown(wait=wait, cancel_futures=True)
