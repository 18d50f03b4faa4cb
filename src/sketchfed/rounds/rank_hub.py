"""Messages between ranks over torch.distributed, and how a rank that is gone is noticed."""

import atexit
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from sketchfed.errors import RankError, WireError
from sketchfed.rounds.launch import Launch, Place, met
from sketchfed.wire import Packet, pack, split, tensor_named, unpack

_MAGIC = 0x534B52414E4B3031  # "SKRANK01"
_HEADER = 3
_CHUNK = 2**24
_MOST_ENVELOPE, _MOST_PAYLOAD, _MOST_PARTS = 2**26, 2**36, 2**22
_EVER = timedelta(days=3650)
_TAG = 7
_LONGEST = 2_000
_POLL = 0.25
_PARTING = 1.0
"""The seconds for which a rank that gives up tries to tell the others."""


class Message(NamedTuple):
    """A packet that says what the parts are, and the parts, which are bytes of any kind."""

    packet: Packet
    parts: Sequence[bytes] = ()


class Moved(NamedTuple):
    """Bytes that this rank sent to others and received from them, with everything that surrounds the payload."""

    sent: int = 0
    received: int = 0


class _Channel:
    """A conversation with one other rank. It has a thread that sends and one that receives.

    torch.distributed closes all connections of a process when a single wait times out, so nothing here waits with a
    timeout. Instead, both sides send signs of life, and `heard` says when the last one came.
    """

    def __init__(self, peer: Place, beat: float, inbox: "SimpleQueue[tuple[int, Message | Exception]]", group: Any) -> None:
        self.peer, self.heard, self.sent, self.received = peer, time.monotonic(), 0, 0
        self.over = self._sending = False
        self._beat, self._inbox, self._group = beat, inbox, group
        self._outbox: SimpleQueue[Message] = SimpleQueue()
        self._threads = [
            Thread(target=work, name=f"rank {peer.rank}", daemon=True) for work in (self._send_all, self._receive_all)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def busy(self) -> bool:
        """Whether there is something to send, and a connection to send it over."""
        return not self.over and (self._sending or not self._outbox.empty())

    @property
    def done(self) -> bool:
        """Whether both sides have said goodbye, or the connection is lost."""
        return self.over or not any(thread.is_alive() for thread in self._threads)

    @property
    def waits(self) -> bool:
        """Whether a thread still waits for the other rank."""
        return any(thread.is_alive() for thread in self._threads)

    def send(self, message: Message) -> None:
        self._outbox.put(message)

    def _send_all(self) -> None:
        torch.set_num_threads(1)
        try:
            while not self.over:
                self._sending = False
                try:
                    message = self._outbox.get(timeout=self._beat)
                except Empty:
                    self._put(torch.tensor([_MAGIC, 0, 0]))
                    continue
                self._sending = True
                lengths = torch.tensor([len(part) for part in message.parts], dtype=torch.int64)
                envelope = pack(Packet(kind="parts", arrays={"lengths": lengths})) + pack(message.packet)
                self._put(torch.tensor([_MAGIC, len(envelope), int(lengths.sum())]))
                self._put_bytes(envelope)
                for part in message.parts:
                    self._put_bytes(part)
                if message.packet.kind == "over":
                    return
        except Exception as error:
            self._fail(error)

    def _receive_all(self) -> None:
        torch.set_num_threads(1)
        try:
            while True:
                header = torch.empty(_HEADER, dtype=torch.int64)
                self._take(header)
                magic, size, total = header.tolist()
                if magic != _MAGIC or not 0 <= size <= _MOST_ENVELOPE or not 0 <= total <= _MOST_PAYLOAD:
                    raise WireError("it sent something else than a message of this version. Start all ranks with one version.")
                if size:
                    message = self._message(self._take_bytes(size), total)
                    self._inbox.put((self.peer.rank, message))
                    if message.packet.kind == "over":
                        return
        except Exception as error:
            self._fail(error)

    def _message(self, envelope: np.ndarray[Any, Any], total: int) -> Message:
        first, second = split(envelope.data, most=2)
        lengths = integers(unpack(first), "lengths", most=_MOST_PAYLOAD)
        if sum(lengths) != total or len(lengths) > _MOST_PARTS:
            raise WireError(f"it announced {total:,} bytes, and parts of {sum(lengths):,}. Start all ranks with one version.")
        return Message(unpack(second), [self._take_bytes(length).tobytes() for length in lengths])

    def _put_bytes(self, data: bytes) -> None:
        if data:
            whole = np.frombuffer(data, np.uint8)
            for start in range(0, len(data), _CHUNK):
                self._put(torch.from_numpy(whole[start : start + _CHUNK].copy()))  # torch takes no memory that is read-only

    def _take_bytes(self, size: int) -> np.ndarray[Any, Any]:
        """Receive that many bytes. Memory is taken as they arrive, so a false size costs nothing."""
        made = torch.from_numpy(np.empty(size, np.uint8))
        for start in range(0, size, _CHUNK):
            self._take(made[start : start + _CHUNK])
        return made.numpy()

    def _put(self, tensor: torch.Tensor) -> None:
        work = dist.isend(tensor, self.peer.rank, group=self._group, tag=_TAG)
        if work is not None:
            work.wait(_EVER)
        self.sent += tensor.nbytes

    def _take(self, tensor: torch.Tensor) -> None:
        work = dist.irecv(tensor, self.peer.rank, group=self._group, tag=_TAG)
        if work is not None:
            work.wait(_EVER)
        self.received += tensor.nbytes
        self.heard = time.monotonic()

    def _fail(self, error: Exception) -> None:
        if not self.over:
            self.over = True
            self._inbox.put((self.peer.rank, error))


def integers(packet: Packet, name: str, *, least: int = 0, most: int, count: int | None = None) -> list[int]:
    """A list of integers in a packet of another rank. Raises `WireError` unless all of them are in the range."""
    array = packet.arrays.get(name)
    shape = (count,) if count is not None else (len(array) if isinstance(array, torch.Tensor) and array.ndim == 1 else 0,)
    found: list[int] = tensor_named(packet, name, shape=shape, dtype=torch.int64).tolist()
    if found and not (least <= min(found) and max(found) <= most):
        raise WireError(f"'{name}' of a packet '{packet.kind}' must hold integers from {least:,} to {most:,}.")
    return found


class Hub:
    """All conversations of this rank: rank 0 talks to all others, and they talk to rank 0."""

    def __init__(self, launch: Launch, *, wait: float, deadline: float) -> None:
        """`wait` is the number of seconds to wait for all ranks. After `deadline` seconds of silence, a rank is lost."""
        self.launch, self.deadline, self.runs = launch, deadline, 0
        store = launch.store(wait)
        self.places = met(launch, store, wait)
        group = None
        try:
            if dist.is_initialized():
                group = dist.new_group(backend="gloo", timeout=timedelta(seconds=wait))
            else:
                dist.init_process_group(
                    "gloo",
                    store=PrefixStore("gloo", store),
                    rank=launch.rank,
                    world_size=launch.size,
                    timeout=timedelta(seconds=wait),
                )
        except (RuntimeError, ValueError) as error:
            raise RankError(
                f"rank {launch.rank} cannot connect to the others: {_short(error)}. If a machine has several networks, name "
                "the right interface with GLOO_SOCKET_IFNAME, and open its ports between the machines."
            ) from error
        self._store = store  # rank 0 may run it
        self._inbox: SimpleQueue[tuple[int, Message | Exception]] = SimpleQueue()
        peers = [place for place in self.places if launch.leads != (place.rank == 0)]
        beat = min(1.0, deadline / 5)
        self._channels = {peer.rank: _Channel(peer, beat, self._inbox, group) for peer in peers}

    @property
    def size(self) -> int:
        return self.launch.size

    @property
    def others(self) -> list[int]:
        """The ranks that this rank talks to."""
        return list(self._channels)

    @property
    def traffic(self) -> Moved:
        channels = self._channels.values()
        return Moved(sum(channel.sent for channel in channels), sum(channel.received for channel in channels))

    def store(self, run: int) -> Store:
        """The store of the launch, for what belongs to the run of this number."""
        return PrefixStore(f"run {run}", self._store)

    def is_alive(self, rank: int) -> bool:
        """Whether a rank that this rank talks to is connected and gave a sign of life within the deadline."""
        channel = self._channels[rank]
        return not channel.over and time.monotonic() - channel.heard <= self.deadline

    def send(self, rank: int, packet: Packet, parts: Sequence[bytes] = ()) -> None:
        """Queue a message. It is sent while this rank does something else."""
        self._channels[rank].send(Message(packet, parts))

    def post(self, item: Message | Exception) -> None:
        """Put something into this rank's own inbox. A thread wakes the main thread with it."""
        self._inbox.put((self.launch.rank, item))

    def next(self, *, remedy: str = "") -> tuple[int, Message]:
        """The next message and the rank it came from. Raises `RankError` if a rank is gone, or was silent for too long."""
        suspected: dict[int, float] = {}
        while True:
            try:
                rank, item = self._inbox.get(timeout=min(_POLL, self.deadline / 4))
            except Empty:
                self._look_for_silence(suspected, remedy)
                continue
            if rank == self.launch.rank:
                if isinstance(item, Exception):
                    raise item
                return rank, item
            if isinstance(item, Message) and item.packet.kind == "failed":
                said = b"".join(item.parts)[:_LONGEST].decode(errors="replace")
                raise RankError(f"{self.places[rank]} ended the run: {said}")
            if isinstance(item, WireError):
                raise RankError(f"{self.places[rank]} cannot be understood: {item}")
            if isinstance(item, Exception):
                raise RankError(f"{self.places[rank]} is gone: its connection was lost ({_short(item)}). {_advice(remedy)}")
            return rank, item

    def _look_for_silence(self, suspected: dict[int, float], remedy: str) -> None:
        """Raise `RankError` for a rank that stays silent. The first look may come late because this process was busy."""
        now = time.monotonic()
        for rank, channel in self._channels.items():
            if now - channel.heard <= self.deadline:
                suspected.pop(rank, None)
            elif now - suspected.setdefault(rank, now) > min(1.0, self.deadline / 2):
                raise RankError(
                    f"{self.places[rank]} was silent for {now - channel.heard:.0f} seconds, and engine.deadline = "
                    f"{self.deadline:g}. {_advice(remedy)}"
                )

    def close(self) -> None:
        """Say goodbye, and wait until all others have said it as well."""
        for rank in self.others:
            self.send(rank, Packet(kind="over", arrays={}))
        suspected: dict[int, float] = {}
        with suppress(RankError):
            while not all(channel.done for channel in self._channels.values()):
                self._look_for_silence(suspected, "")
                time.sleep(_POLL / 10)
        self.abandon()

    def abandon(self, why: str = "") -> None:
        """Drop all connections, so that the other ranks notice. After an error, tell them why."""
        if why:
            for channel in self._channels.values():
                channel.send(Message(Packet(kind="failed", arrays={}), [why.encode()]))
            until = time.monotonic() + _PARTING
            while time.monotonic() < until and any(channel.busy for channel in self._channels.values()):
                time.sleep(_POLL / 25)
        for channel in self._channels.values():
            channel.over = True
        _abandoned[os.getpid()] = list(self._channels.values())
        with suppress(Exception):
            dist.destroy_process_group()


def _advice(remedy: str) -> str:
    return f"The output of that process may say why. {remedy}".rstrip()


def _short(error: Exception) -> str:
    """The first sentence of an error of torch, without the place in its source."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text.rpartition("] ")[2].partition(". ")[0].rstrip(".")[:200]


_abandoned: dict[int, list[_Channel]] = {}
"""The conversations that this process, by its id, has dropped."""
_joined: dict[int, Hub] = {}
"""The hub of this process, by its id. A process joins a launch once, and all of its runs use the same connections."""


def joined(wait: float, deadline: float) -> Hub:
    """The hub of this process. The first call waits for the other ranks, for `wait` seconds at most."""
    process = os.getpid()
    if process not in _joined:
        _joined[process] = Hub(Launch.needed(), wait=wait, deadline=deadline)
        atexit.register(_ended)  # torch aborts a process that ends while threads wait for others
    _joined[process].deadline = deadline
    return _joined[process]


def has_joined() -> bool:
    """Whether this process has connections to other ranks."""
    return os.getpid() in _joined


def left(hub: Hub, why: str = "") -> None:
    """Leave the launch after an error, and tell the other ranks why. Those that cannot be told notice it at once."""
    _joined.pop(os.getpid(), None)
    hub.abandon(why)


def said_goodbye() -> None:
    """Tell the other ranks that this one has no more runs, if it has joined a launch."""
    if (hub := _joined.pop(os.getpid(), None)) is not None:
        hub.close()


def end(code: int) -> None:
    """End the process with this code, if threads of torch still wait for a rank that is silent: torch would abort it.

    Otherwise return, so that the process ends as usual.
    """
    if any(channel.waits for channel in _abandoned.get(os.getpid(), ())):
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)


def _ended() -> None:
    said_goodbye()
    end(0 if getattr(sys, "last_value", None) is None else 1)
