"""Secure sums opened once more, from the recorded bytes alone: what the server computed, anybody with its wire can."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from torch import Tensor

from sketchfed.errors import SketchfedError
from sketchfed.rounds import Exchange
from sketchfed.rounds.secure_clients import parted
from sketchfed.secure import SecureServer, Terms
from sketchfed.secure.messages import body_of, flagged, request_kind
from sketchfed.wire import unpack


def opened_sums(exchanges: Sequence[Exchange]) -> Iterator[tuple[Tensor, tuple[int, ...]]]:
    """The integers of each sum among the exchanges of a round, and whose they are; abandoned ones are passed over."""
    server: SecureServer | None = None
    for (stage, _), group in groupby(exchanges, key=_call):
        asked = list(group)
        try:
            if stage == "keys":
                identities = {each.client: each.identity for each in asked}
                server = SecureServer(Terms.from_packet(unpack(asked[0].request)), identities)
            if server is None or server.stage != stage:
                continue
            server.receive({each.client: each.reply for each in asked if each.reply is not None})
        except SketchfedError:
            server = None
            continue
        if server.result is not None:
            yield server.result


def _call(exchange: Exchange) -> tuple[str, bytes]:
    """What the exchanges of one stage of one sum have in common: all clients are sent the same terms."""
    return exchange.stage, exchange.request if exchange.stage == "keys" else b""


def survivors_in(exchanges: Sequence[Exchange]) -> tuple[int, ...]:
    """Whose work is in the last sum of a round, as its clients are told when they are asked for consent; nobody's if not."""
    terms, found = None, list[int]()
    try:
        for each in exchanges:
            if each.stage == "keys":
                terms = Terms.from_packet(unpack(each.request))
            elif each.stage == "consent" and terms is not None:
                found = flagged(body_of(unpack(each.request), request_kind("consent"), terms), terms.clients)
    except SketchfedError:
        return ()
    return tuple(found)


def task_in(exchange: Exchange) -> bytes | None:
    """The task that an exchange carried, which says where the model is; most stages of secure sums carry none."""
    if exchange.stage == "train":
        return exchange.request
    if exchange.stage != "masked":
        return None
    try:
        return parted(exchange.request)[1]
    except SketchfedError:
        return None
