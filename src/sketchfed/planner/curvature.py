"""A sharper α for problems whose curvature is concentrated in few directions."""

from sketchfed.errors import InputError
from sketchfed.planner.problem import Problem
from sketchfed.sketches import DirectSum, Sketch
from sketchfed.sketches.balanced import Balanced
from sketchfed.sketches.gaussian import Gaussian
from sketchfed.sketches.sampling import Sampling
from sketchfed.sketches.srht import Srht


def curvature_alpha(problem: Problem, sketch: Sketch) -> float:
    """The α for analysis "curvature": E[RᵀR·H·RᵀR] ⪯ (1 + α)·λ·I, where H ⪰ ∇²f has top eigenvalue λ.

    Not in the paper. The descent lemma behind its Theorem E.1 bounds E‖RᵀRg‖²·L by (1 + α)L‖g‖²; what the step really meets is
    gᵀ·E[RᵀR·H·RᵀR]·g. When the columns of R are of unit length and their inner products are uncorrelated with the same second
    moment v, that matrix is (1 + v)H + v·tr(H)·I − 2v·diag(H); for normal entries it is (1 + 1/b)H + tr(H)/b·I. So
    α = v·(1 + tr(H)/λ) will do, where `exact_alpha` has dim for tr(H)/λ. For `sampling` and for sketches made of blocks it is
    `exact_alpha`.
    """
    if problem.top_curvature is None or problem.total_curvature is None:
        raise InputError(
            "curvature_alpha needs the problem's top_curvature and total_curvature. Measure it, or use exact_alpha."
        )
    moment = _pair_moment(sketch)
    if moment is None or problem.top_curvature == 0:
        return sketch.exact_alpha
    return min(sketch.exact_alpha, moment * (1 + problem.total_curvature / problem.top_curvature))


def _pair_moment(sketch: Sketch) -> float | None:
    """E⟨Rᵢ, Rⱼ⟩² for two columns of R if it is the same for every pair, else None."""
    if isinstance(sketch, Gaussian):
        return sketch.exact_alpha / (sketch.dim + 1)
    blocks = (
        (isinstance(sketch, Srht) and (sketch.block is not None or sketch.transform != "hadamard"))
        or (isinstance(sketch, Balanced) and len(sketch.runs) > 2)
        or isinstance(sketch, Sampling | DirectSum)
    )
    return None if blocks or sketch.dim == 1 else sketch.exact_alpha / (sketch.dim - 1)
