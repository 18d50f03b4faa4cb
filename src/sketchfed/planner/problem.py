"""What the theorems need to know of an optimisation problem."""

import math
from dataclasses import dataclass
from typing import Literal

from sketchfed.errors import InputError, UnknownNameError

Analysis = Literal["published", "sharpened", "curvature"]
"""Which version of a theorem is asked; `docs/planner.md` compares them."""

ANALYSES: dict[str, str] = {
    "published": "as printed in Song et al. 2023",
    "sharpened": "the same proof without its slack",
    "curvature": "one local step, with the trace of the Hessian in place of its dimension",
}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Constants of f = (1/N)·Σ f_c, clients weighted alike, and of the starting point w⁰.

    Paper: Song et al. 2023, Assumption 3.1 and Def. F.1. Its second inequality has a wrong sign: the middle is meant to be
    f_c(y) − f_c(x) − ⟨y − x, ∇f_c(x)⟩.
    """

    smoothness: float
    """L: every client's f_c is L-smooth, so this is the largest over the clients."""
    strong_convexity: float = 0.0
    """μ: every f_c is μ-strongly convex; 0 is plain convexity."""
    heterogeneity: float = 0.0
    """σ² = (1/N)·Σ ‖∇f_c(w*)‖²: how far clients disagree at the common optimum w*."""
    square_distance: float = 1.0
    """‖w⁰ − w*‖²."""
    gap: float | None = None
    """f(w⁰) − f(w*), where known."""
    top_curvature: float | None = None
    """The largest eigenvalue of a matrix H ⪰ ∇²f(w) for all w: the smoothness of the mean f, at most L."""
    total_curvature: float | None = None
    """The trace of the same H."""

    def __post_init__(self) -> None:
        _refuse_unless_positive("smoothness", self.smoothness)
        for name in ("strong_convexity", "heterogeneity", "square_distance", "gap", "top_curvature", "total_curvature"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name} must be a finite number from 0, got {value!r}.")
        if self.strong_convexity > self.smoothness:
            raise InputError(
                f"strong_convexity {self.strong_convexity:g} exceeds smoothness {self.smoothness:g}; no function "
                "curves at least that much and at most this much. Check which is which."
            )
        if (self.top_curvature is None) != (self.total_curvature is None):
            raise InputError("top_curvature and total_curvature belong to one matrix: give both or neither.")

    @property
    def strongly_convex(self) -> bool:
        return self.strong_convexity > 0


def check_alpha(alpha: float) -> None:
    if not (math.isfinite(alpha) and alpha >= 0):
        raise InputError(
            f"alpha must be a finite number from 0 (no sketch), got {alpha!r}. A sketch knows it: sketch.exact_alpha."
        )


def check_steps(local_steps: int, rounds: int = 0) -> None:
    for name, value, least in (("local_steps", local_steps, 1), ("rounds", rounds, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{name} must be an integer from {least}, got {value!r}.")


def check_analysis(analysis: str) -> None:
    if analysis not in ANALYSES:
        raise UnknownNameError("analysis", analysis, ANALYSES)


def check_rates(rate: float, global_rate: float = 1.0) -> None:
    _refuse_unless_positive("rate", rate)
    _refuse_unless_positive("global_rate", global_rate)


def check_target(target: float) -> None:
    _refuse_unless_positive("target", target)


def _refuse_unless_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} must be a finite number above 0, got {value!r}.")
