"""Adam for changes with noise of known variance. The second moment is corrected for the noise."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from sketchfed.kernels import directions
from sketchfed.kernels.roots import square_root
from sketchfed.server_optimisers import Moments

_LEAST = 1e-16  # smaller squares are rounding errors


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam (Kingma & Ba 2015) with noise removed from the second moment (Tang et al. 2024; Nicolas et al. 2025, Alg. 1).

    The moments are `mean` and `square`, the running means of the changes and of their squares. Both start at zero.

    All numbers are float32. Every operation is elementwise or a sum in a fixed order, so all parties compute the same bits.
    Products and sums are separate operations, because `torch.add(…, alpha=…)` fuses them on some processors only. Roots are
    those of `square_root`.
    """

    beta1: float
    beta2: float
    debias: bool
    """Whether the variance of the noise is subtracted from the squares."""
    corrected_once: bool = True
    """If False, the corrected mean replaces the running mean, as printed in Nicolas et al. 2025, Alg. 1, line 18."""

    def mean(self, moments: Moments, rounds: int) -> Tensor:
        """m̂ after this many rounds: the running mean, corrected for its start at zero."""
        if rounds == 0 or not self.corrected_once:
            return moments["mean"]
        return moments["mean"] / (1 - self.beta1**rounds)

    def updated(self, moments: Moments, change: Tensor, rounds: int, noise: Tensor | float) -> dict[str, Tensor]:
        """The moments after `rounds` rounds. The last round saw `change`, whose coordinates have noise of variance `noise`."""
        mean = moments["mean"] * self.beta1 + change * (1 - self.beta1)
        if not self.corrected_once:
            mean /= 1 - self.beta1**rounds
        squares = change.square()
        if self.debias:
            squares -= noise
        square = moments["square"] * self.beta2 + squares * (1 - self.beta2)
        return {"mean": mean, "square": square}

    def step(self, moments: Moments, rounds: int, *, floor: float, least: float) -> Tensor:
        """m̂/√max(v̂, γ′) for each coordinate, where γ′ = floor times the mean of v̂ or `least`, whichever is larger."""
        square = moments["square"] / (1 - self.beta2**rounds)
        total = np.empty((1, 1))
        directions.inner(square.numpy()[None], np.ones((1, len(square)), np.float32), total)
        lowest = max(_LEAST, floor * max(least, float(total[0, 0]) / len(square)))
        return self.mean(moments, rounds) / square_root(square.clamp_(min=lowest))
