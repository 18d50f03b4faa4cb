"""Runs: training from start to end. A run can be kept in a folder, from which it resumes with bitwise equal results."""

from sketchfed.runs.captured import captured_share, descent, training_sample
from sketchfed.runs.folder import RunFolder
from sketchfed.runs.hosts import Host
from sketchfed.runs.problem import FederatedProblem
from sketchfed.runs.result import Run
from sketchfed.runs.starting import resume, run
from sketchfed.runs.sweeping import CURVE, Case, Row, read_rows, sweep, trained
from sketchfed.runs.workload import Workload

__all__ = [
    "CURVE",
    "Case",
    "FederatedProblem",
    "Host",
    "Row",
    "Run",
    "RunFolder",
    "Workload",
    "captured_share",
    "descent",
    "read_rows",
    "resume",
    "run",
    "sweep",
    "trained",
    "training_sample",
]
