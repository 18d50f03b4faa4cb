"""What the server makes of replies that nobody vouches for: a client is dropped with a reason, the sum goes on."""

from contextlib import suppress

import pytest
import torch
from cohorts import Cohort, small_terms
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sketchfed.errors import InputError, SecureSumError
from sketchfed.secure import STAGES, SecureServer, Terms, run_stages
from sketchfed.secure.client import PREMISE
from sketchfed.secure.keys import Advertised
from sketchfed.secure.messages import laid_out, message, taken_apart
from sketchfed.secure.shamir import PRIME
from sketchfed.wire import Bits, Packet, pack, split, unpack

LIAR = 3


def lenient_terms(**changes) -> Terms:
    return small_terms(8, **{"neighbours": 7, "threshold": 5, "least": 5, **changes})


def run_with(cohort, spoil, *, gone=lambda stage, client: False):
    """A run in which `spoil(stage, reply)` replaces what the liar replies; it may be asked again as long as it stays."""
    server = cohort.server()
    while server.stage is not None:
        stage = server.stage
        replies = cohort.ask(stage, server.requests, gone=gone)
        if LIAR in replies:
            replies[LIAR] = spoil(stage, replies[LIAR])
        server.receive(replies)
    return server


def body(reply: bytes) -> bytes:
    return unpack(reply).arrays["body"].numpy().tobytes()


BROKEN = {
    "empty": lambda reply, terms: b"",
    "truncated": lambda reply, terms: reply[:-1],
    "damaged": lambda reply, terms: reply[:-1] + bytes([reply[-1] ^ 1]),
    "doubled": lambda reply, terms: reply + reply,
    "noise": lambda reply, terms: b"SKFD" + bytes(range(200)),
    "not bytes": lambda reply, terms: 17,
    "another kind": lambda reply, terms: pack(Packet(kind="dense", arrays={"values": torch.zeros(3)})),
    "no arrays": lambda reply, terms: pack(Packet(kind=unpack(reply).kind, arrays={})),
    "another round": lambda reply, terms: pack(message(unpack(reply).kind, lenient_terms(round=9), body(reply))),
    "too short a body": lambda reply, terms: pack(message(unpack(reply).kind, terms, body(reply)[:-1])),
    "too long a body": lambda reply, terms: pack(message(unpack(reply).kind, terms, body(reply) + b"\0")),
    "no body": lambda reply, terms: pack(message(unpack(reply).kind, terms, b"")),
    "random body": lambda reply, terms: pack(message(unpack(reply).kind, terms, bytes(255 - b for b in body(reply)))),
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("at", STAGES)
def test_a_broken_reply_drops_its_client_and_nobody_else(at, how):
    cohort = Cohort(lenient_terms())
    server = run_with(cohort, lambda stage, reply: BROKEN[how](reply, cohort.terms) if stage == at else reply)
    total, survivors = server.result
    assert server.reasons.keys() == {LIAR}
    assert server.reasons[LIAR].startswith(f"{at}: ")
    assert (LIAR in survivors) == (at in ("consent", "unmask"))
    assert torch.equal(total, cohort.expected(survivors))


@pytest.mark.parametrize(
    "values",
    [
        Bits(torch.zeros(5, dtype=torch.int64), bits=16),
        Bits(torch.zeros(4, dtype=torch.int64), bits=17),
        Bits(torch.zeros(4, dtype=torch.int64), bits=16, signed=True),
        Bits(torch.zeros((2, 2), dtype=torch.int64), bits=16),
    ],
)
def test_masked_values_of_another_shape_or_width_drop_their_client(values):
    cohort = Cohort(lenient_terms())
    spoiled = pack(message("secure.masked.reply", cohort.terms, bytes(PREMISE + 1), values=values))
    server = run_with(cohort, lambda stage, reply: spoiled if stage == "masked" else reply)
    assert "of 16-bit[4]" in server.reasons[LIAR]
    assert torch.equal(server.result.total, cohort.expected(server.result.survivors))


@pytest.mark.parametrize("gone", [(), (6,)])
def test_a_client_that_computed_from_something_else_is_left_out_and_the_sum_is_that_of_the_others(gone):
    cohort = Cohort(lenient_terms())
    cohort.premise, cohort.premises = bytes([1]) * PREMISE, {LIAR: bytes([2]) * PREMISE}
    server = run_with(cohort, lambda stage, reply: reply, gone=lambda stage, client: stage == "masked" and client in gone)
    assert "from another model, or with other settings" in server.reasons[LIAR]
    assert set(server.result.survivors) == set(cohort.terms.clients) - {LIAR, *gone}
    assert torch.equal(server.result.total, cohort.expected(server.result.survivors))


@pytest.mark.parametrize("agree", [True, False], ids=["all the same", "each another"])
@pytest.mark.parametrize("liars", [3, 5, 8])
def test_clients_that_claim_another_premise_push_nobody_out_however_many_they_are(liars, agree):
    """What clients say is not counted like votes: those that computed from what they were sent stay."""
    cohort = Cohort(lenient_terms())
    cohort.premise = bytes([1]) * PREMISE
    lying = cohort.terms.clients[:liars]
    cohort.premises = {client: bytes([255 if agree else 255 - client]) * PREMISE for client in lying}
    server = cohort.server()
    with suppress(SecureSumError):
        run_stages(server, lambda stage, requests: cohort.ask(stage, requests, gone=lambda *_: False))
    assert set(server.strayed) == set(server.reasons) == set(lying)
    enough = len(cohort.terms.clients) - liars >= cohort.terms.least
    assert (server.result is not None) == enough
    if server.result is not None:
        assert torch.equal(server.result.total, cohort.expected(cohort.terms.clients[liars:]))


def test_a_sum_of_too_few_that_computed_from_one_model_is_abandoned_with_that_reason():
    cohort = Cohort(lenient_terms())
    cohort.premises = {client: bytes([2]) * PREMISE for client in cohort.terms.clients[1:]}
    with pytest.raises(SecureSumError, match=r"1 of \d+ clients sent masked values of one model"):
        cohort.run()


def test_a_premise_is_a_digest():
    with pytest.raises(InputError, match=r"a premise is a digest of 32 bytes, got b'short'"):
        SecureServer(lenient_terms(), {}, premise=b"short")
    cohort = Cohort(lenient_terms())
    cohort.premises = {LIAR: b"the model itself"}
    with pytest.raises(InputError, match=r"a premise is a digest of 32 bytes, got b'the model itself'\. Use hashlib"):
        run_with(cohort, lambda stage, reply: reply)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(stage=st.sampled_from(STAGES), data=st.data())
def test_no_mutation_of_a_reply_spoils_the_sum(stage, data):
    """Any byte of the liar's body may change. The sum is right without it, or, once its values are in, with them."""
    cohort = Cohort(lenient_terms(size=2))

    def spoil(at, reply):
        if at != stage or not body(reply):
            return reply
        raw = bytearray(body(reply))
        for place in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=3, unique=True)):
            raw[place] ^= data.draw(st.integers(1, 255))
        return pack(message(unpack(reply).kind, cohort.terms, bytes(raw)))

    server = run_with(cohort, spoil)
    assert torch.equal(server.result.total, cohort.expected(server.result.survivors))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_dropped_with_a_reason(reply):
    server = Cohort(lenient_terms()).server()
    with pytest.raises(SecureSumError, match=r"0 of 8 clients sent usable keys"):
        server.receive(dict.fromkeys(range(8), reply))
    assert len(server.reasons) == 8


def test_replies_of_clients_that_were_not_asked_are_ignored():
    cohort = Cohort(lenient_terms())
    server = cohort.server()
    replies = cohort.ask("keys", server.requests, gone=lambda *_: False)
    server.receive(replies | {99: replies[0]})
    assert 99 not in server.requests
    assert not server.reasons


def test_keys_that_another_client_signed_are_dropped():
    cohort = Cohort(lenient_terms())
    server = run_with(cohort, lambda stage, reply: cohort.replied["keys"][2] if stage == "keys" else reply)
    assert "not signed by it" in server.reasons[LIAR]


def test_keys_of_small_order_are_dropped_before_anybody_sees_them():
    cohort = Cohort(lenient_terms())
    weak = Advertised.by(cohort.identities[LIAR], cohort.terms, LIAR, mask=bytes(32), seal=bytes(32), seed=bytes(32)).to_bytes()
    spoiled = pack(message("secure.keys.reply", cohort.terms, weak))
    server = run_with(cohort, lambda stage, reply: spoiled if stage == "keys" else reply)
    assert "small order" in server.reasons[LIAR]


def test_shares_dealt_to_fewer_than_asked_drop_their_dealer():
    cohort = Cohort(lenient_terms())

    def spoil(stage, reply):
        if stage != "shares":
            return reply
        neighbours, raw = cohort.terms.neighbours_of(LIAR), body(reply)
        parts = taken_apart(raw[64:], neighbours, 112)
        parts.pop(neighbours[0])
        return pack(message("secure.shares.reply", cohort.terms, raw[:64] + laid_out(neighbours, parts)))

    assert "dealt shares to 6 neighbours" in run_with(cohort, spoil).reasons[LIAR]


# Corrupt shares ---------------------------------------------------------------------------------------------------------


def spoiled_share(cohort, of, wrong):
    """The liar tells a wrong share of one client's secret."""

    def spoil(stage, reply):
        if stage != "unmask":
            return reply
        neighbours, raw = cohort.terms.neighbours_of(LIAR), body(reply)
        shares = taken_apart(raw[32:], neighbours, 32)
        shares[of] = wrong(shares[of])
        return pack(message("secure.unmask.reply", cohort.terms, raw[:32] + laid_out(neighbours, shares)))

    return spoil


@pytest.mark.parametrize("leaves_at", ["masked", "consent", "unmask"])
@pytest.mark.parametrize(
    "wrong", [lambda share: bytes(32), lambda share: share[::-1], lambda share: PRIME.to_bytes(32, "little")]
)
def test_a_corrupt_share_is_found_its_sender_named_and_the_sum_opened_by_the_others(leaves_at, wrong):
    """Of a mask key if client 0 left before sending values, of its seed if it left afterwards."""
    cohort = Cohort(lenient_terms())

    def gone(stage, client):
        return client == 0 and STAGES.index(stage) >= STAGES.index(leaves_at)

    server = run_with(cohort, spoiled_share(cohort, 0, wrong), gone=gone)
    assert "share of a secret of client 0 is not the one that client 0 committed to" in server.reasons[LIAR]
    assert torch.equal(server.result.total, cohort.expected(server.result.survivors))


def test_with_a_corrupt_share_and_no_other_to_spare_the_sum_is_abandoned():
    cohort = Cohort(small_terms(6, neighbours=5, threshold=5, least=5))
    with pytest.raises(SecureSumError, match="4 valid shares of a secret of it are left"):
        run_with(cohort, spoiled_share(cohort, 0, lambda share: bytes(32)), gone=lambda s, c: c == 0 and s == "unmask")


def test_a_share_that_no_longer_opens_is_not_told_and_others_suffice():
    """A sealed box is damaged on its way to one holder: it tells no share of that client, and nothing else changes."""
    cohort = Cohort(lenient_terms())
    server = cohort.server()
    while server.stage is not None:
        if server.stage == "masked":
            packet = unpack(server.requests[LIAR])
            raw = bytearray(packet.arrays["body"].numpy().tobytes())
            raw[5] ^= 1  # the first box, client 0's
            server.requests[LIAR] = pack(message(packet.kind, cohort.terms, bytes(raw)))
        replies = cohort.ask(server.stage, server.requests, gone=lambda stage, client: client == 0 and stage == "unmask")
        server.receive(replies)
    assert cohort.clients[LIAR].state.client == LIAR
    assert torch.equal(server.result.total, cohort.expected(server.result.survivors))


# The driver -------------------------------------------------------------------------------------------------------------


def test_tasks_follow_the_requests_of_stage_masked_and_can_be_taken_apart():
    cohort, tasks = Cohort(lenient_terms()), {}
    for client in cohort.terms.clients:
        tasks[client] = pack(Packet(kind="begin", arrays={}, scalars={"client": client}))
    seen = {}

    def ask(stage, requests):
        own = {}
        for client, request in requests.items():
            first, *rest = split(request, most=2)
            seen.setdefault(stage, {})[client] = [unpack(part).scalars["client"] for part in rest]
            own[client] = cohort.answer(client, bytes(first))
        return own

    total, survivors = run_stages(cohort.server(), ask, tasks=tasks)
    assert seen.pop("masked") == {client: [client] for client in cohort.terms.clients}
    assert all(rest == [] for stage in seen.values() for rest in stage.values())
    assert torch.equal(total, cohort.expected(survivors))


def test_what_the_transport_knows_of_silent_clients_becomes_the_reason():
    cohort = Cohort(lenient_terms())
    server = cohort.server()

    def ask(stage, requests):
        return cohort.ask(stage, requests, gone=lambda at, client: client == 5 and at == "consent")

    run_stages(server, ask, complaints=lambda: {5: "the line is dead"})
    assert server.reasons == {5: "consent: the line is dead"}
    assert server.survivors == server.result.survivors == tuple(range(8))


def test_clients_with_gaps_between_their_numbers_are_summed():
    cohort = Cohort(small_terms(clients=(3, 4, 1_000, 70_000, 2**40), threshold=3, neighbours=4, least=3))
    total, survivors = cohort.run(lambda stage, client: client == 1_000 and stage != "keys")
    assert survivors == (3, 4, 70_000, 2**40)
    assert torch.equal(total, cohort.expected(survivors))
