"""A server that shows false keys, or too few, and shares that were meant for somebody else."""

from dataclasses import replace

import pytest
from cohorts import Cohort, small_terms
from stopped_cohorts import VICTIM, refused, shown_keys, stopped_before, with_keys

from sketchfed.errors import SecureSumError
from sketchfed.secure import Identity
from sketchfed.secure.client import share
from sketchfed.secure.dealing import DEALT
from sketchfed.secure.keys import Advertised
from sketchfed.secure.messages import laid_out, message, taken_apart
from sketchfed.secure.transcript import Roll
from sketchfed.wire import pack, unpack


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
