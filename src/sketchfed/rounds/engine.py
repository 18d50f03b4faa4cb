"""The interface of an engine, and an engine around another one."""

from collections.abc import Collection, Mapping
from typing import Protocol


class Requests(dict[int, bytes]):
    """Requests that are the engine's alone. It may empty them once they are sent, because a whole model takes much memory."""


class Engine(Protocol):
    """Sends requests to clients and returns their replies. A client that does not answer is missing from the result."""

    @property
    def clients(self) -> int:
        """The number of clients. They are numbered from 0."""

    def ask(self, requests: Mapping[int, bytes], stage: str = "train") -> Mapping[int, bytes]:
        """Send each client its request and return the replies that arrived.

        `stage` says what the requests are for: 'train', or a stage of a secure sum.
        """

    @property
    def complaints(self) -> Mapping[int, str]:
        """Why clients did not answer the last call, if the engine knows."""

    @property
    def directory(self) -> Mapping[int, bytes]:
        """The public identity keys of the clients. Secure sums check the clients' signatures with them."""

    @property
    def agreed(self) -> bytes:
        """A digest of everything that clients agreed on before round 1. Empty if all of them are in one process."""

    @property
    def unheard(self) -> Collection[int]:
        """Clients whose reply to the last call may have been sent but was lost.

        For privacy accounting, such a reply counts as seen.
        """

    def acknowledge(self, rounds: Mapping[int, int]) -> None:
        """Tell each client in which round its reply was last used.

        From now on, the memory that the client kept for that round is the valid one.
        """


class Relay:
    """An engine around another engine. It passes everything on unchanged; subclasses override what they change."""

    def __init__(self, inner: Engine) -> None:
        self.inner = inner

    @property
    def clients(self) -> int:
        return self.inner.clients

    @property
    def complaints(self) -> Mapping[int, str]:
        return self.inner.complaints

    @property
    def directory(self) -> Mapping[int, bytes]:
        return self.inner.directory

    @property
    def agreed(self) -> bytes:
        return self.inner.agreed

    @property
    def unheard(self) -> Collection[int]:
        return self.inner.unheard

    def acknowledge(self, rounds: Mapping[int, int]) -> None:
        self.inner.acknowledge(rounds)

    def ask(self, requests: Mapping[int, bytes], stage: str = "train") -> Mapping[int, bytes]:
        return self.inner.ask(requests, stage)
