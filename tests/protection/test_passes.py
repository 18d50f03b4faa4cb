"""Passes over the data: each example in one batch a pass, and nobody charged for less than what touched an example."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sketchfed.algorithms import cohorts as base
from sketchfed.privacy.claims import Charge, Claim
from sketchfed.privacy.ledger import PrivacyLedger
from sketchfed.protection import passes as module
from sketchfed.protection.batches import passed_batch, passed_batches
from sketchfed.protection.passes import Passes
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples

SEED = PublicSeed(3)
ONE = Charge(multiplier=1.0)
CLAIM = Claim(unit="example", adjacency="zero-out", observer="server", delta=1e-5)


class Federation:
    """Rounds of clients as a server plays them, and how often each batch of each pass was released."""

    def __init__(self, sizes, batch, cohort):
        self.sizes, self.batch, self.cohort = sizes, batch, cohort
        self.passes, self.ledger = Passes(sizes, batch=batch, cohort=cohort), PrivacyLedger(CLAIM)
        self.released = Counter()  # by client, pass and place in the pass

    def chosen(self, index):
        return base.cohort(SEED, index, population=len(self.sizes), count=self.cohort)

    def draw(self, index, draw, lost=(), settled=True):
        """One draw of noise of a round; `lost` clients are not in the sum, and the end of it may stay unknown."""
        chosen = self.chosen(index)
        owing, covered = self.passes.owing(self.ledger, SEED, index, chosen)
        assert sorted(owing + covered) == chosen
        self.ledger.intend(round=index, draw=draw, clients=owing, covered=covered, charge=ONE)
        there = [client for client in chosen if client not in lost]
        if settled:
            self.ledger.settle(round=index, draw=draw, clients=there, charge=ONE)
        for client in there:
            turn = sum(client in self.chosen(past) for past in range(index))
            assert turn == self.passes.turn(SEED, index, client)
            self.released[client, *divmod(turn, passed_batches(self.sizes[client], self.batch))] += 1

    def charges(self, client):
        return sum(client in entry.clients for entry in self.ledger.entries)

    def most_touched(self, client):
        """How many noisy sums the example was in that was in the most; it may be anywhere in each pass."""
        by_pass = {}
        for (who, turn, _), times in self.released.items():
            if who == client:
                by_pass[turn] = max(by_pass.get(turn, 0), times)
        return sum(by_pass.values())

    def check(self):
        for client in range(len(self.sizes)):
            assert self.charges(client) >= self.most_touched(client)


def federations(most=5):
    return st.lists(st.integers(1, 9), min_size=1, max_size=most).flatmap(
        lambda sizes: st.builds(Federation, st.just(sizes), st.integers(1, 4), st.integers(1, len(sizes)))
    )


@settings(deadline=None, max_examples=50)
@given(made=federations(), rounds=st.integers(1, 25))
def test_without_trouble_a_client_pays_once_a_pass(made, rounds):
    """For each prefix of the run: exactly what the example pays for that comes first in every pass."""
    for index in range(rounds):
        made.draw(index, "a")
        for client, size in enumerate(made.sizes):
            turns = sum(client in made.chosen(past) for past in range(index + 1))
            begun = -(-turns // passed_batches(size, made.batch))
            assert made.charges(client) == made.most_touched(client) == begun
    assert made.passes.most(SEED, rounds) == max(map(made.charges, range(len(made.sizes))))


@settings(deadline=None, max_examples=50)
@given(data=st.data(), made=federations())
def test_whatever_goes_wrong_nobody_pays_too_little(data, made):
    """Clients that are lost, sums opened in vain or not at all, crashes that take rounds back: checked after each draw."""
    index = saved = draws = 0
    for _ in range(data.draw(st.integers(1, 30))):
        what = data.draw(st.sampled_from(["round", "round", "lost", "vain", "unopened", "crash", "crash in a draw", "save"]))
        if what == "save":
            saved = index
        elif what == "crash":
            index = saved
        else:
            lost = made.chosen(index) if what == "unopened" else ()
            if what == "lost":
                lost = data.draw(st.lists(st.sampled_from(made.chosen(index)), unique=True))
            draws += 1
            made.draw(index, str(draws), lost, settled=what != "crash in a draw")
            if what in ("round", "lost"):
                index += 1
            elif what == "crash in a draw":
                index = saved
        made.check()


@settings(deadline=None, max_examples=50)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), batch=st.integers(1, 4), rounds=st.integers(1, 12))
def test_batches_as_they_are_used_touch_no_example_more_often_than_is_charged(sizes, batch, rounds):
    """Example after example, with the batches that clients really use."""
    made, touched = Federation(sizes, batch, max(1, len(sizes) // 2)), Counter()
    for index in range(rounds):
        made.draw(index, "a")
        for client in made.chosen(index):
            data = Examples(torch.zeros(sizes[client], 1), torch.arange(sizes[client]))
            turn = made.passes.turn(SEED, index, client)
            touched.update((client, int(name)) for name in passed_batch(data, batch, turn, SEED.child("examples", client)).y)
        assert all(times <= made.charges(client) for (client, _), times in touched.items())


def test_who_missed_the_first_batch_of_a_pass_pays_with_the_next():
    made = Federation([6, 6], 2, 2)
    made.draw(0, "a", lost=[1])
    made.draw(1, "a")
    made.draw(2, "a")
    assert [entry.clients for entry in made.ledger.entries] == [(0,), (1,), ()]
    assert [entry.covered for entry in made.ledger.entries] == [(), (0,), (0, 1)]


def test_an_attempt_that_was_opened_in_vain_costs_those_who_were_in_it():
    made = Federation([6, 6, 6], 2, 3)
    made.draw(0, "a")
    made.draw(1, "vain", lost=[2])
    made.draw(1, "again")
    assert [entry.clients for entry in made.ledger.entries] == [(0, 1, 2), (), (0, 1)]
    made.draw(2, "vain")
    made.draw(2, "again")  # what 0 and 1 paid for batch 1 does for batch 2: no example is in both
    assert [made.charges(client) for client in range(3)] == [2, 2, 2]


def test_an_attempt_that_was_never_opened_costs_nothing():
    made = Federation([6, 6, 6], 2, 3)
    made.draw(0, "unopened", lost=[0, 1, 2])
    assert made.ledger.epsilon() == 0.0
    made.draw(0, "again")
    assert [made.charges(client) for client in range(3)] == [1, 1, 1]


def test_rounds_that_are_run_again_are_charged_as_passes_too():
    """Ten rounds of a pass are lost: all of them again cost each example one sum more, not ten."""
    made = Federation([20, 40], 2, 2)
    for index in range(10):
        made.draw(index, "a")
    for index in range(10):
        made.draw(index, "b")
    assert [made.charges(client) for client in range(2)] == [2, 2]
    made.draw(10, "a")
    assert [made.charges(client) for client in range(2)] == [3, 2]


def test_a_charge_of_the_next_pass_does_not_pay_for_this_one():
    """A crash takes back the last round of a pass and the first of the next: both are paid for again."""
    made = Federation([4], 2, 1)
    for index in range(3):
        made.draw(index, "a")
    made.draw(1, "b")
    made.draw(2, "b")
    assert [entry.clients for entry in made.ledger.entries] == [(0,), (), (0,), (0,), (0,)]


def test_a_crash_in_a_draw_counts_as_a_release(tmp_path):
    path = tmp_path / "ledger.jsonl"
    made = Federation([6, 6], 2, 2)
    made.ledger = PrivacyLedger(CLAIM, path)
    made.draw(0, "a")
    made.draw(1, "b", settled=False)
    made.ledger, made.passes = PrivacyLedger.load(path, CLAIM), Passes([6, 6], batch=2, cohort=2)
    made.draw(1, "c")
    assert [(entry.clients, entry.covered) for entry in made.ledger.entries] == [((0, 1), ()), ((), (0, 1)), ((0, 1), ())]


def test_a_run_draws_each_cohort_once_for_its_turns(monkeypatch):
    drawn = []
    monkeypatch.setattr(module, "cohort", lambda seed, index, **how: drawn.append(index) or base.cohort(seed, index, **how))
    turns = Passes([5] * 20, batch=2, cohort=3)
    for index in range(50):
        for client in range(20):
            turns.turn(SEED, index, client)
    assert drawn == list(range(49))
    turns.turn(SEED, 10, 0)  # back: from the start
    assert drawn[49:] == list(range(10))
    turns.turn(PublicSeed(4), 10, 0)
    assert drawn[59:] == list(range(10))


@pytest.mark.parametrize("cohort", [3, 7])
def test_turns_are_counted_in_the_cohorts(cohort):
    turns = Passes([5] * 7, batch=2, cohort=cohort)
    counts = np.zeros(7, int)
    for index in range(12):
        assert [turns.turn(SEED, index, client) for client in range(7)] == counts.tolist()
        counts[base.cohort(SEED, index, population=7, count=cohort)] += 1
    assert turns.most(SEED, 12) == -(-counts.max() // 3)
