"""Clients that say falsely that they could not open shares, and dealers whose shares some cannot open: who is left out."""

from dataclasses import replace

import pytest
import torch
from cohorts import Cohort, small_terms

from sketchfed.errors import SecureSumError
from sketchfed.secure import STAGES, SecureServer
from sketchfed.secure import client as stages
from sketchfed.secure.client import PREMISE
from sketchfed.secure.dealing import SEALED, Dealing
from sketchfed.secure.keys import KEY
from sketchfed.secure.messages import flagged, flags, message
from sketchfed.wire import Packet, pack, unpack

LIAR, V = 3, 1
TIGHT = {"count": 5, "neighbours": 4, "threshold": 4, "least": 4}
"""Five clients, of which one may be missing: no secret is opened if two are."""


def complaining(cohort: Cohort, reply: bytes, about: set[int]) -> bytes:
    """A masked reply that says that the shares of these dealers could not be opened."""
    packet, neighbours = unpack(reply), cohort.terms.neighbours_of(LIAR)
    body = packet.arrays["body"].numpy().tobytes()
    opened = set(flagged(body[PREMISE:], neighbours)) - about
    return pack(message(packet.kind, cohort.terms, body[:PREMISE] + flags(neighbours, opened), values=packet.arrays["values"]))


def partly_garbage(cohort: Cohort, dealer: int, spoilt: set[int], request: Packet) -> bytes:
    """A dealing, signed as it should be, in which the boxes of some neighbours do not open."""
    cohort.clients[dealer].state, reply = stages.share(cohort.clients[dealer].state, request, cohort.directory)
    neighbours = cohort.terms.neighbours_of(dealer)
    parts = dict(Dealing.from_bytes(reply.arrays["body"].numpy().tobytes(), neighbours).parts)
    parts |= {peer: bytes(SEALED) + parts[peer][SEALED:] for peer in spoilt}
    signed = Dealing.signed(cohort.identities[dealer], cohort.clients[dealer].state.transcript, dealer, parts)
    return pack(message("secure.shares.reply", cohort.terms, signed.to_bytes(neighbours)))


def run(
    cohort: Cohort,
    server: SecureServer,
    *,
    about: set[int] = frozenset(),
    spoilt: set[int] = frozenset(),
    leaves_at: dict[int, str] | None = None,
) -> SecureServer:
    """A sum in which the liar complains of some dealers, and spoils its own boxes for some. Clients leave at some stages."""
    order = (*STAGES, "recover")
    while server.stage is not None:
        stage, requests = server.stage, dict(server.requests)
        gone = {client for client, at in (leaves_at or {}).items() if order.index(stage) >= order.index(at)}
        apart = {LIAR} if stage == "shares" and spoilt else set()
        replies = dict(cohort.ask(stage, requests, gone=lambda _, client, away=gone | apart: client in away))
        if apart & requests.keys():
            replies[LIAR] = partly_garbage(cohort, LIAR, spoilt, unpack(requests[LIAR]))
        if stage == "masked" and about and LIAR in replies:
            replies[LIAR] = complaining(cohort, replies[LIAR], about)
        server.receive(replies)
    return server


@pytest.mark.parametrize("leaves_at", [None, "consent", "unmask", "recover"])
@pytest.mark.parametrize("about", [{V}, {0, 1, 2, 4}], ids=["one", "everybody"])
def test_one_client_that_complains_falsely_pushes_nobody_out(about, leaves_at):
    """Also if it leaves afterwards: without its help, no mask with somebody who was left out could be removed."""
    cohort = Cohort(small_terms(**TIGHT))
    server = run(cohort, cohort.server(), about=about, leaves_at=leaves_at and {LIAR: leaves_at})
    assert server.result.survivors == cohort.terms.clients
    assert torch.equal(server.result.total, cohort.expected(server.result.survivors))


def test_a_sum_is_not_lost_by_a_false_complaint_when_as_many_left_as_may_leave():
    """Seven of ten clients are left, the fewest that are allowed. With one fewer the sum would be abandoned."""
    cohort = Cohort(small_terms(10, neighbours=9, threshold=6, least=7))
    server = run(cohort, cohort.server(), about=set(range(10)) - {LIAR}, leaves_at=dict.fromkeys((7, 8, 9), "masked"))
    assert server.result.survivors == tuple(range(7))


def test_a_dealer_of_whom_several_complain_is_left_out():
    cohort = Cohort(small_terms(**TIGHT))
    server = run(cohort, cohort.server(), spoilt={V, 4}, leaves_at={LIAR: "unmask"})
    assert server.result.survivors == (0, 1, 2, 4)
    assert "could open the shares that it dealt" in server.reasons[LIAR]


@pytest.mark.parametrize("leaves_at", ["consent", "unmask"])
def test_a_dealer_that_spoils_a_sum_is_blamed_and_the_next_attempt_does_without_it(leaves_at):
    """One neighbour cannot open its shares, and its word is not believed. When the dealer leaves, its seed is lost."""
    cohort = Cohort(small_terms(**TIGHT))
    server = cohort.server()
    with pytest.raises(SecureSumError, match=f"client {LIAR}, which left"):
        run(cohort, server, spoilt={V}, leaves_at={LIAR: leaves_at})
    assert server.blamed.keys() == {LIAR}
    again = Cohort(replace(cohort.terms, round=4))
    second = SecureServer(again.terms, again.directory, without=server.blamed)
    assert LIAR not in second.requests
    assert run(again, second, spoilt={V}).result.survivors == (0, 1, 2, 4)
    assert second.reasons == server.blamed


def test_a_holder_that_keeps_back_what_it_could_open_is_blamed_and_not_the_client_that_left():
    cohort = Cohort(small_terms(**TIGHT))
    server = cohort.server()
    while server.stage != "unmask":
        server.receive(cohort.ask(server.stage, server.requests, gone=lambda *_: False))
    replies = dict(cohort.ask("unmask", server.requests, gone=lambda _, client: client == V))
    told = unpack(replies[LIAR])
    seed = told.arrays["body"].numpy().tobytes()[:KEY]
    replies[LIAR] = pack(message(told.kind, cohort.terms, seed + flags(cohort.terms.neighbours_of(LIAR), ())))
    with pytest.raises(SecureSumError, match=f"client {V}, which left"):
        server.receive(replies)
    assert server.blamed.keys() == {LIAR}


def test_nobody_is_blamed_when_many_leave():
    cohort = Cohort(small_terms(**TIGHT))
    server = cohort.server()
    with pytest.raises(SecureSumError, match="which left"):
        run(cohort, server, leaves_at={0: "unmask", 1: "unmask"})
    assert server.blamed == {}
