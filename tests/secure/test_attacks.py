"""What a server must not get from honest clients: each of its obvious moves is refused, and the client stops there."""

import pytest
from cohorts import Cohort, small_terms
from stopped_cohorts import VICTIM, refused, stopped_before, survivor_list

from sketchfed.errors import SecureSumError
from sketchfed.secure.client import consent, consent_text
from sketchfed.secure.messages import laid_out, message, taken_apart

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


def test_one_members_signature_does_not_count_for_another():
    cohort, request = stopped_before("unmask")
    neighbours = cohort.terms.neighbours_of(VICTIM)
    signatures = taken_apart(request.arrays["body"].numpy().tobytes(), neighbours, 64)
    copied = dict.fromkeys(neighbours, next(iter(signatures.values())))
    refused(cohort, message("secure.unmask", cohort.terms, laid_out(neighbours, copied)), "2 of the committee of 7")


def test_signatures_of_those_who_are_not_on_the_list_do_not_count():
    """An accomplice signs a list that it is not on: the list says that it left, so its signature is worth nothing."""
    cohort, _ = stopped_before("consent")
    shorter = survivor_list(cohort, {4})
    cohort.clients[VICTIM].answer(message("secure.consent", cohort.terms, shorter))
    text = consent_text(cohort.clients[VICTIM].state.transcript, shorter)
    signatures = {peer: cohort.identities[peer].sign(text) for peer in (0, 1, 3, 4)}
    body = laid_out(cohort.terms.neighbours_of(VICTIM), signatures)
    refused(cohort, message("secure.unmask", cohort.terms, body), "4 of the committee of 7")


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
