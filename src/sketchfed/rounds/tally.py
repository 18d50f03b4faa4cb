"""What a server counts and remembers of its clients."""

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass
class Tally:
    """The traffic of a run since its start, measured on the bytes that were sent, and the state of the clients' replicas."""

    uplink_bytes: int = 0
    downlink_bytes: int = 0
    broadcast_bytes: int = 0
    """The bytes that a client receives if it never misses a round: each update, or each model, once."""
    evaluation_bytes: int = 0
    """What evaluating on clients moved, in both directions. The other counts do not include it."""
    replies: int = 0
    refused: int = 0
    known: dict[int, int] = field(default_factory=dict)
    """The round of each client's replica at its last reply. -1 if it came to another replica than the server."""
    updates: list[bytes] = field(default_factory=list)
    """The latest updates, as broadcast, for clients that missed them. In total they are about as large as a whole model."""

    def count(self, down: int, up: int, *, evaluation: bool) -> None:
        """Count the bytes of one call of the engine."""
        if evaluation:
            self.evaluation_bytes += down + up
        else:
            self.downlink_bytes += down
            self.uplink_bytes += up


class Answers(NamedTuple):
    """The result of a call: replies, why other clients did not answer, and clients whose reply may have been sent but lost."""

    replies: dict[int, bytes]
    complaints: dict[int, str]
    unheard: set[int]
