"""The clients' side of a secure sum, for clients in this process."""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor

from sketchfed.algorithms import Replica
from sketchfed.errors import SecureSumError, SketchfedError, WireError, reason
from sketchfed.rounds.participant import Participant, parted
from sketchfed.secure import Identity, SecureClient, request_kind, sum_of
from sketchfed.training import ClientMemory, Examples
from sketchfed.wire import Packet, pack, unpack

log = logging.getLogger("sketchfed")

_KEPT = 3
"""The sums that a client keeps: this round's, the next round's, and another attempt."""


class Identities(Mapping[int, Identity]):
    """The long-term keys of simulated clients. Each key is generated when it is first needed."""

    def __init__(self, clients: int, make: Callable[[int], Identity]) -> None:
        self._clients, self._make = clients, make
        self._made: dict[int, Identity] = {}

    def __getitem__(self, client: int) -> Identity:
        if not 0 <= client < self._clients:
            raise KeyError(client)
        if client not in self._made:
            self._made[client] = self._make(client)
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
    """Answers the stages of secure sums for many clients. Each client keeps its sums from one stage to the next."""

    def __init__(
        self,
        participant: Participant,
        examples: Callable[[int], Examples],
        *,
        clients: int,
        pool: Executor,
        identities: Callable[[int], Identity] | None = None,
    ) -> None:
        """`identities` gives the long-term key of a client. By default, keys are drawn here."""
        secret = participant.protection.secret(0, "identities")
        self._identities = Identities(clients, identities or (lambda client: Identity.of(secret.child("client", client))))
        self.directory = Directory(self._identities)
        self.complaints: dict[int, str] = {}
        self.kept: dict[int, tuple[int, ClientMemory]] = {}
        """The round and the new memory of each client that trained for the last request."""
        self._memories: Mapping[int, ClientMemory] = {}
        self._participant, self._examples, self._pool = participant, examples, pool
        self._sums: defaultdict[int, dict[bytes, SecureClient]] = defaultdict(dict)
        self._joined: defaultdict[int, set[bytes]] = defaultdict(set)

    def ask(
        self,
        requests: Mapping[int, bytes],
        stage: str,
        receive: Callable[[bytes], Replica],
        memories: Mapping[int, ClientMemory],
    ) -> dict[int, bytes]:
        """Return the replies to a stage. `receive` brings the current replica to the round of a task."""
        self.complaints, self.kept, self._memories = {}, {}, memories
        received = _received(requests.values(), receive) if stage == "masked" else {}

        def answer(client: int) -> bytes | None:
            try:
                return self._answer(client, requests[client], received)
            except Exception as error:  # a client whose model, loss or data raises must not stop the round
                log.debug("client %d failed", client, exc_info=True)
                self.complaints[client] = reason(error)
                return None

        replies = zip(requests, self._pool.map(answer, requests), strict=True)
        return {client: reply for client, reply in replies if reply is not None}

    def _answer(self, client: int, request: bytes, received: Mapping[bytes, Replica | SketchfedError]) -> bytes:
        (first, *carried), task = parted(request)
        reply = self._stage(client, unpack(first), task, received)
        for packet in carried:
            try:
                reply += self._stage(client, unpack(packet), task, received)
            except SketchfedError:  # the next round then begins with fresh keys; this one is not touched by it
                log.debug("client %d does not prepare the next secure sum", client, exc_info=True)
        return reply

    def _stage(self, client: int, packet: Packet, task: bytes, received: Mapping[bytes, Replica | SketchfedError]) -> bytes:
        """The answer to one packet. A request may hold two: a stage of this round's sum, and one of the next round's."""
        sums = self._sums[client]
        if packet.kind == request_kind("keys"):
            identity, joined = self._identities[client], self._joined[client]
            made, reply = self._participant.join(packet, client, identity, self.directory, joined)
            sums[made.name] = made
            for old in list(sums)[:-_KEPT]:
                del sums[old]
            return reply
        name = sum_of(packet)
        if name not in sums:
            raise SecureSumError(f"client {client} has not joined the secure sum that this request '{packet.kind}' belongs to.")
        if packet.kind != request_kind("masked"):
            return pack(sums[name].answer(packet))
        replica = received[task]
        if isinstance(replica, SketchfedError):
            raise replica
        memory = self._memories.get(client)
        reply, memory = self._participant.masked(sums[name], packet, replica, self._examples(client), memory, client)
        self.kept[client] = replica.round, memory
        return reply


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
