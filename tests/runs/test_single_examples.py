"""A test set, or the last part of one, may be a single example."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import sketchfed
from sketchfed.training.base import spans
from sketchfed.training.metrics import FOR_REGRESSION, METRICS

WORK = {"algorithm": {"rounds": 1, "local_steps": 2, "batch": 4, "local_rate": 0.1}}


def data(count, *, seed=1, numbers=False):
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return x, x.sum(1) if numbers else x[:, :3].argmax(1)


class Squeezing(nn.Module):
    """Drops all dimensions of one, also that of a batch of one example."""

    def __init__(self, outputs):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, outputs))

    def forward(self, x):
        return self.layers(x).squeeze()


def trained(model, *, count, numbers=False, **given):
    clients = [data(9, seed=seed, numbers=numbers) for seed in (2, 3)]
    torch.manual_seed(1)
    config = WORK | {"model": {"buffers": "average"}}
    return sketchfed.run(config, model=model, clients=clients, test=data(count, numbers=numbers), **given)


@pytest.mark.parametrize("count", [1, 2, 1_001])
def test_classes_are_scored_example_by_example(count):
    torch.manual_seed(4)
    found = trained(Squeezing(3), count=count, metric=["top5", "f1", "perplexity"])
    module, (x, y) = found.module.eval().layers, data(count)
    outputs = module(x).detach()
    assert found.accuracy == pytest.approx(float((outputs.argmax(1) == y).double().mean()))
    assert found.metrics[-1]["loss"] == pytest.approx(float(functional.cross_entropy(outputs, y)), rel=1e-5)
    assert found.metrics[-1]["perplexity"] == pytest.approx(float(functional.cross_entropy(outputs, y).exp()), rel=1e-5)
    assert found.metrics[-1]["top5"] == 1.0


@pytest.mark.parametrize("count", [1, 2, 1_001])
def test_numbers_are_scored_example_by_example(count):
    torch.manual_seed(4)
    found = trained(Squeezing(1), count=count, numbers=True, loss="squares", task="regression", metric=["mse", "mae"])
    module, (x, y) = found.module.eval().layers, data(count, numbers=True)
    errors = module(x).detach()[:, 0] - y
    assert found.metrics[-1]["mse"] == pytest.approx(float(errors.square().mean()), rel=1e-5)
    assert found.metrics[-1]["mae"] == pytest.approx(float(errors.abs().mean()), rel=1e-5)
    assert found.metrics[-1]["loss"] == pytest.approx(float(errors.square().mean()) / 2, rel=1e-5)


@pytest.mark.parametrize("metric", list(METRICS))
def test_every_metric_has_a_value_for_one_example_or_none(metric):
    numbers = metric in FOR_REGRESSION
    given = {"loss": "squares", "task": "regression"} if numbers else {}
    torch.manual_seed(4)
    found = trained(Squeezing(1 if numbers else 3), count=1, numbers=numbers, metric=metric, **given)
    assert (found.metrics[-1][metric] is None) == (metric in ("auroc", "r2"))


@pytest.mark.parametrize("count", [1, 2, 257, 513])
def test_a_loss_of_a_batch_is_given_a_single_example_only_if_there_is_no_other(count):
    """Its model may squeeze, too."""
    sizes = set()

    def batch_loss(model, batch):
        if not model.training:
            sizes.add(len(batch[0]))
        return functional.cross_entropy(model(batch[0]), batch[1])

    torch.manual_seed(4)
    model = Squeezing(3).layers if count == 1 else Squeezing(3)
    found = trained(model, count=count, batch_loss=batch_loss)
    assert (1 in sizes) == (count == 1)
    assert found.metrics[-1]["loss"] < float("inf")


@pytest.mark.parametrize(("count", "most"), [(0, 4), (1, 4), (4, 4), (5, 4), (9, 4), (10, 4), (3, 1), (3, 2), (2, 1)])
def test_parts_cover_all_examples_in_order(count, most):
    parts = spans(count, most)
    assert [row for start, stop in parts for row in range(start, stop)] == list(range(count))
    assert all(stop - start <= most for start, stop in parts)
    assert most == 1 or count == 1 or all(stop - start > 1 for start, stop in parts) or (count, most) == (3, 2)
