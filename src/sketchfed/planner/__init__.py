"""Before training: what theory says of step sizes, rounds and bits, with the constants of your problem."""

from sketchfed.planner.cost import DENSE, PlanRow, plan
from sketchfed.planner.curvature import curvature_alpha
from sketchfed.planner.measured import regression_on
from sketchfed.planner.problem import ANALYSES, Analysis, Problem, check_analysis
from sketchfed.planner.regression import LinearRegression, LogisticRegression, Regression
from sketchfed.planner.simulate import SketchAt, Snapshot, simulate
from sketchfed.planner.theorems import (
    admissible_rate,
    best_rate,
    convex_bound,
    rounds_to,
    stationary_bound,
    strongly_convex_bound,
)

__all__ = [
    "ANALYSES",
    "DENSE",
    "Analysis",
    "LinearRegression",
    "LogisticRegression",
    "PlanRow",
    "Problem",
    "Regression",
    "SketchAt",
    "Snapshot",
    "admissible_rate",
    "best_rate",
    "check_analysis",
    "convex_bound",
    "curvature_alpha",
    "plan",
    "regression_on",
    "rounds_to",
    "simulate",
    "stationary_bound",
    "strongly_convex_bound",
]
