"""A function of the user's own that evaluates the model between rounds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sketchfed.devices import CPU
from sketchfed.errors import InputError
from sketchfed.runs.workload import KEYS
from sketchfed.seeds import PublicSeed
from sketchfed.training.memory import Turn
from sketchfed.training.own import Evaluate, evaluated
from sketchfed.vectors import flatten

SHOWN = ("loss", "accuracy")
"""The metrics that have columns of their own. All others get one each."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A function `evaluate(model, data, context)`, and what it is called with."""

    function: Evaluate
    name: str
    module: nn.Module
    data: Any
    """The server's test data. It may be None if the function is called on clients."""
    on_clients: bool = False
    """Whether the function is called on clients, too."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    device: torch.device = CPU

    def __post_init__(self) -> None:
        check_tested(self.data, on_clients=self.on_clients)

    def others(self, taken: tuple[str, ...] = KEYS) -> tuple[str, ...]:
        """The names of the metrics besides loss and accuracy. The function is tried on the first weights."""
        found = tuple(name for name in self.measured(flatten(self.module), 0) if name not in SHOWN)
        if both := set(found) & set(taken):
            raise InputError(
                f"metrics.jsonl already has a column '{min(both)}'. Give the metric of '{self.name}' another name."
            )
        return found

    def measured(self, weights: Tensor, index: int, seed: PublicSeed | None = None) -> dict[str, float | None]:
        """The metrics after `index` rounds. Empty without test data."""
        if self.data is None:
            return {}
        turn = Turn(seed=(seed or PublicSeed(0)).child("evaluation", index), round=index)
        called: dict[str, Any] = {"settings": self.settings, "turn": turn, "name": self.name, "device": self.device}
        return evaluated(self.function, self.module, weights, self.data, **called)

    def expected(self, found: Mapping[str, float | None], others: tuple[str, ...]) -> dict[str, float | None]:
        """The metrics besides loss and accuracy. Raise `InputError` unless they have these names."""
        own = {name: value for name, value in found.items() if name not in SHOWN}
        if own.keys() != set(others):
            raise InputError(
                f"'{self.name}' returned the metrics {sorted(own)}, and before round 1 it returned {sorted(others)}. Return "
                "the same ones each time."
            )
        return own


def check_tested(test: Any, *, on_clients: bool) -> None:
    """Refuse a function for evaluation that would never be called."""
    if test is None and not on_clients:
        raise InputError(
            "evaluate needs test data. Pass test as well, set evaluate_clients = true in [training] to evaluate on the data of "
            "clients, or remove evaluate."
        )
