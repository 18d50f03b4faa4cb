"""Built-in metrics, against formulas written out."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from sketchfed.training import METRICS

OUTPUTS = torch.randn(60, 7, generator=torch.Generator().manual_seed(1))
CLASSES = torch.randint(0, 6, (60,), generator=torch.Generator().manual_seed(2))  # class 6 is never right


def of_pairs(scores: np.ndarray, positive: np.ndarray) -> float:
    """The share of pairs of a positive and a negative example in which the positive one scores higher."""
    above = scores[positive][:, None] - scores[~positive][None, :]
    return float(((above > 0) + (above == 0) / 2).mean())


def test_top5_and_accuracy_count_examples():
    order = OUTPUTS.argsort(1, descending=True)
    assert METRICS["top5"](OUTPUTS, CLASSES) == sum(int(y in row[:5]) for row, y in zip(order, CLASSES, strict=True)) / 60
    assert METRICS["accuracy"](OUTPUTS, CLASSES) == int((order[:, 0] == CLASSES).sum()) / 60
    assert METRICS["top5"](OUTPUTS[:, :3], CLASSES % 3) == 1.0


def test_f1_is_the_mean_over_classes_of_the_harmonic_mean_of_precision_and_recall():
    said, scores = OUTPUTS.argmax(1), []
    for label in set(said.tolist()) | set(CLASSES.tolist()):
        right = int(((said == label) & (label == CLASSES)).sum())
        scores.append(2 * right / (int((said == label).sum()) + int((label == CLASSES).sum())))
    assert METRICS["f1"](OUTPUTS, CLASSES) == pytest.approx(np.mean(scores))


def test_auroc_is_the_share_of_pairs_in_the_right_order_averaged_over_classes():
    shares = torch.softmax(OUTPUTS.double(), 1).numpy()
    expected = np.mean([of_pairs(shares[:, label], (label == CLASSES).numpy()) for label in range(6)])
    assert METRICS["auroc"](OUTPUTS, CLASSES) == pytest.approx(expected)
    assert math.isnan(METRICS["auroc"](OUTPUTS, torch.zeros(60, dtype=torch.int64)))


def test_perplexity_is_the_exponential_of_the_cross_entropy_and_never_overflows():
    expected = functional.cross_entropy(OUTPUTS, CLASSES).exp()
    assert METRICS["perplexity"](OUTPUTS, CLASSES) == pytest.approx(float(expected), rel=1e-5)
    assert METRICS["perplexity"](OUTPUTS * 1e6, CLASSES) < float("inf")


@pytest.mark.parametrize("shape", [(40,), (40, 1), (40, 3), (40, 2, 2)])
def test_errors_of_numbers_of_any_shape(shape):
    targets = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    outputs = targets + 0.1 * torch.randn(shape, generator=torch.Generator().manual_seed(4))
    error = (outputs - targets).double()
    assert METRICS["mse"](outputs, targets) == pytest.approx(float(error.square().mean()))
    assert METRICS["mae"](outputs, targets) == pytest.approx(float(error.abs().mean()))
    spread = (targets - targets.mean(0)).double().square().sum(0)
    assert METRICS["r2"](outputs, targets) == pytest.approx(float((1 - error.square().sum(0) / spread).mean()), abs=1e-6)
    assert METRICS["r2"](targets, targets) == 1.0
