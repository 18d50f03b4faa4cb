"""Training of the client form: two trainers, one arithmetic."""

import pytest
import torch
from torch import nn

from problems import SEED, examples
from sketchfed.algorithms import Dbcl
from sketchfed.algorithms.settings import SketchSettings
from sketchfed.training import AutogradTrainer, LocalWork, PerceptronTrainer, Turn, make_trainer
from sketchfed.training.losses import LOSSES
from sketchfed.vectors import flatten

WORKS = [
    LocalWork(rate=0.1, batch=5, epochs=2),
    LocalWork(rate=0.1, steps=3),
    LocalWork(rate=0.1, batch=5, momentum=0.7, decay=0.2),
]


def perceptron() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 4))


def both(family="balanced", loss="cross_entropy"):
    """The weights that a client sees, and its trainers: by hand and by autograd."""
    module = perceptron()
    form = Dbcl(sketch=SketchSettings(name=family, ratio=0.5)).resolved(1, module=module).given(SEED, 0).sketch
    by_hand = make_trainer(module, loss).sketched(form)
    by_autograd = AutogradTrainer(module, LOSSES[loss]).sketched(form)
    assert (type(by_hand), type(by_autograd)) == (PerceptronTrainer, AutogradTrainer)
    assert by_hand.dim == by_autograd.dim == form.size
    return form.apply(flatten(module)), by_hand, by_autograd


@pytest.mark.parametrize("family", ["balanced", "count", "sampling"])
@pytest.mark.parametrize("loss", ["cross_entropy", "squares"])
@pytest.mark.parametrize("work", WORKS, ids=["batches", "all at once", "momentum and decay"])
def test_both_trainers_say_the_same(family, loss, work):
    weights, by_hand, by_autograd = both(family, loss)
    data = examples(loss=loss)
    said = by_hand.train(weights, data, work, Turn(SEED))
    torch.testing.assert_close(said, by_autograd.train(weights, data, work, Turn(SEED)), rtol=1e-5, atol=1e-6)
    assert not torch.equal(said, weights)


@pytest.mark.parametrize("family", ["balanced", "count", "sampling"])
def test_both_trainers_have_the_same_gradients_of_single_examples(family):
    weights, by_hand, by_autograd = both(family)
    data = examples(7)
    rows = by_hand.gradients(weights, data)
    torch.testing.assert_close(rows, by_autograd.gradients(weights, data), rtol=1e-5, atol=1e-6)
    clip = float(rows.norm(dim=1).median())
    clipped = (rows * (clip / rows.norm(dim=1)).clamp(max=1)[:, None]).sum(0)
    for trainer in (by_hand, by_autograd):
        torch.testing.assert_close(trainer.clipped_sum(weights, data, clip), clipped, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(trainer.gram(clipped), by_hand.gram(clipped))


def test_both_trainers_have_the_same_outputs():
    weights, by_hand, by_autograd = both()
    x = examples().x
    torch.testing.assert_close(by_hand.outputs(weights, x), by_autograd.outputs(weights, x), rtol=1e-5, atol=1e-6)


def test_a_model_that_draws_random_numbers_stays_one_after_the_other():
    module = nn.Sequential(nn.Linear(6, 9), nn.Dropout(), nn.Linear(9, 4))
    trainer = make_trainer(module, "cross_entropy")
    trainer.check(examples(3))
    form = Dbcl().resolved(1, module=module).given(SEED, 0).sketch
    assert trainer.sequential
    assert trainer.sketched(form).sequential
    weights, work = form.apply(flatten(module)), LocalWork(rate=0.1, batch=2)
    first, second = (trainer.sketched(form).train(weights, examples(5), work, Turn(SEED)) for _ in range(2))
    assert torch.equal(first, second)
