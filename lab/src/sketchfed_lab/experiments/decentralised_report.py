"""The tables and the figures of `decentralised`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

LAST = 3
"""An accuracy is the mean of this many scores, because scores go up and down from round to round. Tuning does the same."""
COLUMNS = (
    *("round", "loss", "clients_accuracy", "clients_accuracy_worst", "accuracy", "consensus"),
    *("uplink_bytes", "node_bytes", "edge_bytes", "steps"),
)
"""The values at each point of a curve. The third is what is tuned: the mean over the nodes of their own accuracy."""


def point(line: Mapping[str, Any]) -> list[Any]:
    """A line of metrics as a point of a curve."""
    return [value if isinstance(value := line[name], int) else float(f"{value:.5g}") for name in COLUMNS]


def write(rows: Any, folder: Path) -> None:
    pass
