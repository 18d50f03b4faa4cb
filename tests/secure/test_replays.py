"""Messages of other rounds, sessions and terms are worth nothing, and a client joins no terms twice."""

import copy

import pytest
import torch
from cohorts import SECRET, SESSION, Cohort, small_terms
from stopped_cohorts import VICTIM, refused, shown_keys, stopped_before, with_keys

from sketchfed.errors import InputError, SecureSumError
from sketchfed.secure import Identity, SecureClient, Terms, advertise
from sketchfed.secure.client import unmask
from sketchfed.secure.dealing import DEALT
from sketchfed.secure.keys import Advertised, context
from sketchfed.secure.messages import laid_out, message, taken_apart
from sketchfed.wire import Packet, pack, unpack


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
    refused(cohort, message("secure.unmask", cohort.terms, body), "1 of the committee of 7")


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
    unmask(state, request, cohort.directory)
    assert state == before


def test_a_client_object_asks_for_values_where_it_needs_them():
    cohort, request = stopped_before("masked")
    with pytest.raises(InputError, match="values"):
        cohort.clients[VICTIM].answer(request)
    assert isinstance(cohort.clients[VICTIM], SecureClient)
    assert cohort.clients[VICTIM].stage == "masked"


@pytest.mark.parametrize("place", [0, 8, 31])
def test_every_byte_of_the_terms_digest_decides_about_the_secrets_of_a_sum(place):
    """A server that could find terms with the same secrets would get one secret of a client in each of two sums."""
    states = []
    for change in (0, 1):
        terms = small_terms()
        digest = bytearray(32)
        digest[place] = change
        terms.__dict__["digest"] = bytes(digest)
        states.append(advertise(terms, 2, Identity(bytes(32)), SECRET)[0])
    first, second = states
    for name in ("mask_key", "seal_key", "self_seed", "dealing"):
        assert getattr(first, name) != getattr(second, name), name
