"""What an engine is."""

from collections.abc import Mapping
from typing import Protocol


class Engine(Protocol):
    """Asks clients and brings back what they answered. A client that does not answer is missing from the result."""

    @property
    def clients(self) -> int:
        """How many clients there are; they are numbered from 0."""

    def ask(self, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Send each client its task, and return the replies that came."""

    @property
    def complaints(self) -> Mapping[int, str]:
        """Why clients of the last call did not answer, as far as the engine knows."""
