"""What is written of accuracy at equal ε."""

from collections.abc import Sequence
from pathlib import Path

from sketchfed.experiments.arms import Row


def write(results: Sequence[Row], folder: Path) -> None:
    for row in results:
        print(row["key"], row["curve"][-1][2], row.get("epsilon"))
