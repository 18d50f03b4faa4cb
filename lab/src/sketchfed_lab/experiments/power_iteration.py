"""Distributed power iteration with every codec: errors of means and eigenvector (Jiang et al. 2023, Figs. 4, 5, 8, 11)."""

from pathlib import Path

from sketchfed_lab.experiments.tasks import Settings, run_task

__all__ = ["Settings", "run"]


def run(settings: Settings, folder: Path) -> None:
    """Measure and write it up."""
    run_task("power-iteration", settings, folder)
