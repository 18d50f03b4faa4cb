"""Distributed k-means with every codec: errors of centroids and the loss (Jiang et al. 2023, Figs. 4, 5, 9, 12)."""

from pathlib import Path

from sketchfed_lab.experiments.tasks import Settings, run_task

__all__ = ["Settings", "run"]


def run(settings: Settings, folder: Path) -> None:
    """Measure and write it up."""
    run_task("k-means", settings, folder)
