"""The order in which a client uses its examples."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from odds import uniformity
from sketchfed import PublicSeed
from sketchfed.training import Examples, LocalWork
from sketchfed.training.base import batches

SEED = PublicSeed(7)


def used(work: LocalWork, examples: int, seed: PublicSeed = SEED) -> list[list[int]]:
    """Which examples each step uses."""
    numbered = Examples(torch.arange(examples), torch.arange(examples) + 100)
    taken = list(batches(numbered, work, seed))
    assert all(torch.equal(batch.y, batch.x + 100) for batch in taken), "inputs and targets were torn apart"
    return [batch.x.tolist() for batch in taken]


@settings(deadline=None)
@given(examples=st.integers(1, 40), batch=st.integers(1, 50), epochs=st.integers(1, 4))
def test_every_pass_uses_every_example_once(examples, batch, epochs):
    steps = used(LocalWork(rate=1, batch=batch, epochs=epochs), examples)
    each = -(-examples // batch)
    assert len(steps) == epochs * each == LocalWork(rate=1, batch=batch, epochs=epochs).count(examples)
    for turn in range(epochs):
        own = steps[turn * each : (turn + 1) * each]
        assert sorted(index for step in own for index in step) == list(range(examples))
        assert [len(step) for step in own[:-1]] == [min(batch, examples)] * (each - 1)
        assert len(own[-1]) == examples - (each - 1) * min(batch, examples)


@settings(deadline=None)
@given(examples=st.integers(1, 40), batch=st.integers(1, 50), steps=st.integers(1, 30))
def test_steps_are_the_first_of_as_many_passes_as_they_need(examples, batch, steps):
    taken = used(LocalWork(rate=1, batch=batch, steps=steps), examples)
    assert len(taken) == steps
    assert taken == used(LocalWork(rate=1, batch=batch, epochs=steps), examples)[:steps]


@pytest.mark.parametrize("batch", [None, 9, 10, 1_000])
def test_a_batch_of_all_examples_is_all_examples_in_their_order(batch):
    examples = 9
    assert used(LocalWork(rate=1, batch=batch, steps=3), examples) == [list(range(9))] * 3
    assert used(LocalWork(rate=1, batch=batch, epochs=2), examples) == [list(range(9))] * 2


def test_passes_clients_and_rounds_have_orders_of_their_own():
    work = LocalWork(rate=1, batch=5, epochs=2)
    steps = used(work, 30)
    assert steps[:6] != steps[6:]
    assert steps == used(work, 30)
    assert steps != used(work, 30, SEED.child("other"))


def test_every_example_is_as_likely_in_the_first_batch():
    """χ² over 8 examples and 2,000 draws of one, false alarm below 1e-6."""
    first = [used(LocalWork(rate=1, batch=1, steps=1), 8, SEED.child("trial", trial))[0][0] for trial in range(2_000)]
    assert uniformity(torch.bincount(torch.tensor(first), minlength=8)) > 1e-6
