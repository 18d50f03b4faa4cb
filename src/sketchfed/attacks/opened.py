"""Opens secure sums once more, from the recorded bytes alone. Anybody with the server's messages can compute what it did."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from torch import Tensor

from sketchfed.errors import SketchfedError
from sketchfed.rounds import Exchange
from sketchfed.rounds.participant import parted
from sketchfed.secure import SecureServer, Terms, request_kind, sum_of
from sketchfed.secure.client import PREMISE
from sketchfed.secure.messages import body_of, flagged, reply_kind
from sketchfed.wire import Packet, split, unpack


class OpenedSum(NamedTuple):
    """One secure sum: its round, its integers, and its clients."""

    round: int
    total: Tensor
    clients: tuple[int, ...]


class Members(NamedTuple):
    """The clients that were invited to the secure sums of a round, and those that are in them, as far as clients were told."""

    invited: frozenset[int]
    survivors: frozenset[int]


class _Part(NamedTuple):
    """One packet of a request and the packet that answers it. A request may carry packets of two sums."""

    client: int
    identity: bytes
    request: Packet
    reply: bytes | None

    @property
    def sum(self) -> bytes:
        if self.request.kind == request_kind("keys"):
            return Terms.from_packet(self.request).digest[:16]
        return sum_of(self.request)


class _Replay:
    """A server that gets what was recorded of one sum."""

    def __init__(self, terms: Terms) -> None:
        self._identities: dict[int, bytes] = {}
        self.server = SecureServer(terms, self._identities)
        self._kind = ""
        self._replies: dict[int, bytes] = {}

    def add(self, part: _Part) -> None:
        if part.request.kind != self._kind:
            if part.request.kind == request_kind("consent"):
                self._take_premise(part.request)
            self.flush()
            self._kind = part.request.kind
        if part.identity:
            self._identities[part.client] = part.identity
        if part.reply is not None:
            self._replies[part.client] = part.reply

    def _take_premise(self, request: Packet) -> None:
        """The premise of the sum is that of the clients on the list of survivors. The server knew it from the model."""
        terms = self.server.terms
        with suppress(SketchfedError):
            listed = flagged(body_of(request, request.kind, terms), terms.clients)
            for client in self._replies.keys() & set(listed):
                body = body_of(unpack(self._replies[client]), reply_kind("masked"), terms)
                self.server.premise = body[:PREMISE]

    def flush(self) -> None:
        """Hand the replies of one stage to the server. A sum that fails stays without a result."""
        replies, self._replies = self._replies, {}
        if self._kind and self.server.stage is not None and self._kind == request_kind(self.server.stage):
            try:
                self.server.receive(replies)
            except SketchfedError:
                self.server.stage = None


def opened_sums(exchanges: Sequence[Exchange]) -> list[OpenedSum]:
    """Return the sums that were opened, in the order in which they began. Sums that were abandoned are left out."""
    replays: dict[bytes, _Replay] = {}
    for part in _parts(exchanges):
        try:
            name = part.sum
            if name not in replays and part.request.kind == request_kind("keys"):
                replays[name] = _Replay(Terms.from_packet(part.request))
        except SketchfedError:
            continue
        if name in replays:
            replays[name].add(part)
    for replay in replays.values():
        replay.flush()
    servers = [replay.server for replay in replays.values()]
    return [OpenedSum(each.terms.round, *each.result) for each in servers if each.result is not None]


def members_in(exchanges: Sequence[Exchange]) -> dict[int, Members]:
    """For each round, who was invited to secure sums and who is in them. Clients learn it when they are asked for consent.

    If there were several attempts at a sum, the last one counts.
    """
    terms: dict[bytes, Terms] = {}
    found: dict[int, dict[tuple[int, ...], frozenset[int]]] = {}
    for part in _parts(exchanges):
        try:
            if part.request.kind == request_kind("keys"):
                terms[part.sum] = Terms.from_packet(part.request)
            elif part.request.kind == request_kind("consent") and (own := terms.get(part.sum)) is not None:
                listed = flagged(body_of(part.request, part.request.kind, own), own.clients)
                found.setdefault(own.round, {})[own.clients] = frozenset(listed)
        except SketchfedError:
            continue
    return {
        index: Members(frozenset(client for group in sums for client in group), frozenset().union(*sums.values()))
        for index, sums in found.items()
    }


def task_in(exchange: Exchange) -> bytes | None:
    """The task in an exchange, which says where the model is. Most stages of secure sums have none."""
    if exchange.stage == "train":
        return exchange.request
    if exchange.stage != "masked":
        return None
    try:
        return parted(exchange.request)[1]
    except SketchfedError:
        return None


def _parts(exchanges: Sequence[Exchange]) -> Iterator[_Part]:
    """Yield the packets of secure sums, each with its answer."""
    for each in exchanges:
        if each.stage in ("train", "evaluate"):
            continue
        try:
            requests = [unpack(part) for part in parted(each.request)[0]]
            replies = [] if each.reply is None else [bytes(part) for part in split(each.reply, most=len(requests))]
        except SketchfedError:
            continue
        for place, request in enumerate(requests):
            yield _Part(each.client, each.identity, request, replies[place] if place < len(replies) else None)
