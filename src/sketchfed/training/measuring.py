"""The mean loss, the share of right answers, and metrics, over batches that are measured one after the other."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.training.base import Score
from sketchfed.training.metrics import METRICS, Metric, measured, metric_key, together
from sketchfed.training.objective import Objective


def measure(
    objective: Objective,
    parts: Iterable[Any],
    score: Callable[[Any], tuple[float, int]],
    outputs: Callable[[Any], Tensor],
    *,
    metrics: Sequence[str | Metric] = (),
    classes: bool = False,
) -> Score:
    """Means over all targets. `score` returns a batch's sum of losses and its right answers, and `outputs` the model's outputs.

    `classes` says whether there are right answers. Without them, the accuracy is None.
    """
    total, right, count = 0.0, 0, 0
    answers: list[tuple[Tensor, Tensor]] = []
    for part in parts:
        loss, hits = score(part)
        total, right, count = total + loss, right + hits, count + objective.weight(part)
        if metrics:
            inputs, targets = objective.pair(part)
            answers.append((outputs(inputs), targets))
    if not count:
        raise InputError("no position of it has a target. Every one is -100.")
    others = {metric_key(metric): _of_answers(objective, metric, answers) for metric in metrics}
    return Score(total / count, right / count if classes else None, others)


def _of_answers(objective: Objective, metric: str | Metric, answers: list[tuple[Tensor, Tensor]]) -> float | None:
    """A metric of all answers. Built-in metrics of classes see a row for each position."""
    if isinstance(metric, str) and METRICS.is_built_in(metric):
        answers = [objective.rows(outputs, targets) for outputs, targets in answers]
    return measured(metric, *together(answers, metric))
