"""Runs: training from start to end, kept in a folder from which it can be resumed bit for bit."""

from sketchfed.runs.folder import RunFolder
from sketchfed.runs.loop import resume, run
from sketchfed.runs.result import Run

__all__ = ["Run", "RunFolder", "resume", "run"]
