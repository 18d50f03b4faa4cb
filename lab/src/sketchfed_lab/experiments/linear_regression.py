"""Distributed linear regression with every codec: errors of gradients and the loss (Jiang et al. 2023, Figs. 4, 5, 10, 13)."""

from dataclasses import dataclass
from pathlib import Path

from sketchfed_lab.experiments import tasks


@dataclass(frozen=True, kw_only=True)
class Settings(tasks.Settings):
    """The grid, and the step size."""

    rate: float


def run(settings: Settings, folder: Path) -> None:
    """Measure and write it up."""
    tasks.run_task("linear-regression", settings, folder, rate=settings.rate)
