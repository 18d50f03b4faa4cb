"""How messages pass between neighbours. Here all nodes are in one process, and what fails is simulated."""

from collections.abc import Collection, Mapping
from typing import Protocol

from sketchfed.graphs import Links
from sketchfed.rounds.peers.base import Hop


class Transport(Protocol):
    """Moves messages between the nodes of a graph."""

    def exchange(
        self, outgoing: Mapping[Hop, bytes | None], expected: Collection[Hop], index: int, step: int
    ) -> Mapping[Hop, bytes]:
        """Send what nodes of this process say, and return what their neighbours said to them.

        `outgoing` holds messages by sender and receiver. A message is empty if the node has nothing to say, and None if it is
        lost on its way. `expected` are the pairs whose receiver is in this process. A message that is lost, or does not come
        in time, is missing from the result.
        """


class Direct:
    """All nodes are in this process, so every message arrives unless its loss is simulated."""

    def exchange(
        self, outgoing: Mapping[Hop, bytes | None], expected: Collection[Hop], index: int, step: int
    ) -> Mapping[Hop, bytes]:
        return {pair: message for pair, message in outgoing.items() if message is not None}


def weathered(links: Links, messages: Mapping[Hop, bytes], step: int) -> dict[Hop, bytes]:
    """What arrives of these messages: late and lost ones are left out, and spoiled ones are damaged."""
    found = {}
    for (sender, receiver), message in messages.items():
        fate = links.fate(sender, receiver, number=step)
        if fate in ("arrives", "spoiled"):
            spoiled = fate == "spoiled"
            found[sender, receiver] = links.spoil(message, sender, receiver, number=step) if spoiled else message
    return found
