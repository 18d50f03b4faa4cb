"""Rounds and bits to a target loss, for every sketch family beside sending everything."""

from dataclasses import dataclass

from sketchfed.errors import InputError
from sketchfed.planner.curvature import curvature_alpha
from sketchfed.planner.problem import Analysis, Problem, check_analysis
from sketchfed.planner.theorems import best_rate, rounds_to
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import SKETCHES, Sketch

DENSE = "dense"
"""The row of a plan without a sketch."""


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """What the theorem promises for one family: take `rate`, and after `rounds` the expected loss is at the target."""

    family: str
    size: int
    alpha: float
    rate: float
    rounds: int
    bits: int
    """What one client sends until then, and as many it receives."""
    relative: float
    """`bits` as a multiple of the dense row's."""


def plan(
    problem: Problem,
    *,
    dim: int,
    size: int,
    target: float,
    local_steps: int = 1,
    bits_per_coefficient: int = 32,
    exact: bool = True,
    analysis: Analysis = "sharpened",
) -> list[PlanRow]:
    """Step size, rounds and bits to E f − f(w*) ≤ `target`: a row for sending everything, then one for each sketch family.

    Paper: Song et al. 2023, Cors 5.2 and 5.4, whose O(·) count the bits of all N clients; here they are one client's, each way,
    with constants. `exact` takes each family's `exact_alpha` instead of the published one; analysis "curvature" has its own.

    >>> rows = plan(Problem(smoothness=1.0, strong_convexity=0.1), dim=1024, size=64, target=1e-3)
    >>> [(row.family, row.rounds, row.relative) for row in rows if row.family in ("dense", "srht")]
    [('dense', 59, 1.0), ('srht', 992, 1.0508474576271187)]
    """
    check_analysis(analysis)
    if isinstance(bits_per_coefficient, bool) or not isinstance(bits_per_coefficient, int) or bits_per_coefficient < 1:
        raise InputError(f"bits_per_coefficient must be a positive integer, got {bits_per_coefficient!r}.")
    alphas = {DENSE: (dim, 0.0)}
    for name, family in SKETCHES.items():
        sketch = family(dim=dim, size=size, seed=PublicSeed(0))
        alphas[name] = size, _alpha(problem, sketch, exact=exact, analysis=analysis)
    rows: list[PlanRow] = []
    for name, (length, alpha) in alphas.items():
        rate = best_rate(problem, target=target, alpha=alpha, local_steps=local_steps, analysis=analysis)
        rounds = rounds_to(problem, target=target, alpha=alpha, rate=rate, local_steps=local_steps, analysis=analysis)
        bits = rounds * length * bits_per_coefficient
        relative = bits / rows[0].bits if rows and rows[0].bits else 1.0
        rows.append(PlanRow(family=name, size=length, alpha=alpha, rate=rate, rounds=rounds, bits=bits, relative=relative))
    return rows


def _alpha(problem: Problem, sketch: Sketch, *, exact: bool, analysis: Analysis) -> float:
    if analysis == "curvature":
        return curvature_alpha(problem, sketch)
    return sketch.exact_alpha if exact else sketch.alpha
