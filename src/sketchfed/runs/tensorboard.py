"""Writes metrics for TensorBoard, an optional extra."""

from pathlib import Path
from typing import Any, Self

from sketchfed.errors import InputError


def writer() -> Any:
    """Return the class that writes events, or raise an error if TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("TensorBoard is not installed. Install it: pip install 'sketchfed[tensorboard]'.") from None
    return SummaryWriter


class Board:
    """Writes each round as events. Events of rounds beyond `after` that an interrupted run left behind are overwritten."""

    def __init__(self, folder: Path, *, after: int) -> None:
        self._writer = writer()(str(folder), purge_step=after + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def __call__(self, line: dict[str, Any]) -> None:
        for name, value in line.items():
            if name != "round" and value is not None:
                self._writer.add_scalar(name, value, line["round"])
        self._writer.flush()
