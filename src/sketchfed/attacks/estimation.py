"""A client's estimates of the server's step, from two broadcasts of sketched weights.

Paper: Zhang & Wang 2021, Secs. 5.1 and 6.3. The weights W (out × dim) of a layer are broadcast as W̃ = WS with S = Rᵀ, a fresh
sketch each time, and the client looks for the step Δ = W_old − W_new. What the estimates cost is in `theorems`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.sketches import Sketch


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """One layer of a broadcast as clients see it: the sketched weights, `rows` (out × size), and the sketch."""

    rows: Tensor
    sketch: Sketch

    def __post_init__(self) -> None:
        if self.rows.ndim != 2 or self.rows.shape[1] != self.sketch.size:
            raise InputError(
                f"a layer is seen as rows of {self.sketch.size:,} coefficients, the size of its sketch, got shape "
                f"{tuple(self.rows.shape)}. Reshape it to (outputs, {self.sketch.size})."
            )


Estimate = Callable[[Seen, Seen], Tensor]
"""Estimates the step (out × dim) from the broadcasts before and after it."""


def by_adjoint(old: Seen, new: Seen) -> Tensor:
    """Option I, W̃_old·S_oldᵀ − W̃_new·S_newᵀ: unbiased for fixed weights."""
    return old.sketch.adjoint(old.rows) - new.sketch.adjoint(new.rows)


def by_pseudo_inverse(old: Seen, new: Seen) -> Tensor:
    """Option II, W̃_old·S_old† − W̃_new·S_new†. Each term is the shortest matrix with this sketch, so it is too short."""
    return _least(old) - _least(new)


ESTIMATES: dict[str, Estimate] = {"adjoint": by_adjoint, "pseudo-inverse": by_pseudo_inverse}


def _least(seen: Seen) -> Tensor:
    """W̃S† with S† = (SᵀS)†Sᵀ. An empty bucket says nothing and contributes nothing: 0† = 0."""
    rows, sketch = seen.rows, seen.sketch
    if sketch.orthogonal:
        loads = sketch.loads.to(rows)
        return sketch.adjoint(torch.where(loads > 0, rows / loads.clamp(min=torch.finfo(loads.dtype).tiny), 0))
    gram = sketch.apply(sketch.adjoint(torch.eye(sketch.size, dtype=torch.float64, device=rows.device)))
    inverse = torch.linalg.pinv(gram, hermitian=True)  # rows of R may coincide or be zero
    return sketch.adjoint((rows.to(torch.float64) @ inverse).to(rows.dtype))


def relative_error(estimate: Tensor, truth: Tensor) -> float:
    """‖Δ̂ − Δ‖ / ‖Δ‖ over all entries (Sec. 6.3): 1 for a guess of all zeros."""
    return float((estimate - truth).norm() / truth.norm())


def cosine(estimate: Tensor, truth: Tensor) -> float:
    """⟨Δ̂, Δ⟩ / (‖Δ̂‖·‖Δ‖) over all entries. The paper prints it without the norms (Sec. 6.3).

    The best multiple of an estimate has the relative error √(1 − cos²). Only a cosine of 0 means that nothing was learnt.
    """
    return float((estimate * truth).sum() / (estimate.norm() * truth.norm()))
