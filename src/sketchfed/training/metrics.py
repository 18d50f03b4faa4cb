"""Metrics by name. Besides the loss, metrics score a model on held-out data."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sketchfed.errors import InputError
from sketchfed.parts import Registry, short

Metric = Callable[[Tensor, Tensor], Tensor | float]
"""A function from the model's outputs and the targets of all held-out examples to one number."""


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of examples for which the output of the correct class is the largest."""
    return int((outputs.argmax(1) == targets).sum()) / len(targets)


def top5(outputs: Tensor, targets: Tensor) -> float:
    """The share of examples whose correct class is among the five with the largest outputs."""
    best = outputs.topk(min(5, outputs.shape[1])).indices
    return int((best == targets[:, None]).any(1).sum()) / len(targets)


def f1(outputs: Tensor, targets: Tensor) -> float:
    """The F1 score of each class, averaged over the classes that are there or were predicted."""
    from sklearn.metrics import f1_score  # a second to import

    return float(f1_score(targets.numpy(), outputs.argmax(1).numpy(), average="macro", zero_division=0.0))


def auroc(outputs: Tensor, targets: Tensor) -> float:
    """The area under the ROC curve of each class against the rest, averaged over the classes that are there."""
    from sklearn.metrics import roc_auc_score  # a second to import

    shares, classes = torch.softmax(outputs.double(), 1).numpy(), targets.numpy()
    areas = [roc_auc_score(classes == label, shares[:, label]) for label in np.unique(classes) if not (classes == label).all()]
    return float(np.mean(areas)) if areas else math.nan


def perplexity(outputs: Tensor, targets: Tensor) -> float:
    """The exponential of the mean cross-entropy."""
    return math.exp(min(float(functional.cross_entropy(outputs.double(), targets)), 700.0))


def mse(outputs: Tensor, targets: Tensor) -> float:
    """The mean square of all errors."""
    return float((outputs - targets).double().square().mean())


def mae(outputs: Tensor, targets: Tensor) -> float:
    """The mean size of all errors."""
    return float((outputs - targets).double().abs().mean())


def r2(outputs: Tensor, targets: Tensor) -> float:
    """The share of the targets' variance that the outputs explain, averaged over the numbers of a target."""
    if len(targets) < 2:
        return math.nan  # one example has no variance
    from sklearn.metrics import r2_score  # a second to import

    return float(r2_score(targets.reshape(len(targets), -1).numpy(), outputs.reshape(len(outputs), -1).numpy()))


METRICS: Registry[Metric] = Registry(
    "metric",
    {function.__name__: function for function in (accuracy, top5, f1, auroc, perplexity, mse, mae, r2)},
    group="sketchfed.metrics",
)
FOR_REGRESSION = ("mse", "mae", "r2")
"""The built-in metrics of numbers. All others are of classes."""


def metric_named(metric: str | Metric) -> Metric:
    return metric if callable(metric) else METRICS[metric]


def metric_key(metric: str | Metric) -> str:
    """The key of a metric in a line of metrics.jsonl: its short name, or the name of its function.

    >>> metric_key("my_package.metrics:f1")
    'f1'
    """
    if callable(metric):
        return str(getattr(metric, "__name__", type(metric).__name__))
    return short(metric)


def measured(metric: str | Metric, outputs: Tensor, targets: Tensor) -> float | None:
    """The value of a metric. None if it is not finite, because JSON cannot represent NaN and infinity."""
    try:
        value = float(metric_named(metric)(outputs, targets))
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise InputError(
            f"metric '{metric_key(metric)}' cannot score outputs of shape {tuple(outputs.shape)} against targets of shape "
            f"{tuple(targets.shape)}: {error}. A metric is a function of all outputs and all targets that returns one number."
        ) from error
    return value if math.isfinite(value) else None
