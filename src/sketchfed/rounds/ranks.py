"""An engine that shares the clients of a round between the ranks of a launch."""

import heapq
import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from sketchfed.algorithms import Replica
from sketchfed.errors import RankError, WireError
from sketchfed.rounds.engine import Requests
from sketchfed.rounds.local import LocalEngine
from sketchfed.rounds.participant import Participant, parted
from sketchfed.rounds.rank_hub import Hub, Message, Moved, integers
from sketchfed.training import ClientMemory, Examples
from sketchfed.wire import Packet, expect_kind, kind_of, pack

log = logging.getLogger("sketchfed")

_NONE = -1
_MOST = 2**62
_PLAIN = ("train", "evaluate")
RESUME = "All rounds up to the last checkpoint are kept: continue with --resume, on any number of ranks."

OnCall = Callable[[dict[str, Any]], None]
"""Called after each call of the engine: stage, clients and seconds of each rank, payload and all bytes between ranks."""


def shared_out(clients: Iterable[int], sizes: Sequence[int], ranks: int, *, fixed: Mapping[int, int]) -> dict[int, int]:
    """The rank of each client: the largest clients first, each to the rank with the least work (Graham 1969, LPT).

    The work of a client is its number of examples. Clients in `fixed` stay where they are.

    >>> shared_out([0, 1, 2, 3], [10, 80, 30, 50], 2, fixed={})
    {1: 0, 3: 1, 2: 1, 0: 0}
    """
    chosen = list(clients)
    loads = [0] * ranks
    for client in chosen:
        if client in fixed:
            loads[fixed[client]] += max(1, sizes[client])
    places = {client: fixed[client] for client in chosen if client in fixed}
    heap = [(load, rank) for rank, load in enumerate(loads)]
    heapq.heapify(heap)
    for client in sorted((c for c in chosen if c not in fixed), key=lambda c: (-sizes[c], c)):
        load, rank = heap[0]
        places[client] = rank
        heapq.heapreplace(heap, (load + max(1, sizes[client]), rank))
    return places


class RankEngine(LocalEngine):
    """The engine of rank 0. It shares the clients of each call with the other ranks, and keeps all clients' memories.

    Other ranks run `Worker`. Results are bitwise equal to those of `LocalEngine`, because a client computes the same wherever
    it runs. A client's memory travels with its request, so any rank may run it. With secure sums, a client stays on the rank
    that ran it first, because the state of its sums does.
    """

    def __init__(
        self,
        hub: Hub,
        participant: Participant,
        examples: Callable[[int], Examples],
        *,
        sizes: Sequence[int],
        start: Replica | None,
        on_traffic: OnCall | None = None,
        **options: Any,
    ) -> None:
        super().__init__(participant, examples, clients=len(sizes), start=start, **options)
        self._hub, self._sizes, self._on_traffic = hub, sizes, on_traffic
        first = None if start is None else start.round
        self._held: dict[int, int | None] = dict.fromkeys(hub.others, first)
        """The round of the replica that each other rank holds."""
        self._latest = first
        self._placed: dict[int, int] = {}
        self._calls = hub.runs << 32
        # The own share has a thread, because this one watches the other ranks.
        self._own = ThreadPoolExecutor(1, "own share", initializer=torch.set_num_threads, initargs=(1,))

    def ask(self, requests: Mapping[int, bytes], stage: str = "train") -> dict[int, bytes]:
        start, before, order = time.monotonic(), self._hub.traffic, list(requests)
        down = sum(map(len, requests.values()))
        shares = self._shares(requests, stage)
        self._calls += 1
        for rank in self._hub.others:
            if shares[rank]:
                self._hub.send(rank, *self._request(rank, shares[rank], stage))
        waiting = {rank for rank in self._hub.others if shares[rank]}
        own = Requests(shares[0])
        if isinstance(requests, Requests):
            requests.clear()
        clients = {rank: len(share) for rank, share in shares.items()}
        shares.clear()
        seconds: dict[int, float] = {}
        complaints, replies = dict[int, str](), dict[int, bytes]()
        computing = self._own.submit(self._own_share, own, stage) if own else None
        if computing is not None:
            waiting.add(0)
            computing.add_done_callback(lambda _: self._hub.post(Message(Packet(kind="done", arrays={}))))
        while waiting:
            rank, message = self._hub.next(remedy=RESUME)
            if rank == 0 and computing is not None:
                replies |= computing.result()
                complaints |= self.complaints
            elif message.packet.scalars.get("call") != self._calls:
                continue  # the answer to a call that was given up
            else:
                try:
                    answer = _read_answer(message, self._sizes)
                except WireError as error:
                    raise RankError(f"{self._hub.places[rank]} sent an answer that cannot be used: {error}") from error
                replies |= answer.replies
                complaints |= answer.complaints
                self._held[rank] = answer.holds
                for client, (index, memory) in answer.memories.items():
                    self._keep(client, index, memory)
            waiting.discard(rank)
            seconds[rank] = round(time.monotonic() - start, 4)
        self.complaints = {client: complaints[client] for client in order if client in complaints}
        held = [self.replica.round if self.replica is not None else None, self._latest, *self._held.values()]
        self._latest = max((index for index in held if index is not None), default=None)
        found = {client: replies[client] for client in order if client in replies}
        self._tell(stage, clients, seconds, (down, sum(map(len, found.values()))), before)
        return found

    def _own_share(self, requests: Requests, stage: str) -> dict[int, bytes]:
        tasks = list(_tasks(requests.values(), stage))
        if self.replica is not None and self.replica.round != self._latest and not all(map(_is_whole, tasks)):
            held = self.held_by_server()
            if held is not None:
                self.replica = self._participant.receive(self.replica, self._whole(held))
        return super().ask(requests, stage)

    def _shares(self, requests: Mapping[int, bytes], stage: str) -> dict[int, dict[int, bytes]]:
        sticky = stage not in _PLAIN
        places = shared_out(requests, self._sizes, self._hub.size, fixed=self._placed if sticky else {})
        if sticky:
            self._placed |= places
        shares: dict[int, dict[int, bytes]] = {rank: {} for rank in range(self._hub.size)}
        for client, request in requests.items():
            shares[places[client]][client] = request
        return shares

    def _request(self, rank: int, share: Mapping[int, bytes], stage: str) -> tuple[Packet, list[bytes]]:
        """The message with a rank's share. Equal tasks travel once, and a replica only if the rank missed a round."""
        parts = _Parts()
        whole = _NONE
        if self._held[rank] != self._latest and not all(map(_is_whole, _tasks(share.values(), stage))):
            held = self.held_by_server() or self.replica
            if held is not None:
                whole = parts.add(self._whole(held))
        heads, tasks, memories = [], [], []
        for client, request in share.items():
            head, task = _headed(request, stage)
            heads.append(parts.add(head))
            tasks.append(parts.add(task))
            memory = self.memories.get(client)
            memories.append(_NONE if memory is None or stage not in (*_PLAIN, "masked") else parts.add(_packed(memory)))
        packet = Packet(
            kind="ask",
            scalars={"stage": stage, "call": self._calls, "whole": whole},
            arrays={
                "clients": _array(share),
                "heads": _array(heads),
                "tasks": _array(tasks),
                "memories": _array(memories),
            },
        )
        return packet, parts.found

    def _whole(self, replica: Replica) -> bytes:
        return pack(self._participant.algorithm.given(self._participant.seed, replica.round).packet(replica))

    def _tell(
        self, stage: str, clients: Mapping[int, int], seconds: Mapping[int, float], payload: tuple[int, int], before: Moved
    ) -> None:
        if self._on_traffic is None:
            return
        after = self._hub.traffic
        self._on_traffic(
            {
                "stage": stage,
                "payload_down": payload[0],
                "payload_up": payload[1],
                "sent": after.sent - before.sent,
                "received": after.received - before.received,
                "clients": [clients[rank] for rank in range(self._hub.size)],
                "seconds": [seconds.get(rank, 0.0) for rank in range(self._hub.size)],
            }
        )

    def close(self, *, wait: bool = True) -> None:
        self._own.shutdown(wait=wait, cancel_futures=True)
        super().close(wait=wait)


class Worker:
    """Answers for the clients that rank 0 sends to this rank."""

    def __init__(self, engine: LocalEngine, participant: Participant, sizes: Sequence[int]) -> None:
        self._engine, self._participant, self._sizes = engine, participant, sizes

    def answer(self, message: Message) -> Message:
        """Compute the answer to a request of rank 0. Raises `WireError` for a request that makes no sense."""
        packet, parts = expect_kind(message.packet, "ask"), _Parts(message.parts)
        stage, whole = packet.scalars.get("stage"), packet.scalars.get("whole")
        clients = integers(packet, "clients", most=len(self._sizes) - 1)
        heads, tasks, memories = (
            integers(packet, name, least=_NONE, most=len(parts.found) - 1, count=len(clients))
            for name in ("heads", "tasks", "memories")
        )
        if not isinstance(stage, str) or type(whole) is not int or not _NONE <= whole < len(parts.found):
            raise WireError("a request between ranks must name its stage, and the replica that comes with it.")
        engine = self._engine
        if whole != _NONE:
            engine.replica = self._participant.receive(engine.replica, parts.found[whole])
        engine.memories = {
            client: _unpacked(parts.found[memory]) for client, memory in zip(clients, memories, strict=True) if memory != _NONE
        }
        requests = Requests()
        for client, head, task in zip(clients, heads, tasks, strict=True):
            requests[client] = parts.at(head) + parts.at(task) if parts.at(head) else parts.at(task)
        replies = engine.ask(requests, stage)
        return self._answer(packet, replies)

    def _answer(self, packet: Packet, replies: Mapping[int, bytes]) -> Message:
        parts, engine = _Parts(), self._engine
        pending = engine.take_pending()
        engine.memories = {}
        holds = _NONE if engine.replica is None else engine.replica.round
        complaints = parts.add(json.dumps(list(engine.complaints.items())).encode())
        arrays = {
            "clients": _array(replies),
            "replies": _array([parts.add(reply) for reply in replies.values()]),
            "kept": _array(pending),
            "rounds": _array([index for index, _ in pending.values()]),
            "memories": _array([parts.add(_packed(memory)) for _, memory in pending.values()]),
        }
        scalars = {"call": packet.scalars.get("call", _NONE), "holds": holds, "complaints": complaints}
        return Message(Packet(kind="answer", arrays=arrays, scalars=scalars), parts.found)


class _Answer(NamedTuple):
    replies: dict[int, bytes]
    complaints: dict[int, str]
    memories: dict[int, tuple[int, ClientMemory]]
    holds: int | None


def _read_answer(message: Message, sizes: Sequence[int]) -> _Answer:
    packet, parts = expect_kind(message.packet, "answer"), message.parts
    last, most = len(sizes) - 1, len(parts) - 1
    clients = integers(packet, "clients", most=last)
    replies = integers(packet, "replies", most=most, count=len(clients))
    kept = integers(packet, "kept", most=last)
    rounds = integers(packet, "rounds", most=_MOST, count=len(kept))
    memories = integers(packet, "memories", most=most, count=len(kept))
    holds, complaints = packet.scalars.get("holds"), packet.scalars.get("complaints")
    if type(holds) is not int or type(complaints) is not int or not 0 <= complaints <= most:
        raise WireError("an answer between ranks must say which replica the rank holds, and why clients did not answer.")
    return _Answer(
        {client: parts[reply] for client, reply in zip(clients, replies, strict=True)},
        _texts(parts[complaints], last),
        {who: (index, _unpacked(parts[part])) for who, index, part in zip(kept, rounds, memories, strict=True)},
        None if holds == _NONE else holds,
    )


def _texts(data: bytes, last: int) -> dict[int, str]:
    try:
        found = dict(json.loads(data))
    except (ValueError, TypeError, RecursionError) as error:
        raise WireError("the reasons of clients that did not answer are not texts by client.") from error
    if not all(type(client) is int and 0 <= client <= last and isinstance(text, str) for client, text in found.items()):
        raise WireError("the reasons of clients that did not answer are not texts by client.")
    return found


class _Parts:
    """The parts of a message, each of them once."""

    def __init__(self, found: Sequence[bytes] = ()) -> None:
        self.found = list(found)
        self._places: dict[bytes, int] = {}

    def add(self, data: bytes) -> int:
        if data not in self._places:
            self._places[data] = len(self.found)
            self.found.append(data)
        return self._places[data]

    def at(self, place: int) -> bytes:
        return b"" if place == _NONE else self.found[place]


def _headed(request: bytes, stage: str) -> tuple[bytes, bytes]:
    """Split a request into what is the client's own and the task that other clients have as well."""
    if stage != "masked":
        return b"", request
    try:
        packets, task = parted(request)
    except WireError:  # the client reports it
        return request, b""
    return b"".join(packets), task


def _tasks(requests: Collection[bytes], stage: str) -> Iterable[bytes]:
    """The tasks in the requests of a stage. Most stages of a secure sum have none."""
    return {_headed(request, stage)[1] for request in requests} if stage in (*_PLAIN, "masked") else ()


def _is_whole(task: bytes) -> bool:
    try:
        return kind_of(task) == "snapshot"
    except WireError:
        return False


def _array(numbers: Iterable[int]) -> Tensor:
    return torch.tensor(list(numbers), dtype=torch.int64)


def _packed(memory: ClientMemory) -> bytes:
    return safetensors.torch.save(memory.to_tensors())


def _unpacked(data: bytes) -> ClientMemory:
    try:
        return ClientMemory.from_tensors(safetensors.torch.load(data))
    except Exception as error:  # safetensors raises several kinds
        raise WireError("the memory of a client is damaged. Start all ranks with one version.") from error
