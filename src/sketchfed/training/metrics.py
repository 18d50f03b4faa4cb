"""Metrics by name. Besides the loss, a metric scores a model on held-out data."""

import math
from collections.abc import Callable

from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.parts import Registry, short

Metric = Callable[[Tensor, Tensor], Tensor | float]
"""A function from the model's outputs and the targets of all held-out examples to one number."""


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of examples for which the output of the correct class is the largest."""
    return int((outputs.argmax(1) == targets).sum()) / len(targets)


METRICS: Registry[Metric] = Registry("metric", {"accuracy": accuracy}, group="sketchfed.metrics")


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
