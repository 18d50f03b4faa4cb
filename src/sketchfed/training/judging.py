"""Measures a model on one client's own data, with the parts of the model that stay with the client."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sketchfed.devices import CPU, moved
from sketchfed.training.base import Examples
from sketchfed.training.losses import Loss
from sketchfed.training.measuring import measure
from sketchfed.training.memory import Turn
from sketchfed.training.metrics import Metric
from sketchfed.training.objective import Objective, OnDevice, objective_of, outputs_of
from sketchfed.training.own import Evaluate, evaluated
from sketchfed.training.own_parts import with_own_parts

_CHUNK = 256  # examples measured at a time


class Judged(NamedTuple):
    """The data on which a client is evaluated."""

    examples: Any
    """As the built-in loop reads it. None if a loop of the user's own trains."""
    content: Any
    """As `evaluate` gets it."""


@dataclass(frozen=True, kw_only=True)
class Judge:
    """What is measured on a client: loss, accuracy and named metrics of the built-in loop, and what `evaluate` returns.

    Metrics of the same name are those of `evaluate`. It is thread-safe.
    """

    module: nn.Module
    loss: str | Loss | Objective | None = None
    """The loss of the built-in loop. None if a loop of the user's own trains."""
    classes: bool = False
    """Whether the share of correct answers is measured."""
    metrics: Sequence[str | Metric] = ()
    evaluate: Evaluate | None = None
    name: str = "evaluate"
    settings: Mapping[str, Any] = field(default_factory=dict)
    device: torch.device = CPU

    def __call__(self, weights: Tensor, data: Judged, turn: Turn) -> dict[str, float | None]:
        """The metrics by name. None for those that are not finite."""
        found = {} if self.loss is None else self._built_in(weights, data.examples, turn)
        if self.evaluate is not None:
            about: dict[str, Any] = {"settings": self.settings, "turn": turn, "name": self.name, "device": self.device}
            found |= evaluated(self.evaluate, self.module, weights, data.content, on_client=True, **about)
        return {name: value if value is not None and math.isfinite(value) else None for name, value in found.items()}

    def _built_in(self, weights: Tensor, examples: Any, turn: Turn) -> dict[str, float | None]:
        module = with_own_parts(self.module, weights, turn.kept).to(self.device)
        objective = objective_of(self.loss or "")
        there = OnDevice(objective, self.device)
        with torch.no_grad():
            found = measure(
                objective,
                _parts(examples),
                lambda part: there.score(module, part),
                lambda inputs: outputs_of(module, moved(inputs, self.device)).cpu(),
                metrics=self.metrics,
                classes=self.classes,
            )
        accuracy = {"accuracy": found.accuracy} if self.classes else {}
        return {"loss": found.loss} | accuracy | dict(found.others)


def _parts(examples: Any) -> Iterator[Any]:
    if isinstance(examples, Examples):
        return (examples.part(start, start + _CHUNK) for start in range(0, examples.size, _CHUNK))
    chunks: Iterator[Any] = examples.chunks(_CHUNK)
    return chunks
