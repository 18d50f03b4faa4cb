"""What rank 0 tells the other ranks of a run without a server, and what they answer. Learning does not depend on it."""

from collections.abc import Callable, Collection, Mapping
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch

from sketchfed.errors import WireError
from sketchfed.rounds.peers import Hop
from sketchfed.rounds.rank_hub import Message, integers
from sketchfed.rounds.rank_links import RankLinks
from sketchfed.wire import Packet, expect_kind, pack, split, tensor_named, unpack

_SAID, _LOST = b"\x01", b"\x00"
_MOST_BYTES = 2**36


class Homes(NamedTuple):
    """Where the nodes of a graph live."""

    homes: tuple[int, ...]
    """The rank of each node."""
    ranks: int

    @property
    def places(self) -> list[int]:
        """The homes of all ends of messages: the nodes, and after them one for each rank itself."""
        return [*self.homes, *range(self.ranks)]

    def of(self, rank: int) -> int:
        """The number under which a rank itself sends and receives."""
        return len(self.homes) + rank

    def nodes(self, rank: int) -> list[int]:
        """The nodes that live on a rank."""
        return [node for node, home in enumerate(self.homes) if home == rank]


class LinkTransport:
    """Moves messages between nodes on several ranks. A message whose loss is simulated travels as one byte that says so."""

    def __init__(self, links: RankLinks) -> None:
        self._links = links

    def exchange(
        self, outgoing: Mapping[Hop, bytes | None], expected: Collection[Hop], index: int, step: int
    ) -> Mapping[Hop, bytes]:
        marked = {pair: _LOST if message is None else _SAID + message for pair, message in outgoing.items()}
        came = self._links.exchange(marked, expected, index, f"step {step}")
        return {pair: message[1:] for pair, message in came.items() if message[:1] == _SAID}


class Control:
    """Messages between rank 0 and the others, which pass over the same links as those of nodes.

    A rank waits for rank 0 as long as rank 0 is connected and gives signs of life. If rank 0 is gone, its message is missing.
    """

    def __init__(self, links: RankLinks, layout: Homes, alive: Callable[[int], bool]) -> None:
        """`alive` says whether a rank gave a sign of life."""
        self.links, self.layout = links, layout
        self.sent = self.received = 0
        """The bytes of these messages."""
        self._alive = alive

    @property
    def rank(self) -> int:
        return self.links.rank

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self.layout.ranks) if rank != self.rank]

    def send(self, messages: Mapping[int, Message], index: int, stage: str) -> None:
        """Send a message to each of some ranks."""
        self._exchange(messages, (), index, stage)

    def collect(self, ranks: Collection[int], index: int, stage: str, *, patient: bool) -> dict[int, Message]:
        """The messages of ranks that come in time. If `patient`, they are waited for as long as they give signs of life.

        Otherwise they have twice the deadline, because they may have waited once for others. Those that make no sense are
        missing.
        """
        return self._exchange({}, ranks, index, stage, alive=self._alive if patient else None)

    def _exchange(
        self,
        messages: Mapping[int, Message],
        expected: Collection[int],
        index: int,
        stage: str,
        *,
        alive: Callable[[int], bool] | None = None,
    ) -> dict[int, Message]:
        own, of = self.layout.of(self.rank), self.layout.of
        outgoing = {(own, of(rank)): bundled(message) for rank, message in messages.items()}
        self.sent += sum(map(len, outgoing.values()))
        wanted, deadline = [(of(rank), own) for rank in expected], 2 * self.links.deadline
        found = {}
        for (sender, _), data in self.links.exchange(outgoing, wanted, index, stage, deadline=deadline, alive=alive).items():
            self.received += len(data)
            try:
                found[sender - len(self.layout.homes)] = unbundled(data)
            except WireError:
                continue  # what makes no sense was not said
        return found


def bundled(message: Message) -> bytes:
    """A packet and parts of any content as bytes."""
    content = bytearray(b"".join(message.parts))
    arrays = {
        "lengths": torch.tensor([len(part) for part in message.parts], dtype=torch.int64),
        "content": torch.frombuffer(content, dtype=torch.uint8) if content else torch.zeros(0, dtype=torch.uint8),
    }
    return pack(message.packet) + pack(Packet(kind="parts", arrays=arrays))


def unbundled(data: bytes) -> Message:
    """What `bundled` was given. Raises `WireError` for anything else."""
    said = split(data, most=2)
    if len(said) != 2:
        raise WireError(f"a message between ranks has two packets, got {len(said)}.")
    parts = expect_kind(unpack(said[1], limit=_MOST_BYTES), "parts")
    lengths = integers(parts, "lengths", most=_MOST_BYTES)
    content = tensor_named(parts, "content", shape=(sum(lengths),), dtype=torch.uint8).numpy().tobytes()
    ends = list(accumulate(lengths, initial=0))
    return Message(unpack(said[0]), [content[start:end] for start, end in pairwise(ends)])
