"""Whoever leaves, at whatever stage: exactly the sum of those whose masked values arrived, or a clean end."""

import copy
import pickle
import random
from contextlib import suppress
from functools import cache
from itertools import product

import pytest
import torch
from cohorts import Cohort, small_terms

from sketchfed.errors import SecureSumError
from sketchfed.secure import STAGES, SecureServer
from sketchfed.wire import pack, unpack

NEVER = len(STAGES)


def copied(server: SecureServer) -> SecureServer:
    made = copy.copy(server)
    for name, value in vars(server).items():
        if isinstance(value, dict | list) or name == "_sum":
            setattr(made, name, value.copy())
    return made


class Explorer:
    """Runs with every pattern of leaving; patterns that begin alike share their beginning."""

    def __init__(self, terms):
        self.cohort = Cohort(terms)
        self.after = cache(self._after)

    def outcome(self, leaving):
        """What comes of it if client i does not answer from stage leaving[i] on."""
        return self.after(tuple(frozenset(c for c, at in enumerate(leaving) if at <= stage) for stage in range(NEVER)))[0]

    def _after(self, gone):
        """The server, or why it stopped, and the clients, after as many stages as `gone` has sets of those who had left."""
        if not gone:
            return self.cohort.server(), {}
        server, clients = self.after(gone[:-1])
        if isinstance(server, SecureSumError):
            return server, {}
        self.cohort.clients = {client: copy.copy(secure) for client, secure in clients.items()}
        staying = {client: request for client, request in server.requests.items() if client not in gone[-1]}
        replies = {client: self.cohort.answer(client, request) for client, request in staying.items()}
        server = copied(server)
        try:
            server.receive(replies)
        except SecureSumError as error:
            return error, {}
        return server, self.cohort.clients


def can_be_opened(leaving, terms):
    """By counting, for the complete graph: enough in the sum, enough signatures, and enough shares if any secret is missing."""
    left_after = [sum(at > stage for at in leaving) for stage in range(NEVER)]
    dealt, valued, _, told = left_after[1:]
    missing = dealt > valued or valued > told
    return valued >= terms.least and left_after[3] >= terms.threshold and (told >= terms.threshold or not missing)


FOUR_CLIENTS = [(4, 3), (4, 4)]
FIVE_CLIENTS = [pytest.param(5, threshold, marks=pytest.mark.slow) for threshold in (3, 4, 5)]


@pytest.mark.parametrize(("clients", "threshold"), FOUR_CLIENTS + FIVE_CLIENTS)
def test_all_patterns_of_a_few_clients_give_the_sum_of_the_survivors_or_end_cleanly(clients, threshold):
    """1,296 patterns of four clients, 7,776 of five."""
    terms = small_terms(clients, size=3, bits=16, neighbours=clients - 1, threshold=threshold, least=threshold)
    explorer, opened = Explorer(terms), 0
    for leaving in product(range(NEVER + 1), repeat=clients):
        outcome = explorer.outcome(leaving)
        if can_be_opened(leaving, terms):
            total, survivors = outcome.result
            assert survivors == tuple(client for client, at in enumerate(leaving) if at > 2), leaving
            assert torch.equal(total, explorer.cohort.expected(survivors)), leaving
            opened += 1
        else:
            assert isinstance(outcome, SecureSumError), leaving
    assert opened > 0


def random_patterns(count, clients, *, leaving, seed):
    """Patterns in which some clients leave, each at a random stage."""
    dice = random.Random(seed)
    for _ in range(count):
        gone = dict.fromkeys(dice.sample(clients, leaving))
        yield {client: dice.randrange(NEVER) for client in gone}


def test_a_random_pattern_within_the_plan_does_not_fail_for_a_hundred_clients():
    """A sparse graph planned for a tenth of dropouts; it fails with probability 2^-30 by the planner's bound."""
    terms = small_terms(100, size=50, bits=20)
    assert not terms.complete
    for pattern in random_patterns(1, terms.clients, leaving=10, seed=10):
        cohort = Cohort(terms)
        total, survivors = cohort.run(lambda stage, client, p=pattern: p.get(client, NEVER) <= STAGES.index(stage))
        assert survivors == tuple(client for client in terms.clients if pattern.get(client, NEVER) > 2)
        assert torch.equal(total, cohort.expected(survivors))


@pytest.mark.parametrize("leaving", [25, 60])
def test_beyond_the_plan_the_sum_is_right_or_abandoned(leaving):
    terms = small_terms(100, size=20, bits=8, neighbours=20, threshold=12, least=30)
    for pattern in random_patterns(1, terms.clients, leaving=leaving, seed=leaving):
        cohort = Cohort(terms)
        with suppress(SecureSumError):
            total, survivors = cohort.run(lambda stage, client, p=pattern: p.get(client, NEVER) <= STAGES.index(stage))
            assert torch.equal(total, cohort.expected(survivors))


def test_whoever_left_is_named_with_the_stage():
    cohort = Cohort(small_terms(8, threshold=5, neighbours=7, least=5))
    server = cohort.server()
    leaving = {1: 0, 3: 2, 6: 4}
    while server.stage is not None:
        stage = server.stage
        replies = cohort.ask(stage, server.requests, gone=lambda s, c: leaving.get(c, NEVER) <= STAGES.index(s))
        server.receive(replies, {3: "the battery is empty"})
    assert server.reasons == {
        1: "keys: no reply came",
        3: "masked: the battery is empty",
        6: "unmask: no reply came",
    }
    assert server.result.survivors == (0, 2, 4, 5, 6, 7)


def test_nothing_is_revealed_if_a_secret_could_not_be_opened_anyway():
    """On a sparse ring a whole neighbourhood leaves after sending its values; the others are never asked to unmask."""
    terms = small_terms(40, neighbours=6, threshold=4, least=20)
    cohort, victim = Cohort(terms), 17
    leaving = {victim, *terms.neighbours_of(victim)}
    with pytest.raises(SecureSumError, match=r"nothing was revealed"):
        cohort.run(lambda stage, client: stage in ("consent", "unmask") and client in leaving)
    assert "unmask" not in cohort.sent


def test_on_a_ring_clients_without_enough_neighbours_are_left_out_and_the_others_go_on():
    terms = small_terms(40, neighbours=6, threshold=4, least=20)
    cohort, lonely = Cohort(terms), 17
    gone = set(terms.neighbours_of(lonely)[:4])
    server = cohort.server()
    server.receive(cohort.ask("keys", server.requests, gone=lambda _, client: client in gone))
    assert lonely not in server.requests
    assert "too few of its neighbours" in server.reasons[lonely]
    assert len(server.requests) >= 20


def test_an_abandoned_sum_cannot_be_continued():
    cohort = Cohort(small_terms())
    server = cohort.server()
    with pytest.raises(SecureSumError, match="abandoned"):
        server.receive({})
    with pytest.raises(SecureSumError, match="abandoned"):
        server.receive({})


def test_clients_can_be_pickled_between_all_stages():
    cohort = Cohort(small_terms())
    server = cohort.server()
    while server.stage is not None:
        cohort.clients = pickle.loads(pickle.dumps(cohort.clients))
        server = pickle.loads(pickle.dumps(server))
        server.receive(cohort.ask(server.stage, server.requests, gone=lambda *_: False))
    assert torch.equal(server.result.total, cohort.expected(server.result.survivors))


def test_packets_are_bytes_that_unpack_to_themselves():
    cohort = Cohort(small_terms())
    cohort.run()
    for packets in (*cohort.sent.values(), *cohort.replied.values()):
        assert all(pack(unpack(packet)) == packet for packet in packets.values())
