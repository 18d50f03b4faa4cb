"""A TCP proxy that counts: what really passes between SuperNodes and their SuperLink, HTTP and TLS included.

It forwards bytes as they are and cannot read them. Still it can tell requests apart, for HTTP/1.1 on one connection takes
turns: a client that sends again after the server has spoken begins a new request. Headers of TCP and IP are not seen here.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from sketchfed.flower import Loopback

_CHUNK = 1 << 16
_HOST = "127.0.0.1"


@dataclass
class Turn:
    """What a client said, and what the server said to it: a request and its response, or a step of a TLS handshake."""

    began: float
    """By `time.monotonic`."""
    up: int = 0
    down: int = 0


@dataclass
class Connection:
    """The turns of one connection, from a client that called."""

    turns: list[Turn] = field(default_factory=list)

    @property
    def up(self) -> int:
        return sum(turn.up for turn in self.turns)

    @property
    def down(self) -> int:
        return sum(turn.down for turn in self.turns)

    def said_by_client(self, count: int) -> None:
        if not self.turns or self.turns[-1].down:
            self.turns.append(Turn(began=time.monotonic()))
        self.turns[-1].up += count

    def said_by_server(self, count: int) -> None:
        if not self.turns:
            self.turns.append(Turn(began=time.monotonic()))
        self.turns[-1].down += count


@dataclass(frozen=True)
class Snapshot:
    """Totals at some moment; the difference of two is what passed between them."""

    up: int = 0
    down: int = 0
    turns: int = 0
    connections: int = 0

    def __sub__(self, other: "Snapshot") -> "Snapshot":
        return Snapshot(
            self.up - other.up, self.down - other.down, self.turns - other.turns, self.connections - other.connections
        )


class CountingProxy:
    """Forwards to a port of the loopback, from entering the context to leaving it.

    Who calls while nobody listens there is hung up on, as the kernel would do; the next call is tried anew. So a server may die
    and come back.
    """

    def __init__(self, target_port: int) -> None:
        self.connections: list[Connection] = []
        """All that there were, oldest first."""
        self.port = 0
        self._target = target_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="sketchfed-proxy", daemon=True)
        self._up_and_running, self._over = threading.Event(), asyncio.Event()
        self._failure: OSError | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._up_and_running.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(self, *_exception: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    @property
    def up(self) -> int:
        """Bytes from clients."""
        return self.snapshot().up

    @property
    def down(self) -> int:
        """Bytes to clients."""
        return self.snapshot().down

    def snapshot(self) -> Snapshot:
        turns = self.turns()
        return Snapshot(sum(turn.up for turn in turns), sum(turn.down for turn in turns), len(turns), len(self.connections))

    def turns(self) -> list[Turn]:
        """Those of all connections."""
        return [turn for connection in list(self.connections) for turn in list(connection.turns)]

    @property
    def cpu_seconds(self) -> float:
        """What counting costs this process, for those who time the rest of it."""
        return time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident)) if self._thread.ident else 0.0

    def _serve(self) -> None:
        try:
            self._loop.run_until_complete(self._forward())
        except OSError as error:
            self._failure = error
        finally:
            self._loop.close()
            self._up_and_running.set()

    async def _forward(self) -> None:
        server = await asyncio.start_server(self._connected, _HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        self._up_and_running.set()
        async with server:
            await self._over.wait()
        callers = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in callers:
            task.cancel()
        await asyncio.gather(*callers, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with _closing(writer), contextlib.suppress(OSError, asyncio.CancelledError):
            answers, calls = await asyncio.open_connection(_HOST, self._target)
            with _closing(calls):
                seen = Connection()
                self.connections.append(seen)
                ways = [_copy(reader, calls, seen.said_by_client), _copy(answers, writer, seen.said_by_server)]
                await asyncio.gather(*ways)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, count: Callable[[int], None]) -> None:
    """Pass on one direction until it ends, and then say so; either side may close its half first."""
    while data := await source.read(_CHUNK):
        count(len(data))
        target.write(data)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()


@contextmanager
def _closing(writer: asyncio.StreamWriter) -> Iterator[None]:
    try:
        yield
    finally:
        writer.close()


@contextmanager
def counted(folder: Path, **options: Any) -> Iterator[tuple[Loopback, CountingProxy]]:
    """A federation on the loopback, with the options of `Loopback`, whose nodes reach their SuperLink through a proxy.

    Its nodes poll as Flower's do, because polls are part of what is counted.
    """
    with ExitStack() as stack:
        proxies: list[CountingProxy] = []

        def through(port: int) -> int:
            proxies.append(stack.enter_context(CountingProxy(port)))
            return proxies[-1].port

        yield stack.enter_context(Loopback(folder, via=through, eager=False, **options)), proxies[0]
