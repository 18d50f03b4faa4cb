"""Built-in metrics, against formulas written out."""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch.nn import functional

from sketchfed.errors import UnknownNameError
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


# Positions and several labels, against scikit-learn -----------------------------------------------------------------------

SCORES = torch.randn(30, 5, 4, generator=torch.Generator().manual_seed(5))  # classes in dimension 1
KINDS = torch.randint(0, 5, (30, 4), generator=torch.Generator().manual_seed(6))
KINDS[::3, 2] = -100
KNOWN = KINDS[KINDS != -100].numpy()
SHARES = torch.softmax(SCORES.movedim(1, -1)[KINDS != -100].double(), 1).numpy()


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("accuracy", sk.accuracy_score(KNOWN, SHARES.argmax(1))),
        ("f1", sk.f1_score(KNOWN, SHARES.argmax(1), average="macro")),
        ("auroc", sk.roc_auc_score(KNOWN, SHARES, multi_class="ovr")),
        ("perplexity", np.exp(sk.log_loss(KNOWN, SHARES))),
        *((f"top{k}", sk.top_k_accuracy_score(KNOWN, SHARES, k=k)) for k in (1, 2, 3, 4)),
        ("top7", 1.0),
    ],
)
def test_positions_count_where_they_have_a_target(name, expected, last):
    assert METRICS[name](SCORES.movedim(1, -1) if last else SCORES, KINDS) == pytest.approx(expected)


LOGITS = torch.randn(40, 3, generator=torch.Generator().manual_seed(7))
APPLY = (torch.randn(40, 3, generator=torch.Generator().manual_seed(8)) > 0).float()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("accuracy", 1 - sk.hamming_loss(APPLY, LOGITS > 0)),
        ("f1", sk.f1_score(APPLY, LOGITS > 0, average="macro")),
        ("auroc", sk.roc_auc_score(APPLY, LOGITS, average="macro")),
    ],
)
def test_several_labels_count_each(name, expected):
    assert METRICS[name](LOGITS, APPLY) == pytest.approx(expected)


def test_labels_that_always_apply_have_no_curve():
    apply = APPLY.clone()
    apply[:, 1] = 1.0
    expected = np.mean([sk.roc_auc_score(apply[:, label], LOGITS[:, label]) for label in (0, 2)])
    assert METRICS["auroc"](LOGITS, apply) == pytest.approx(expected)
    assert math.isnan(METRICS["auroc"](LOGITS, torch.ones(40, 3)))


@pytest.mark.parametrize("name", ["accuracy", "top2", "f1", "auroc", "perplexity"])
def test_metrics_of_no_target_have_no_value(name):
    assert math.isnan(METRICS[name](SCORES, torch.full((30, 4), -100)))


@pytest.mark.parametrize("name", ["mse", "mae", "r2"])
def test_numbers_of_another_shape_are_not_broadcast(name):
    with pytest.raises(ValueError, match="both must have one shape"):
        METRICS[name](torch.zeros(4, 1), torch.zeros(4))


@pytest.mark.parametrize("name", ["top", "top0", "top-1", "top1.5", "topk"])
def test_top_needs_a_number(name):
    with pytest.raises(UnknownNameError, match=r"top2 \(or another number\)"):
        METRICS[name]
    assert name not in METRICS
