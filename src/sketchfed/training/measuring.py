"""Measures a model on examples in parts: the mean loss, the share of right answers, and metrics of outputs and targets."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.training.metrics import METRICS, Metric, measured, metric_key, together
from sketchfed.training.objective import OfBatch, OfOutputs
from sketchfed.training.pairs import OfPairs


class Measured(NamedTuple):
    """The mean loss over all examples, or over all positions that have a target. `right` is the share of right answers."""

    loss: float
    right: float
    metrics: dict[str, float | None]


def measured_in_parts(
    parts: Iterable[Any],
    objective: OfBatch | OfOutputs | OfPairs,
    metrics: Sequence[str | Metric],
    *,
    score: Callable[[Any], tuple[float, int]],
    outputs: Callable[[Any], Tensor],
) -> Measured:
    """Measure a model. `score` gives the sum of losses and the right answers of a part, and `outputs` the model's outputs."""
    total, right, count = 0.0, 0, 0
    answers: list[tuple[Tensor, Tensor]] = []
    for part in parts:
        loss, hits = score(part)
        total, right, count = total + loss, right + hits, count + objective.weight(part)
        if metrics and not isinstance(objective, OfBatch):
            inputs, targets = objective.pair(part)
            answers.append((outputs(inputs), targets))
    if not count:
        raise InputError("no position of it has a target. Every one is -100.")
    named = {metric_key(metric): _metric(metric, objective, answers) for metric in metrics if answers}
    return Measured(total / count, right / count, named)


def _metric(metric: str | Metric, objective: Any, answers: Sequence[tuple[Tensor, Tensor]]) -> float | None:
    """A metric of all answers. Built-in metrics of classes see a row for each position."""
    if isinstance(metric, str) and METRICS.is_built_in(metric) and isinstance(objective, OfPairs):
        answers = [objective.rows(outputs, targets) for outputs, targets in answers]
    return measured(metric, *together(answers, metric))
