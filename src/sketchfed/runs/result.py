"""The result of a run."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sketchfed.config import Config


@dataclass(frozen=True, kw_only=True)
class Run:
    """The result of a run."""

    config: Config
    label: str
    model: str
    dim: int
    clients: int
    metrics: list[dict[str, Any]] = field(repr=False)
    """One mapping per round. It holds `round`, `loss` and `accuracy` (None if the round was not scored), `participants`, and
    totals since the start: `uplink_bytes`, `downlink_bytes`, `broadcast_bytes` (what a client that never misses a round
    receives), `epsilon` and `seconds`. `captured` is the share of the gradient's energy that the round's packets carry, if the
    algorithm adapts to the gradients. It is measured on the data without noise, for the operator of a simulation, not for
    publication. Runs without a server have further columns, such as `consensus` and `farthest_accuracy`; `accuracy` is then
    that of the mean of the nodes' models."""
    weights: Tensor = field(repr=False)
    """The final weights. Without a server, the mean over all nodes."""
    module: nn.Module = field(repr=False)
    """The trained model."""
    folder: Path | None = None

    @property
    def accuracy(self) -> float | None:
        """The accuracy of the last round that was scored."""
        return next((line["accuracy"] for line in reversed(self.metrics) if line["loss"] is not None), None)

    @property
    def loss(self) -> float | None:
        return next((line["loss"] for line in reversed(self.metrics) if line["loss"] is not None), None)
