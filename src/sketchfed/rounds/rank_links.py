"""Messages between the nodes of a graph that live on several ranks. A rank that dies or is late does not stop the others.

These are plain TCP sockets. Connections of torch.distributed do not suit: when a wait for one rank times out, gloo closes the
connections to all ranks.
"""

import logging
import socket
import struct
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from threading import Condition, Thread

from torch.distributed import Store  # type: ignore[attr-defined]

from sketchfed.errors import InputError, RankError, WireError
from sketchfed.rounds.launch import Launch, Place, met
from sketchfed.rounds.peers.base import Hop
from sketchfed.rounds.rank_sockets import Tls, listening, parsed_address, towards, tuned

log = logging.getLogger("sketchfed")

_HELLO = struct.Struct("<8s16sI")
_FRAME = struct.Struct("<4sIIQBQ")
_GREETING, _MAGIC, _BYE = b"SKLINKS1", b"SKLF", b"SKLB"
_CHUNK = 2**20
_LONGEST_STAGE = 64
_POLL = 0.25
_AHEAD = 64
"""The number of messages of later exchanges that are kept for an edge. Older ones are dropped."""
_UNSENT = 4
"""The number of indices whose messages wait for a rank that does not read. Older ones are dropped."""


class _LeftError(EOFError):
    """The other rank said that it has nothing more to send."""


class RankLinks:
    """Moves messages between the nodes of a graph that live on several ranks.

    Each rank listens on a port, and tells it to the others through the store of the launch. A message goes over one connection
    from the sender's rank to the receiver's. Nothing is authenticated unless `tls` is given.
    """

    def __init__(
        self,
        launch: Launch,
        homes: Sequence[int],
        *,
        deadline: float,
        wait: float = 120.0,
        listen: str = "",
        routes: Mapping[int, str] | None = None,
        tls: Tls | None = None,
        most: int = 2**32,
        store: Store | None = None,
    ) -> None:
        """`homes` is the rank of each node. `deadline` is the number of seconds that an exchange waits for messages.

        `wait` is the number of seconds to wait for all ranks to start. By default a rank listens on a free port of the
        interface that leads to MASTER_ADDR; `listen` names another one, as host:port. `routes` names addresses at which this
        rank finds others, such as those of local tunnels. A message has at most `most` bytes. `store` is the store of the
        launch, if this process is connected to it already; each object needs one of its own, or a prefix in it.
        """
        self.rank, self.deadline = launch.rank, deadline
        self.sent: defaultdict[Hop, int] = defaultdict(int)
        """The bytes of the messages that were given to each edge, to nodes on other ranks."""
        self.moved_out = self.moved_in = 0
        """All bytes that this rank wrote to connections and read from them, without those of TLS and TCP."""
        self.lost = 0
        """The number of messages that were expected and did not come in time."""
        self._homes, self._most, self._tls = list(homes), most, tls
        self._changed = Condition()
        self._late: set[int] = set()
        self._gone: set[int] = set()
        self._index, self._done = -1, set[str]()
        self._newest: defaultdict[int, int] = defaultdict(int)
        """The largest index of the messages of each rank."""
        self._arrived: defaultdict[tuple[int, str], dict[Hop, bytes]] = defaultdict(dict)
        self._closing = False
        self._incoming: dict[int, socket.socket] = {}
        self._contexts = None if tls is None else (tls.context(server=True), tls.context(server=False))
        self._listener = listening(listen or f"{towards(launch)}:0")
        store = launch.store(wait) if store is None else store
        host, port = self._listener.getsockname()[:2]
        try:
            if launch.leads:
                store.set("links/token", token_hex(8))
            store.set(f"links/{launch.rank}", f"{host}:{port}")
            self.places: list[Place] = met(launch, store, wait)
            self._token = bytes(store.get("links/token"))[:16].ljust(16)
            addresses = {rank: store.get(f"links/{rank}").decode() for rank in range(launch.size)}
        except (RuntimeError, ConnectionError) as error:
            self._listener.close()
            raise RankError(f"rank {launch.rank} lost the store of the launch before all ranks had joined: {error}") from error
        except RankError:
            self._listener.close()
            raise
        self._store = store  # rank 0 may run it
        found = addresses | dict(routes or {})
        self._outgoing = {rank: _Outgoing(self, rank, found[rank]) for rank in range(launch.size) if rank != launch.rank}
        Thread(target=self._accept, name="links", daemon=True).start()

    @property
    def gone(self) -> frozenset[int]:
        """The ranks whose connection is lost. They are not waited for."""
        with self._changed:
            return frozenset(self._gone)

    @property
    def late(self) -> frozenset[int]:
        """The ranks that missed the deadline of an exchange, and have not caught up. They are not waited for."""
        with self._changed:
            return frozenset(self._late)

    def connect(self, ranks: Collection[int]) -> None:
        """Connect to other ranks now, so that they notice from the start when this one is gone. By default, this happens later:
        a connection is made when there is something to send.
        """
        for rank in ranks:
            self._outgoing[rank].put(0, "", [])

    def exchange(
        self,
        outgoing: Mapping[Hop, bytes],
        expected: Collection[Hop],
        index: int,
        stage: str,
        *,
        deadline: float | None = None,
        alive: Callable[[int], bool] | None = None,
    ) -> dict[Hop, bytes]:
        """Send messages, and return those of the expected ones that arrive before the deadline.

        `outgoing` holds the messages of nodes on this rank, and `expected` the edges to nodes on this rank. All ranks give the
        same `index` and `stage`, a pair that is used once, and indices do not decrease. Messages of ranks that are gone or
        late are missing. Nothing is raised because of another rank.

        This exchange may have a `deadline` of its own. Beyond it, ranks are waited for as long as all of them are `alive`.
        """
        self._check(outgoing, expected, index, stage)
        own = {edge: data for edge, data in outgoing.items() if self._homes[edge[1]] == self.rank}
        by_rank: defaultdict[int, list[tuple[Hop, bytes]]] = defaultdict(list)
        for edge, data in outgoing.items():
            if edge not in own:
                by_rank[self._homes[edge[1]]].append((edge, data))
                self.sent[edge] += len(data)
        for rank, messages in by_rank.items():
            self._outgoing[rank].put(index, stage, messages)
        remote = {edge for edge in expected if self._homes[edge[0]] != self.rank}
        found = {edge: own[edge] for edge in expected if edge in own} | self._collected(
            remote, index, stage, self.deadline if deadline is None else deadline, alive
        )
        return {edge: found[edge] for edge in expected if edge in found}

    def _check(self, outgoing: Mapping[Hop, bytes], expected: Collection[Hop], index: int, stage: str) -> None:
        if index < self._index or (index == self._index and stage in self._done):
            raise InputError(f"the exchange '{stage}' of index {index} is over. Use each pair once, with indices that grow.")
        if not stage.isascii() or not 0 < len(stage) <= _LONGEST_STAGE:
            raise InputError(f"a stage is named by up to {_LONGEST_STAGE} ASCII characters, got {stage!r}.")
        for edges, end, what in ((outgoing, 0, "sent"), (expected, 1, "received")):
            for edge in edges:
                if not all(0 <= node < len(self._homes) for node in edge) or self._homes[edge[end]] != self.rank:
                    raise InputError(f"a message over edge {edge} is not {what} by a node on rank {self.rank}.")

    def _collected(
        self, expected: set[Hop], index: int, stage: str, deadline: float, alive: Callable[[int], bool] | None
    ) -> dict[Hop, bytes]:
        until = time.monotonic() + deadline
        with self._changed:
            self._advance(index)
            while missing := expected - self._arrived[index, stage].keys():
                waited = {self._homes[sender] for sender, _ in missing} - self._gone - self._late
                left = until - time.monotonic()
                if not waited:
                    break
                if left <= 0 and alive is not None and all(map(alive, waited)):
                    left = _POLL
                if left <= 0:
                    self._late |= waited
                    named = ", ".join(str(self.places[rank]) for rank in sorted(waited))
                    log.warning("round %d goes on without %s, which took longer than %g seconds", index + 1, named, deadline)
                    break
                self._changed.wait(left)
            found = self._arrived.pop((index, stage), {})
            self._done.add(stage)
            self.lost += len(missing)
        return {edge: data for edge, data in found.items() if edge in expected}

    def newest(self, rank: int) -> int:
        """The largest index of all messages from a rank that have arrived, and at least the current one."""
        with self._changed:
            return max(self._index, self._newest[rank])

    def _advance(self, index: int) -> None:
        """Go on to an index. Drop all that came too late for earlier ones."""
        if index > self._index:
            self._index, self._done = index, set()
        for key in [key for key in self._arrived if key[0] < index]:
            del self._arrived[key]

    def _take(self, rank: int, edge: Hop, index: int, stage: str, data: bytes) -> None:
        """Keep a message that arrived, unless its exchange is over."""
        with self._changed:
            if index >= self._index - 1:
                self._late.discard(rank)
            if index < self._index or (index == self._index and stage in self._done):
                return
            self._newest[rank] = max(self._newest[rank], index)
            kept = sorted(key for key, found in self._arrived.items() if edge in found)
            if len(kept) >= _AHEAD:  # a rank that is so far behind goes on with the newest ones
                del self._arrived[kept[0]][edge]
            self._arrived[index, stage].setdefault(edge, data)
            self._changed.notify_all()

    # Connections ------------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closing:
            try:
                raw, _ = self._listener.accept()
            except OSError:
                return
            Thread(target=self._serve, args=(raw,), name="link", daemon=True).start()

    def _serve(self, raw: socket.socket) -> None:
        """Read all that another rank sends over one connection."""
        rank, connection, quietly = None, raw, False
        try:
            tuned(raw, self.deadline)
            raw.settimeout(self.deadline)
            if self._contexts is not None:
                connection = self._contexts[0].wrap_socket(raw, server_side=True)
            greeting, token, number = _HELLO.unpack(self._read(connection, _HELLO.size))
            if greeting != _GREETING or token != self._token or number not in self._outgoing:
                raise WireError("it is no rank of this launch.")
            rank = number
            connection.settimeout(None)
            with self._changed:
                self._incoming[rank] = connection
                self._gone.discard(rank)
            while True:
                self._take(rank, *self._message(connection, rank))
        except (OSError, ValueError, EOFError) as error:  # WireError is a ValueError, and so is reading what was closed
            quietly = isinstance(error, _LeftError)
            if rank is None:
                log.debug("a connection was refused: %s", error)
            elif isinstance(error, WireError):
                log.warning("the connection of rank %d was closed: %s", rank, error)
        finally:
            with suppress(OSError):
                connection.close()
            if rank is not None:
                with self._changed:
                    if self._incoming.get(rank) is connection:
                        self._lose(rank, quietly=quietly)

    def _message(self, connection: socket.socket, rank: int) -> tuple[Hop, int, str, bytes]:
        magic, sender, receiver, index, named, size = _FRAME.unpack(self._read(connection, _FRAME.size))
        nodes = len(self._homes)
        if magic == _BYE:
            raise _LeftError
        if magic != _MAGIC or not 0 < named <= _LONGEST_STAGE:
            raise WireError("it sent something else than messages of this version. Start all ranks with one version.")
        if not (sender < nodes and receiver < nodes and (self._homes[sender], self._homes[receiver]) == (rank, self.rank)):
            raise WireError(f"it sent a message from node {sender} to node {receiver}, which do not live on these two ranks.")
        if size > self._most:
            raise WireError(f"it sent a message of {size:,} bytes, and at most {self._most:,} are read.")
        stage = self._read(connection, named)
        if not stage.isascii():
            raise WireError("it sent a message whose stage is not named in ASCII characters.")
        return (sender, receiver), index, stage.decode(), self._read(connection, size)

    def _read(self, connection: socket.socket, size: int) -> bytes:
        """Read that many bytes. Memory is taken as they arrive, so a false size costs nothing."""
        parts, left = list[bytes](), size
        while left:
            part = connection.recv(min(left, _CHUNK))
            if not part:
                raise EOFError
            parts.append(part)
            left -= len(part)
            self.moved_in += len(part)
        return b"".join(parts)

    def _lose(self, rank: int, *, quietly: bool = False) -> None:
        """Note that a rank is gone. The lock is held."""
        self._incoming.pop(rank, None)
        if rank not in self._gone and not self._closing:
            self._gone.add(rank)
            log.log(
                logging.DEBUG if quietly else logging.WARNING,
                "%s is gone: its connection was lost. The others go on",
                self.places[rank],
            )
        self._changed.notify_all()

    def unreachable(self, rank: int) -> None:
        """Note that a rank cannot be reached. It is gone, unless it is still connected to this one."""
        with self._changed:
            if rank not in self._incoming:
                self._lose(rank)

    def connected(self, address: str) -> socket.socket:
        """A new connection to another rank."""
        raw = socket.create_connection(parsed_address(address), timeout=self.deadline)
        try:
            tuned(raw, self.deadline)
            connection = raw if self._contexts is None else self._contexts[1].wrap_socket(raw)
            connection.sendall(_HELLO.pack(_GREETING, self._token, self.rank))
            connection.settimeout(None)
        except BaseException:
            raw.close()
            raise
        self.moved_out += _HELLO.size
        return connection

    def close(self) -> None:
        """Send what is still to be sent, for `deadline` seconds at most, and close all connections."""
        until = time.monotonic() + self.deadline
        for outgoing in self._outgoing.values():
            outgoing.close(until)
        with self._changed:
            self._closing = True
            connections = list(self._incoming.values())
        for each in (self._listener, *connections):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class _Outgoing:
    """The connection to one other rank, over which this one sends. It is made when there is something to send."""

    def __init__(self, links: RankLinks, rank: int, address: str) -> None:
        self._links, self._rank, self._address = links, rank, address
        self._waiting: deque[tuple[int, str, list[tuple[Hop, bytes]]]] = deque()
        self._changed = Condition()
        self._closing = self._sending = False
        self._connection: socket.socket | None = None
        self._failed = float("-inf")
        self._thread: Thread | None = None

    def put(self, index: int, stage: str, messages: list[tuple[Hop, bytes]]) -> None:
        with self._changed:
            self._waiting.append((index, stage, messages))
            while self._waiting[0][0] < index - _UNSENT:
                self._waiting.popleft()
            if self._thread is None:
                self._thread = Thread(target=self._send_all, name=f"to rank {self._rank}", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _send_all(self) -> None:
        while True:
            with self._changed:
                self._sending = False
                self._changed.notify_all()
                while not self._waiting:
                    if self._closing:
                        return
                    self._changed.wait()
                index, stage, messages = self._waiting.popleft()
                self._sending = True
            try:
                self._send(index, stage, messages)
            except OSError as error:
                log.debug("rank %d cannot be reached: %s", self._rank, error)
                self._drop()
                self._links.unreachable(self._rank)

    def _send(self, index: int, stage: str, messages: list[tuple[Hop, bytes]]) -> None:
        if self._connection is None:
            if time.monotonic() - self._failed < min(1.0, self._links.deadline):
                return
            self._connection = self._links.connected(self._address)
        for (sender, receiver), data in messages:
            named = stage.encode()
            head = _FRAME.pack(_MAGIC, sender, receiver, index, len(named), len(data)) + named
            self._connection.sendall(head + data if len(data) < _CHUNK else head)
            if len(data) >= _CHUNK:
                self._connection.sendall(data)
            self._links.moved_out += len(head) + len(data)

    def _drop(self) -> None:
        self._failed = time.monotonic()
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()
            self._connection = None

    def close(self, until: float) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            while (self._waiting or self._sending) and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
        if self._connection is not None:
            with suppress(OSError):
                if not self._sending:
                    self._connection.sendall(_FRAME.pack(_BYE, 0, 0, 0, 0, 0))
                self._connection.shutdown(socket.SHUT_RDWR)
            self._connection.close()
