"""Clients that deal their shares wrongly, and leave: they are named, and the sum does without them."""

from dataclasses import replace

import pytest
import torch
from cohorts import Cohort, small_terms
from hypothesis import given, settings
from hypothesis import strategies as st

from sketchfed.errors import SecureSumError, WireError
from sketchfed.secure import SecureServer, Terms
from sketchfed.secure import client as stages
from sketchfed.secure.dealing import DEALT, SEALED, Accusation, Dealing, from_accusations, to_accusations
from sketchfed.secure.messages import message
from sketchfed.secure.shamir import PRIME
from sketchfed.wire import pack, unpack

LIAR, VICTIM = 3, 2
COMPLETE = {"neighbours": 7, "threshold": 5, "least": 5}


def another_secret(name):
    """The liar shares another secret than the one behind what it advertised. All shares open and fit their commitments."""

    def deal(cohort: Cohort, request):
        lying = replace(cohort.clients[LIAR].state, **{name: bytes([7] * 31 + [0])})
        after, reply = stages.share(lying, request, cohort.directory)
        cohort.clients[LIAR].state = replace(after, **{name: getattr(cohort.clients[LIAR].state, name)})
        return reply

    return deal


def garbage(cohort: Cohort, request):
    """Nothing of what the liar deals can be opened, under a signature that holds."""
    state = cohort.clients[LIAR].state
    cohort.clients[LIAR].state, reply = stages.share(state, request, cohort.directory)
    neighbours = cohort.terms.neighbours_of(LIAR)
    dealing = Dealing.from_bytes(reply.arrays["body"].numpy().tobytes(), neighbours)
    parts = {peer: bytes(SEALED) + part[SEALED:] for peer, part in dealing.parts.items()}
    transcript = cohort.clients[LIAR].state.transcript
    signed = Dealing.signed(cohort.identities[LIAR], transcript, LIAR, parts)
    return message("secure.shares.reply", cohort.terms, signed.to_bytes(neighbours))


def run_with(cohort: Cohort, deal, *, leaves_at: str):
    """A sum in which the liar deals as it likes, and leaves at some stage."""
    server, order = cohort.server(), ("keys", "shares", "masked", "consent", "unmask", "recover")
    while server.stage is not None:
        stage = server.stage
        gone = order.index(stage) >= order.index(leaves_at)
        wrong = None
        if stage == "shares":
            wrong = pack(deal(cohort, unpack(server.requests[LIAR])))
        others = cohort.ask(stage, server.requests, gone=lambda s, c, gone=gone: c == LIAR and (gone or s == "shares"))
        server.receive(others | ({} if wrong is None else {LIAR: wrong}))
    return server


@pytest.mark.parametrize("leaves_at", ["masked", "consent", "unmask"])
@pytest.mark.parametrize("deal", [another_secret("mask_key"), another_secret("self_seed"), garbage])
def test_a_wrong_dealer_that_leaves_is_named_and_the_sum_of_the_others_is_opened(deal, leaves_at):
    """With values or without: what it sent is left out of the sum where its own mask cannot be removed."""
    cohort = Cohort(small_terms(8, **COMPLETE))
    server = run_with(cohort, deal, leaves_at=leaves_at)
    total, survivors = server.result
    assert set(survivors) >= set(range(8)) - {LIAR}
    assert torch.equal(total, cohort.expected(survivors))
    assert server.reasons.keys() == {LIAR}


@pytest.mark.parametrize("name", ["mask_key", "self_seed"])
def test_on_a_ring_a_wrong_dealer_is_convicted_and_done_without(name):
    terms = small_terms(40, neighbours=10, threshold=7, least=20)
    cohort = Cohort(terms)
    server = run_with(cohort, another_secret(name), leaves_at="masked" if name == "mask_key" else "consent")
    assert "recover" in cohort.sent
    assert set(cohort.sent["recover"]) == set(terms.neighbours_of(LIAR))
    assert server.result.survivors == tuple(client for client in terms.clients if client != LIAR)
    assert torch.equal(server.result.total, cohort.expected(server.result.survivors))


@pytest.mark.parametrize("leaves_at", ["masked", "consent", "unmask"])
def test_on_a_ring_the_sum_does_without_a_dealer_whose_shares_nobody_can_open(leaves_at):
    cohort = Cohort(small_terms(40, neighbours=10, threshold=7, least=20))
    server = run_with(cohort, garbage, leaves_at=leaves_at)
    assert server.reasons.keys() == {LIAR}
    assert server.result.survivors == tuple(client for client in cohort.terms.clients if client != LIAR)
    assert torch.equal(server.result.total, cohort.expected(server.result.survivors))


# What the server must not get this way ----------------------------------------------------------------------------------


def told(terms: Terms) -> tuple[Cohort, SecureServer]:
    """A cohort that has answered all stages up to `unmask`, and the server."""
    cohort = Cohort(terms)
    server = cohort.server()
    while server.stage not in (None, "recover"):
        gone = {LIAR} if server.stage == "masked" else set()
        server.receive(cohort.ask(server.stage, server.requests, gone=lambda _, client, gone=gone: client in gone))
    return cohort, server


def true_proof(cohort: Cohort, server: SecureServer, of: int) -> Accusation:
    """As many right shares of a client's seed as the threshold asks for, with all that it signed."""
    told = {holder: shares[of] for holder, shares in server._shares.items() if of in shares}
    return server._dealt[of].accusation(stages.Secret.SEED, dict(list(told.items())[: cohort.terms.threshold]))


def accused(cohort: Cohort, peer: int, proof: Accusation | None):
    return message("secure.recover", cohort.terms, to_accusations(cohort.terms, VICTIM, {peer: proof}))


def test_masks_with_a_survivor_are_never_told_without_a_proof():
    cohort, _ = told(small_terms(8, **COMPLETE))
    with pytest.raises(SecureSumError, match="client 5 is said to have dealt shares wrongly, and nothing proves it"):
        cohort.clients[VICTIM].answer(accused(cohort, 5, None))
    with pytest.raises(SecureSumError, match="finished"):
        cohort.clients[VICTIM].answer(accused(cohort, LIAR, None))


def test_on_a_ring_masks_with_a_survivor_are_never_told_without_a_proof():
    terms = small_terms(40, neighbours=10, threshold=7, least=20)
    cohort, _ = told(terms)
    peer = min(set(terms.neighbours_of(VICTIM)) - {LIAR})
    with pytest.raises(SecureSumError, match="nothing proves it"):
        cohort.clients[VICTIM].answer(accused(cohort, peer, None))


def test_shares_that_are_right_convict_nobody():
    cohort, server = told(small_terms(8, **COMPLETE))
    proof = true_proof(cohort, server, 5)
    with pytest.raises(SecureSumError, match="nothing proves it"):
        cohort.clients[VICTIM].answer(accused(cohort, 5, proof))


FORGERIES = {
    "another share": lambda proof: replace(proof, shares=proof.shares | {next(iter(proof.shares)): bytes(32)}),
    "too few shares": lambda proof: replace(proof, shares=dict(list(proof.shares.items())[1:])),
    "a share beyond the field": lambda proof: replace(
        proof, shares=proof.shares | {next(iter(proof.shares)): PRIME.to_bytes(32, "little")}
    ),
    "other commitments": lambda proof: replace(proof, promises=dict.fromkeys(proof.promises, bytes(32))),
    "another signature": lambda proof: replace(proof, signature=bytes(64)),
    "other boxes": lambda proof: replace(proof, boxes=bytes(32)),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_proof_convicts_nobody(forgery):
    """The server has every share that was told and every signature that was sent, and still cannot accuse an honest client."""
    cohort, server = told(small_terms(8, **COMPLETE))
    proof = true_proof(cohort, server, 5)
    with pytest.raises(SecureSumError, match="nothing proves it"):
        cohort.clients[VICTIM].answer(accused(cohort, 5, FORGERIES[forgery](proof)))


def test_a_proof_about_one_client_convicts_no_other():
    cohort = Cohort(small_terms(8, **COMPLETE))
    run = run_with(cohort, another_secret("self_seed"), leaves_at="unmask")
    proof = from_accusations(unpack(cohort.sent["recover"][VICTIM]).arrays["body"].numpy().tobytes(), cohort.terms, VICTIM)[
        LIAR
    ]
    assert proof is not None
    assert run.result is not None
    for peer in set(cohort.terms.clients) - {LIAR}:
        own = run._keys[peer]
        assert not proof.convicts(run._transcript, peer, identity=cohort.directory[peer], mask=own.mask, seed=own.seed)
    own = run._keys[LIAR]
    assert proof.convicts(run._transcript, LIAR, identity=cohort.directory[LIAR], mask=own.mask, seed=own.seed)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_accusations_of_any_bytes_are_read_or_refused(data):
    terms = small_terms(8, **COMPLETE)
    try:
        found = from_accusations(data, terms, VICTIM)
    except WireError:
        return
    assert to_accusations(terms, VICTIM, found) == data


def test_a_dealing_has_the_bytes_that_neighbours_are_sent():
    assert DEALT == 112
