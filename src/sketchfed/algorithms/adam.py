"""Adam on changes that carry noise of known variance, and corrected for it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from sketchfed.kernels import directions

_LEAST = 1e-16  # below it squares are rounding errors

Moments = Mapping[str, Tensor]
"""`mean` and `square`: running means of changes and of their squares, both begun at zero."""


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Kingma & Ba 2015, with the second moment freed from noise as by Tang et al. 2024 and Nicolas et al. 2025, Alg. 1.

    Numbers are float32. Every operation is on coordinates alone, or a sum in a fixed order: all parties compute the same bits.
    Products and sums are apart, because `torch.add(…, alpha=…)` fuses them on some processors and not on others.
    """

    beta1: float
    beta2: float
    debias: bool
    """Whether the variance of the noise is taken off the squares."""
    corrected_once: bool = True
    """False takes the corrected mean for the running one, as Nicolas et al. 2025, Alg. 1, line 18, has it printed."""

    def mean(self, moments: Moments, rounds: int) -> Tensor:
        """m̂ after so many rounds: the mean of what was seen, without the zeros that it began with."""
        if rounds == 0 or not self.corrected_once:
            return moments["mean"]
        return moments["mean"] / (1 - self.beta1**rounds)

    def updated(self, moments: Moments, change: Tensor, rounds: int, noise: Tensor | float) -> dict[str, Tensor]:
        """The moments after `rounds` rounds, of which the last saw `change`, with noise of this variance in each coordinate."""
        mean = moments["mean"] * self.beta1 + change * (1 - self.beta1)
        if not self.corrected_once:
            mean /= 1 - self.beta1**rounds
        squares = change.square()
        if self.debias:
            squares -= noise
        square = moments["square"] * self.beta2 + squares * (1 - self.beta2)
        return {"mean": mean, "square": square}

    def step(self, moments: Moments, rounds: int, *, floor: float, least: float) -> Tensor:
        """m̂/√max(v̂, γ′), coordinate by coordinate, with γ′ = floor · the mean of v̂, or of `least` where that is more."""
        square = moments["square"] / (1 - self.beta2**rounds)
        total = np.empty((1, 1))
        directions.inner(square.numpy()[None], np.ones((1, len(square)), np.float32), total)
        lowest = max(_LEAST, floor * max(least, float(total[0, 0]) / len(square)))
        return self.mean(moments, rounds) / square.clamp_(min=lowest).sqrt_()
