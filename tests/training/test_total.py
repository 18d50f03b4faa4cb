"""Contributions that are not finite count as zero: of the client, or of each example by itself."""

import pytest
import torch

from sketchfed.models import build
from sketchfed.runs.workload import loss_for
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples, LocalWork, Turn, make_trainer
from sketchfed.training.total import TotalTrainer

SEED = PublicSeed(3)
WORK = LocalWork(rate=0.1, steps=2, batch=3)
KEPT = torch.tensor([0, 1, 3, 4, 5])


@pytest.fixture(params=["mlp", "logistic"])
def inner(request):
    return make_trainer(build(request.param, shape=(4,), outputs=3, seed=SEED), loss_for("classification", None))


@pytest.fixture
def weights(inner):
    return torch.linspace(-0.5, 0.5, inner.dim)


def examples(spoilt: float | None = None) -> Examples:
    """Six examples. The third one has this value in it."""
    x = torch.linspace(-1, 1, 24).reshape(6, 4).clone()
    if spoilt is not None:
        x[2, 1] = spoilt
    return Examples(x, torch.arange(6) % 3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_example_that_breaks_the_model_counts_as_zero_and_the_others_count_as_ever(inner, weights, value):
    whole = examples()
    total, broken, others = TotalTrainer(inner), examples(value), Examples(whole.x[KEPT], whole.y[KEPT])
    rows = total.gradients(weights, broken).clone()
    assert not rows[2].any()
    torch.testing.assert_close(rows[KEPT], inner.gradients(weights, others), rtol=1e-5, atol=1e-6)
    found = total.clipped_sum(weights, broken, 1.0)
    torch.testing.assert_close(found, inner.clipped_sum(weights, others, 1.0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_client_whose_training_breaks_changes_nothing(inner, weights, value):
    assert torch.equal(TotalTrainer(inner).train(weights, examples(value), WORK, Turn(SEED)), weights)


def test_training_that_does_not_break_is_left_alone(inner, weights):
    total = TotalTrainer(inner)
    assert torch.equal(total.train(weights, examples(), WORK, Turn(SEED)), inner.train(weights, examples(), WORK, Turn(SEED)))
    assert torch.equal(total.clipped_sum(weights, examples(), 0.1), inner.clipped_sum(weights, examples(), 0.1))
    assert torch.equal(total.gradients(weights, examples()), inner.gradients(weights, examples()))
