"""The table [training] of a configuration."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The table [training]: functions of your own that train and evaluate the model, and options for them."""

    train: str | None = None
    """A function `train(model, data, context)`, as "package.module:function". It trains the model in place on a client's data.
    If absent, the built-in loop trains as [algorithm] says."""
    evaluate: str | None = None
    """A function `evaluate(model, data, context)` that returns metrics by name. The server calls it on the test data. If
    absent, a run with a loop of your own reports no metrics."""
    options: dict[str, Any] = field(default_factory=dict)
