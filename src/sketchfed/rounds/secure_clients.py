"""The clients' side of a secure sum, for clients in this process."""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor

from sketchfed.algorithms import Replica
from sketchfed.errors import SecureSumError, SketchfedError, WireError, reason
from sketchfed.rounds.participant import MOST_UPDATES, Participant
from sketchfed.secure import Identity, SecureClient
from sketchfed.seeds import SecretSeed
from sketchfed.training import Examples
from sketchfed.wire import pack, split, unpack

log = logging.getLogger("sketchfed")


class Identities(Mapping[int, Identity]):
    """The long-term keys of simulated clients. Each key is generated when it is first needed."""

    def __init__(self, clients: int, secret: SecretSeed) -> None:
        self._clients, self._secret = clients, secret
        self._made: dict[int, Identity] = {}

    def __getitem__(self, client: int) -> Identity:
        if not 0 <= client < self._clients:
            raise KeyError(client)
        if client not in self._made:
            self._made[client] = Identity.of(self._secret.child("client", client))
        return self._made[client]

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._clients))

    def __len__(self) -> int:
        return self._clients


class Directory(Mapping[int, bytes]):
    """The public halves of the identities, which every party knows."""

    def __init__(self, identities: Identities) -> None:
        self._identities = identities

    def __getitem__(self, client: int) -> bytes:
        return self._identities[client].public

    def __iter__(self) -> Iterator[int]:
        return iter(self._identities)

    def __len__(self) -> int:
        return len(self._identities)


class SecureClients:
    """Answers the stages of a secure sum for many clients. Each client keeps its session from one stage to the next."""

    def __init__(
        self,
        participant: Participant,
        examples: Callable[[int], Examples],
        *,
        clients: int,
        pool: Executor,
    ) -> None:
        secret = participant.protection.secret(0, "identities")
        self._identities = Identities(clients, secret)
        self.directory = Directory(self._identities)
        self.complaints: dict[int, str] = {}
        self._participant, self._examples, self._pool = participant, examples, pool
        self._sessions: dict[int, SecureClient] = {}
        self._joined: defaultdict[int, set[bytes]] = defaultdict(set)

    def ask(self, requests: Mapping[int, bytes], stage: str, receive: Callable[[bytes], Replica]) -> dict[int, bytes]:
        """Return the replies to a stage. `receive` brings the current replica to the round of a task."""
        self.complaints = {}
        if stage == "keys":
            self._sessions = {}
        received = _received(requests.values(), receive) if stage == "masked" else {}

        def answer(client: int) -> bytes | None:
            try:
                return self._answer(client, requests[client], stage, received)
            except Exception as error:  # a client whose model, loss or data raises must not stop the round
                log.debug("client %d failed", client, exc_info=True)
                self.complaints[client] = reason(error)
                return None

        replies = zip(requests, self._pool.map(answer, requests), strict=True)
        return {client: reply for client, reply in replies if reply is not None}

    def _answer(self, client: int, request: bytes, stage: str, received: Mapping[bytes, Replica | SketchfedError]) -> bytes:
        if stage == "keys":
            identity, joined = self._identities[client], self._joined[client]
            self._sessions[client], reply = self._participant.join(request, client, identity, self.directory, joined)
            return reply
        if client not in self._sessions:
            raise SecureSumError(f"client {client} has not joined a secure sum, so it cannot answer its stage '{stage}'.")
        session = self._sessions[client]
        if stage != "masked":
            return pack(session.answer(unpack(request)))
        sealed, task = parted(request)
        replica = received[task]
        if isinstance(replica, SketchfedError):
            raise replica
        return self._participant.masked(session, unpack(sealed), replica, self._examples(client), client)


def _received(requests: Iterable[bytes], receive: Callable[[bytes], Replica]) -> dict[bytes, Replica | SketchfedError]:
    """Compute the replica, or the error, of each distinct task that follows sealed shares."""
    received: dict[bytes, Replica | SketchfedError] = {}
    for request in requests:
        try:
            task = parted(request)[1]
        except WireError:
            continue  # the client's own answer reports the error
        if task not in received:
            try:
                received[task] = receive(task)
            except SketchfedError as error:
                received[task] = error
    return received


def parted(request: bytes) -> tuple[bytes, bytes]:
    """Split a request into the sealed shares and the task that follows them."""
    parts = split(request, most=MOST_UPDATES)
    if not parts:
        raise WireError("the request is empty; it must hold sealed shares and a task.")
    return bytes(parts[0]), b"".join(parts[1:])
