"""Metrics by name. Besides the loss, metrics score a model on held-out data."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sketchfed.errors import InputError
from sketchfed.parts import Registry, short
from sketchfed.training.positions import counted, several_labels

Metric = Callable[[Tensor, Tensor], Tensor | float]
"""A function from the model's outputs and the targets of all held-out examples to one number."""


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of targets for which the output of the correct class is the largest, or of labels that are right."""
    if several_labels(outputs, targets):
        return _share((outputs > 0) == (targets > 0.5))
    scores, classes = counted(outputs, targets)
    return _share(scores.argmax(1) == classes)


@dataclass(frozen=True)
class Top:
    """The share of targets whose correct class is among the `count` with the largest outputs."""

    count: int

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        scores, classes = counted(outputs, targets)
        best = scores.topk(min(self.count, scores.shape[1])).indices
        return _share((best == classes[:, None]).any(1))


def f1(outputs: Tensor, targets: Tensor) -> float:
    """The F1 score of each class or label, averaged over the classes that are there or were predicted, or over the labels."""
    from sklearn.metrics import f1_score  # a second to import

    if several_labels(outputs, targets):
        said, true = (part.reshape(len(part), -1).numpy() for part in (outputs > 0, targets > 0.5))
        return float(f1_score(true, said, average="macro" if true.shape[1] > 1 else "binary", zero_division=0.0))
    scores, classes = counted(outputs, targets)
    if not len(classes):
        return math.nan
    return float(f1_score(classes.numpy(), scores.argmax(1).numpy(), average="macro", zero_division=0.0))


def auroc(outputs: Tensor, targets: Tensor) -> float:
    """The area under the ROC curve of each class against the rest, averaged over the classes that are there, or of each label,
    averaged over those that apply to some examples and not to others.
    """
    from sklearn.metrics import roc_auc_score  # a second to import

    if several_labels(outputs, targets):
        shares, true = outputs.reshape(len(outputs), -1).double().numpy(), (targets > 0.5).reshape(len(targets), -1).numpy()
        columns = [(true[:, label], shares[:, label]) for label in range(true.shape[1])]
    else:
        scores, counted_classes = counted(outputs, targets)
        shares, classes = torch.softmax(scores.double(), 1).numpy(), counted_classes.numpy()
        columns = [(classes == label, shares[:, label]) for label in np.unique(classes)]
    areas = [roc_auc_score(true, share) for true, share in columns if true.any() and not true.all()]
    return float(np.mean(areas)) if areas else math.nan


def perplexity(outputs: Tensor, targets: Tensor) -> float:
    """The exponential of the mean cross-entropy of the targets."""
    scores, classes = counted(outputs, targets)
    return math.exp(min(float(functional.cross_entropy(scores.double(), classes)), 700.0)) if len(classes) else math.nan


def _share(right: Tensor) -> float:
    return int(right.sum()) / right.numel() if right.numel() else math.nan


def _errors(outputs: Tensor, targets: Tensor) -> Tensor:
    if outputs.shape != targets.shape:
        raise ValueError("both must have one shape, or one would be broadcast to the other")
    return (outputs - targets).double()


def mse(outputs: Tensor, targets: Tensor) -> float:
    """The mean square of all errors."""
    return float(_errors(outputs, targets).square().mean())


def mae(outputs: Tensor, targets: Tensor) -> float:
    """The mean size of all errors."""
    return float(_errors(outputs, targets).abs().mean())


def r2(outputs: Tensor, targets: Tensor) -> float:
    """The share of the targets' variance that the outputs explain, averaged over the numbers of a target."""
    if len(targets) < 2:
        return math.nan  # one example has no variance
    from sklearn.metrics import r2_score  # a second to import

    _errors(outputs, targets)  # refuses shapes that differ
    return float(r2_score(targets.reshape(len(targets), -1).numpy(), outputs.reshape(len(outputs), -1).numpy()))


class _Metrics(Registry[Metric]):
    """All metrics by name. `top5` stands for all of its kind: `top2`, `top3` and so on are metrics as well."""

    def __getitem__(self, name: str) -> Metric:
        return Top(int(name[3:])) if self._is_top(name) else super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        return self._is_top(name) or super().__contains__(name)

    def is_built_in(self, name: object) -> bool:
        return self._is_top(name) or super().is_built_in(name)

    def choices(self) -> list[str]:
        return ["top2 (or another number)" if name == "top5" else name for name in super().choices()]

    @staticmethod
    def _is_top(name: object) -> bool:
        return isinstance(name, str) and re.fullmatch(r"top[1-9][0-9]{0,5}", name) is not None


METRICS: Registry[Metric] = _Metrics(
    "metric",
    {"top5": Top(5)} | {function.__name__: function for function in (accuracy, f1, auroc, perplexity, mse, mae, r2)},
    group="sketchfed.metrics",
)
FOR_REGRESSION = ("mse", "mae", "r2")
"""The built-in metrics of numbers."""
FOR_LABELS = ("accuracy", "f1", "auroc")
"""The built-in metrics for examples to which several labels may apply. All of these, and the rest, are for classes."""


def suits(metric: str, task: str) -> bool:
    """Whether a built-in metric is for such targets."""
    if task == "labels":
        return metric in FOR_LABELS
    return (metric in FOR_REGRESSION) == (task == "regression")


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


def together(answers: Sequence[tuple[Tensor, Tensor]], metric: str | Metric) -> tuple[Tensor, Tensor]:
    """The outputs and targets of all batches."""
    if len({(outputs.shape[1:], targets.shape[1:]) for outputs, targets in answers}) > 1:
        raise InputError(
            f"metric '{metric_key(metric)}' takes the outputs of all batches as one tensor, and their shapes differ. Use a "
            "built-in metric, or measure it in evaluate(model, data, context)."
        )
    outputs, targets = zip(*answers, strict=True)
    return torch.cat(outputs), torch.cat(targets)


def measured(metric: str | Metric, outputs: Tensor, targets: Tensor) -> float | None:
    """The value of a metric. None if it is not finite, because JSON cannot represent NaN and infinity."""
    function = metric_named(metric)
    try:
        value = float(function(outputs, targets))
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise InputError(
            f"metric '{metric_key(metric)}' cannot score outputs of shape {tuple(outputs.shape)} against targets of shape "
            f"{tuple(targets.shape)}: {error}. A metric is a function of all outputs and all targets that returns one number."
        ) from error
    return value if math.isfinite(value) else None
