"""What a server must not get from honest clients: each of its obvious moves is refused, and the client stops there."""

import copy
from dataclasses import replace

import pytest
import torch
from cohorts import SECRET, SESSION, Cohort, small_terms

from sketchfed.errors import InputError, SecureSumError
from sketchfed.secure import Done, Identity, SecureClient, Terms, advertise
from sketchfed.secure.client import consent, consent_text, share, unmask
from sketchfed.secure.dealing import DEALT
from sketchfed.secure.keys import Advertised, context
from sketchfed.secure.messages import flags, laid_out, message, taken_apart
from sketchfed.secure.transcript import Roll, read_proof
from sketchfed.wire import Packet, pack, unpack

VICTIM = 2


def stopped_before(stage: str, terms: Terms | None = None) -> tuple[Cohort, Packet]:
    """A cohort that has answered all stages before this one, and what an honest server would ask the victim now."""
    cohort = Cohort(terms or small_terms(7, neighbours=6, threshold=5, least=5))
    server = cohort.server()
    while server.stage != stage:
        server.receive(cohort.ask(server.stage, server.requests, gone=lambda *_: False))
    cohort.now = server
    return cohort, unpack(server.requests[VICTIM])


def refused(cohort: Cohort, request: Packet, saying: str) -> None:
    """The victim refuses, and answers nothing from then on."""
    client = cohort.clients[VICTIM]
    with pytest.raises(SecureSumError, match=saying):
        client.answer(request, cohort.values[VICTIM])
    assert type(client.state) is Done
    with pytest.raises(SecureSumError, match="finished"):
        client.answer(request, cohort.values[VICTIM])


def survivor_list(cohort: Cohort, without: set[int]) -> bytes:
    return flags(cohort.terms.clients, set(cohort.terms.clients) - without)


# Both kinds of share ----------------------------------------------------------------------------------------------------


def test_a_second_unmask_request_is_refused():
    cohort, request = stopped_before("unmask")
    cohort.clients[VICTIM].answer(request)
    with pytest.raises(SecureSumError, match="answers each stage once"):
        cohort.clients[VICTIM].answer(request)


def test_a_second_list_is_refused_after_the_first_was_signed():
    cohort, request = stopped_before("consent")
    cohort.clients[VICTIM].answer(request)
    refused(cohort, message("secure.consent", cohort.terms, survivor_list(cohort, {4})), "answers each stage once")


def test_states_that_have_moved_on_do_not_answer_an_earlier_stage():
    cohort, request = stopped_before("consent")
    signed, _ = consent(cohort.clients[VICTIM].state, request)
    with pytest.raises(SecureSumError, match="answers each stage once"):
        consent(signed, request)


def test_of_each_neighbour_one_kind_of_share_leaves_a_client_and_never_the_other():
    terms = small_terms(7, neighbours=6, threshold=5, least=5)
    cohort, left = Cohort(terms), {5}
    server = cohort.server()
    while server.stage != "unmask":
        gone = left if server.stage == "masked" else set()
        server.receive(cohort.ask(server.stage, server.requests, gone=lambda _, client, g=gone: client in g))
    held = cohort.clients[VICTIM].state.held
    reply = cohort.answer(VICTIM, server.requests[VICTIM])
    for peer in terms.neighbours_of(VICTIM):
        told, kept = held[peer] if peer in left else reversed(held[peer])
        assert told in reply
        assert kept not in reply


# The list of survivors --------------------------------------------------------------------------------------------------


def test_signatures_of_another_list_do_not_open_the_sum():
    """The server shows the victim one list and its neighbours another: they sign theirs, and the victim keeps its shares."""
    cohort, request = stopped_before("consent")
    others = message("secure.consent", cohort.terms, survivor_list(cohort, {4}))
    cohort.clients[VICTIM].answer(request)
    signatures = {
        peer: cohort.clients[peer].answer(others).arrays["body"].numpy().tobytes()
        for peer in cohort.terms.neighbours_of(VICTIM)
        if peer != 4
    }
    body = laid_out(cohort.terms.neighbours_of(VICTIM), signatures)
    refused(cohort, message("secure.unmask", cohort.terms, body), "Others were shown another list")


def test_fewer_signatures_than_the_threshold_do_not_open_the_sum():
    cohort, request = stopped_before("unmask")
    neighbours = cohort.terms.neighbours_of(VICTIM)
    signatures = taken_apart(request.arrays["body"].numpy().tobytes(), neighbours, 64)
    assert len(signatures) + 1 == cohort.terms.threshold
    signatures.popitem()
    refused(cohort, message("secure.unmask", cohort.terms, laid_out(neighbours, signatures)), "5 must")


def test_one_neighbours_signature_does_not_count_for_another():
    cohort, request = stopped_before("unmask")
    neighbours = cohort.terms.neighbours_of(VICTIM)
    signatures = taken_apart(request.arrays["body"].numpy().tobytes(), neighbours, 64)
    copied = dict.fromkeys(neighbours, next(iter(signatures.values())))
    refused(cohort, message("secure.unmask", cohort.terms, laid_out(neighbours, copied)), "2 of the neighbourhood")


def test_signatures_of_those_who_are_not_on_the_list_do_not_count():
    """An accomplice signs a list that it is not on: the list says that it left, so its signature is worth nothing."""
    cohort, _ = stopped_before("consent")
    shorter = survivor_list(cohort, {4})
    cohort.clients[VICTIM].answer(message("secure.consent", cohort.terms, shorter))
    text = consent_text(cohort.clients[VICTIM].state.transcript, shorter)
    signatures = {peer: cohort.identities[peer].sign(text) for peer in (0, 1, 3, 4)}
    body = laid_out(cohort.terms.neighbours_of(VICTIM), signatures)
    refused(cohort, message("secure.unmask", cohort.terms, body), "4 of the neighbourhood")


def test_too_few_survivors_are_refused():
    cohort, _ = stopped_before("consent")
    refused(cohort, message("secure.consent", cohort.terms, survivor_list(cohort, {0, 1, 3})), "over 4 clients")


def test_a_list_without_the_client_itself_is_refused():
    cohort, _ = stopped_before("consent")
    refused(cohort, message("secure.consent", cohort.terms, survivor_list(cohort, {VICTIM})), "not on")


def test_survivors_who_never_dealt_shares_are_refused():
    terms = small_terms(7, neighbours=6, threshold=5, least=5)
    cohort = Cohort(terms)
    server = cohort.server()
    while server.stage != "consent":
        server.receive(cohort.ask(server.stage, server.requests, gone=lambda stage, client: stage == "shares" and client == 4))
    refused(cohort, message("secure.consent", terms, survivor_list(cohort, set())), "client 4 is said to have sent values")


def test_too_few_surviving_neighbours_are_refused_even_where_the_list_is_long():
    terms = small_terms(40, neighbours=6, threshold=4, least=20)
    cohort, _ = stopped_before("consent", terms)
    near = set(terms.neighbours_of(VICTIM)[:4])
    refused(cohort, message("secure.consent", terms, survivor_list(cohort, near)), "2 of 6 neighbours sent values")


# Keys -------------------------------------------------------------------------------------------------------------------


def shown_keys(cohort: Cohort, request: Packet) -> dict[int, Advertised]:
    body = request.arrays["body"].numpy().tobytes()
    _, rest = read_proof(body, cohort.terms, VICTIM, cohort.clients[VICTIM].state.shown)
    parts = taken_apart(rest, cohort.terms.neighbours_of(VICTIM), Advertised.size)
    return {peer: Advertised.from_bytes(part) for peer, part in parts.items()}


def with_keys(cohort: Cohort, keys: dict[int, Advertised]) -> Packet:
    """A request that shows the victim these keys of its neighbours, and a proof that its own are on the roll with them."""
    parts = {peer: own.to_bytes() for peer, own in keys.items()}
    proof = Roll({**parts, VICTIM: cohort.clients[VICTIM].state.shown}).proof(VICTIM)
    return message("secure.shares", cohort.terms, proof + laid_out(cohort.terms.neighbours_of(VICTIM), parts))


def test_a_forged_key_is_refused():
    """The server puts a key of its own in the place of a neighbour's, signed by an identity of its own."""
    cohort, request = stopped_before("shares")
    keys, server = shown_keys(cohort, request), Identity(bytes(32))
    forged = Advertised.by(server, cohort.terms, 4, mask=keys[5].mask, seal=keys[5].seal, seed=keys[5].seed)
    refused(cohort, with_keys(cohort, keys | {4: forged}), "keys of client 4 are not signed by it")


def test_swapped_keys_are_refused():
    """Keys of one neighbour in the place of another's, with the signature that belongs to them."""
    cohort, request = stopped_before("shares")
    keys = shown_keys(cohort, request)
    refused(cohort, with_keys(cohort, keys | {4: keys[5], 5: keys[4]}), "keys of client 4 are not signed by it")


def test_the_two_keys_of_a_client_cannot_be_exchanged():
    cohort, request = stopped_before("shares")
    keys = shown_keys(cohort, request)
    turned = replace(keys[4], seal=keys[4].mask, mask=keys[4].seal)
    refused(cohort, with_keys(cohort, keys | {4: turned}), "keys of client 4 are not signed by it")


def test_a_client_that_no_directory_knows_is_refused():
    cohort, request = stopped_before("shares")
    state = cohort.clients[VICTIM].state
    with pytest.raises(SecureSumError, match="client 4 is not in the directory"):
        share(state, request, {peer: public for peer, public in cohort.directory.items() if peer != 4})


def test_a_signed_key_of_small_order_is_refused():
    """With such a key everybody knows what was agreed. An accomplice signs it; the client sees it nevertheless."""
    cohort, request = stopped_before("shares")
    keys = shown_keys(cohort, request)
    weak = Advertised.by(cohort.identities[4], cohort.terms, 4, mask=keys[4].mask, seal=bytes(32), seed=keys[4].seed)
    refused(cohort, with_keys(cohort, keys | {4: weak}), "small order")


def test_too_few_neighbours_keys_are_refused():
    cohort, request = stopped_before("shares")
    keys = shown_keys(cohort, request)
    parts = {peer: keys[peer].to_bytes() for peer in list(keys)[:3]}
    shown = {peer: own.to_bytes() for peer, own in keys.items()} | {VICTIM: cohort.clients[VICTIM].state.shown}
    body = Roll(shown).proof(VICTIM) + laid_out(cohort.terms.neighbours_of(VICTIM), parts)
    refused(cohort, message("secure.shares", cohort.terms, body), "3 of 6 neighbours sent keys")


def test_a_roll_of_fewer_than_the_sum_needs_is_refused():
    cohort, request = stopped_before("shares")
    keys = shown_keys(cohort, request)
    few = {peer: keys[peer] for peer in list(keys)[:3]}
    refused(cohort, with_keys(cohort, few), "keys of 4 clients are said to have come")


def test_a_roll_without_the_clients_own_keys_gives_it_a_transcript_that_nobody_shares():
    """The server shows the victim the proof of other keys. Nobody's shares open for it then, and it sends no values."""
    cohort, request = stopped_before("shares")
    keys = {peer: own.to_bytes() for peer, own in shown_keys(cohort, request).items()}
    body = Roll({**keys, VICTIM: bytes(Advertised.size)}).proof(VICTIM) + laid_out(cohort.terms.neighbours_of(VICTIM), keys)
    cohort.now.requests[VICTIM] = pack(message("secure.shares", cohort.terms, body))
    cohort.now.receive(cohort.ask("shares", cohort.now.requests, gone=lambda *_: False))
    assert cohort.now.reasons == {VICTIM: "shares: what it dealt is not signed by it for this sum."}
    boxes = {peer: cohort.now._dealt[peer].parts[VICTIM] for peer in keys}
    lied = message("secure.masked", cohort.terms, laid_out(cohort.terms.neighbours_of(VICTIM), boxes))
    refused(cohort, lied, "0 of 6 neighbours dealt shares that open")


def test_too_few_dealers_are_refused():
    cohort, request = stopped_before("masked")
    neighbours = cohort.terms.neighbours_of(VICTIM)
    boxes = taken_apart(request.arrays["body"].numpy().tobytes(), neighbours, DEALT)
    few = {peer: boxes[peer] for peer in list(boxes)[:3]}
    refused(
        cohort, message("secure.masked", cohort.terms, laid_out(neighbours, few)), "3 of 6 neighbours dealt shares that open"
    )


def test_shares_of_a_neighbour_whose_keys_were_never_shown_are_refused():
    cohort = Cohort(small_terms(7, neighbours=6, threshold=5, least=5))
    server = cohort.server()
    while server.stage != "masked":
        server.receive(cohort.ask(server.stage, server.requests, gone=lambda stage, client: client == 4))
    neighbours = cohort.terms.neighbours_of(VICTIM)
    boxes = taken_apart(unpack(server.requests[VICTIM]).arrays["body"].numpy().tobytes(), neighbours, DEALT)
    body = laid_out(neighbours, boxes | {4: bytes(DEALT)})
    refused(cohort, message("secure.masked", cohort.terms, body), "client 4, whose keys were never shown")


# Replays and terms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["shares", "masked", "consent", "unmask"])
@pytest.mark.parametrize("change", [{"round": 2}, {"session": bytes(16)}, {"threshold": 6, "least": 6}])
def test_requests_of_another_round_session_or_terms_are_refused(stage, change):
    terms = small_terms(7, neighbours=6, threshold=5, least=5)
    cohort, _ = stopped_before(stage, terms)
    given = {"neighbours": 6, "threshold": 5, "least": 5, **change}
    _, old = stopped_before(stage, small_terms(7, **given))
    refused(cohort, old, "another session, round or terms")


def test_keys_of_an_old_round_are_refused_in_a_new_request():
    cohort, _ = stopped_before("shares")
    old, request = stopped_before("shares", small_terms(7, neighbours=6, threshold=5, least=5, round=2))
    refused(cohort, with_keys(cohort, shown_keys(old, request)), "forged, replaced or replayed")


def test_signatures_of_an_old_round_are_refused_in_a_new_request():
    cohort, _ = stopped_before("unmask")
    _, request = stopped_before("unmask", small_terms(7, neighbours=6, threshold=5, least=5, round=2))
    body = request.arrays["body"].numpy().tobytes()
    refused(cohort, message("secure.unmask", cohort.terms, body), "1 of the neighbourhood")


def test_sealed_shares_for_another_recipient_do_not_open():
    cohort, _ = stopped_before("masked")
    neighbours = cohort.terms.neighbours_of(VICTIM)
    body = unpack(cohort.now.requests[3]).arrays["body"].numpy().tobytes()
    boxes = taken_apart(body, cohort.terms.neighbours_of(3), DEALT)
    boxes[3] = boxes.pop(VICTIM)
    moved = message("secure.masked", cohort.terms, laid_out(neighbours, boxes))
    refused(cohort, moved, "0 of 6 neighbours dealt shares that open")


@pytest.mark.parametrize(
    "change", [{"least": 4}, {"size": 8}, {"bits": 24}, {"round": 9}, {"session": bytes(16)}, {"threshold": 4, "least": 4}]
)
def test_terms_that_differ_from_those_agreed_are_refused(change):
    given = {"neighbours": 6, "threshold": 5, "least": 5} if "threshold" in change else {"neighbours": 6, "threshold": 4}
    agreed = small_terms(7, **{**given, "least": 5})
    proposed = Terms.from_packet(small_terms(7, **{**given, "least": 5, **change}).packet)
    with pytest.raises(SecureSumError, match="this client agreed to"):
        proposed.demand(
            session=agreed.session,
            round=agreed.round,
            size=agreed.size,
            bits=agreed.bits,
            least=agreed.least,
            threshold=agreed.threshold,
        )


def test_terms_that_protect_better_than_agreed_are_accepted():
    terms = small_terms(7, neighbours=6, threshold=5, least=6)
    assert terms.demand(session=SESSION, least=5, threshold=5, neighbours=4) is terms


def test_clients_that_were_told_different_terms_refuse_each_others_keys():
    """The server tells the others that a sum of 5 will do, the victim that there must be 6."""
    cohort, _ = stopped_before("shares")
    others = small_terms(7, neighbours=6, threshold=5, least=6)
    keys = {}
    for peer in cohort.terms.neighbours_of(VICTIM):
        _, reply = advertise(others, peer, cohort.identities[peer], SECRET)
        keys[peer] = Advertised.from_bytes(reply.arrays["body"].numpy().tobytes())
    refused(cohort, with_keys(cohort, keys), "was told other terms")


@pytest.mark.parametrize(("neighbours", "threshold"), [(6, 3), (6, 1), (6, 0), (6, 8)])
def test_a_threshold_of_half_the_neighbourhood_or_less_is_refused(neighbours, threshold):
    with pytest.raises(InputError, match="above half"):
        small_terms(7, neighbours=neighbours, threshold=threshold, least=5)
    terms = small_terms(7, neighbours=6, threshold=4, least=5)
    raw = bytearray(terms.packet.arrays["terms"].numpy().tobytes())
    assert raw[38:42] == (4).to_bytes(4, "little")
    raw[38:42] = threshold.to_bytes(4, "little")
    arrays = {**terms.packet.arrays, "terms": torch.frombuffer(raw, dtype=torch.uint8)}
    with pytest.raises(SecureSumError, match="above half"):
        Terms.from_packet(Packet(kind="secure.keys", arrays=arrays))


def test_a_client_that_is_not_invited_does_not_answer():
    with pytest.raises(SecureSumError, match="not among"):
        advertise(small_terms(5), 9, Identity.of(SECRET), SECRET)


def test_a_sum_that_was_joined_already_is_refused():
    """Whoever could repeat a sum would get one kind of share the first time and the other kind the second."""
    terms, identity = small_terms(5), Identity.of(SECRET)
    joined = {terms.digest}
    with pytest.raises(SecureSumError, match="only once"):
        advertise(terms, 1, identity, SECRET, joined=joined)
    with pytest.raises(SecureSumError, match="only once"):
        SecureClient.join(terms, 1, identity, {}, SECRET, joined=joined)
    assert advertise(small_terms(5, round=4), 1, identity, SECRET, joined=joined)


def test_an_unreadable_request_changes_nothing():
    cohort, request = stopped_before("unmask")
    client = cohort.clients[VICTIM]
    before = client.state
    with pytest.raises(ValueError, match="should take"):
        client.answer(message("secure.unmask", cohort.terms, request.arrays["body"].numpy().tobytes()[:-1]))
    assert client.state is before
    client.answer(request)


def test_states_show_no_secrets():
    cohort = Cohort(small_terms())
    server = cohort.server()
    while server.stage is not None:
        for secure in cohort.clients.values():
            secret = getattr(secure.state, "self_seed", b"nothing")
            assert repr(secret)[2:-1] not in repr(secure.state)
        server.receive(cohort.ask(server.stage, server.requests, gone=lambda *_: False))
    assert "private" not in repr(cohort.identities[0])


def test_every_use_of_a_key_has_a_context_of_its_own():
    terms, other = small_terms(5), small_terms(5, round=4)
    contexts = [
        *(context(purpose, terms, 1, 2) for purpose in ("keys", "seal", "sealed", "mask", "consent")),
        *(context("seal", *parts) for parts in ((terms, 2, 1), (terms, 1), (other, 1, 2))),
    ]
    assert len(set(contexts)) == len(contexts)


def test_one_secret_gives_other_keys_in_every_sum_and_for_every_client():
    identity = Identity.of(SECRET)
    replies = {
        pack(advertise(terms, client, identity, SECRET)[1])[-160:-64]
        for terms in (small_terms(5), small_terms(5, round=4))
        for client in (0, 1)
    }
    assert len(replies) == 4


def test_the_same_secret_gives_the_same_bytes():
    first, second = Cohort(small_terms(5)), Cohort(small_terms(5))
    first.run(), second.run()
    assert first.replied == second.replied


def test_functions_do_not_change_the_state_they_are_given():
    cohort, request = stopped_before("unmask")
    state = cohort.clients[VICTIM].state
    before = copy.deepcopy(state)
    unmask(state, request)
    assert state == before


def test_a_client_object_asks_for_values_where_it_needs_them():
    cohort, request = stopped_before("masked")
    with pytest.raises(InputError, match="values"):
        cohort.clients[VICTIM].answer(request)
    assert isinstance(cohort.clients[VICTIM], SecureClient)
    assert cohort.clients[VICTIM].stage == "masked"
