"""What a run came to."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sketchfed.config import Config


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run came to."""

    config: Config
    label: str
    model: str
    dim: int
    clients: int
    metrics: list[dict[str, Any]] = field(repr=False)
    """A line a round: round, loss, accuracy (None where it was not scored), participants, and since the start uplink_bytes,
    downlink_bytes, broadcast_bytes (what a client that never misses a round receives), epsilon and seconds. `captured` is the
    share of the gradient's energy that the round's packets carry, where the algorithm adapts to the gradients; it is measured
    on the data without noise, for the operator of a simulation, not for publication."""
    weights: Tensor = field(repr=False)
    module: nn.Module = field(repr=False)
    """The trained model."""
    folder: Path | None = None

    @property
    def accuracy(self) -> float | None:
        """That of the last round that was scored."""
        return next((line["accuracy"] for line in reversed(self.metrics) if line["loss"] is not None), None)

    @property
    def loss(self) -> float | None:
        return next((line["loss"] for line in reversed(self.metrics) if line["loss"] is not None), None)
