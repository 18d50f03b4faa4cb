"""What an engine is."""

from collections.abc import Collection, Mapping
from typing import Protocol


class Engine(Protocol):
    """Asks clients and brings back what they answered. A client that does not answer is missing from the result."""

    @property
    def clients(self) -> int:
        """How many clients there are; they are numbered from 0."""

    def ask(self, requests: Mapping[int, bytes], stage: str = "train") -> Mapping[int, bytes]:
        """Send each client its request, and return the replies that came: to train, or a stage of a secure sum."""

    @property
    def complaints(self) -> Mapping[int, str]:
        """Why clients of the last call did not answer, as far as the engine knows."""

    @property
    def directory(self) -> Mapping[int, bytes]:
        """The public identity keys of clients, for secure sums: what their signatures are checked with."""

    @property
    def unheard(self) -> Collection[int]:
        """Clients of the last call that may have sent something that never arrived: where privacy counts, it was seen."""

    def acknowledge(self, rounds: Mapping[int, int]) -> None:
        """Say which round's reply of each client was used last: what a client kept for that round counts from now on."""
