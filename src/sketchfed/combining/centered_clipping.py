"""Centered clipping."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sketchfed.combining.base import CombineRule, Rows, Weights
from sketchfed.combining.mixtures import central_half, distances_to, mixture, squared_distances, weighted_median
from sketchfed.errors import InputError

_SETTLED = 1e-9


@dataclass(frozen=True, kw_only=True)
class CenteredClipping(CombineRule):
    """The mean of the vectors, each of which is first clipped to a ball around a centre that moves along.

    Paper: Karimireddy, He & Jaggi 2021, "Learning from History for Byzantine Robust Optimization", Sec. 4: v ← v + the mean of
    (xᵢ − v)·min(1, τ/‖xᵢ − v‖). The paper starts from the vector of the round before. Here a sketch is drawn anew each round,
    and the vector of the round before has other coordinates in it. So this rule starts from this round alone, from the mean of
    the half of the vectors that is closest to the medoid, and iterates until v settles. It keeps nothing between rounds. The
    paper's τ depends on the variance of honest updates, which shrinks as the model learns. Here it is `radius` times the
    weighted median of the distances from v. With the median, τ is at most the largest distance of an honest vector, as long as
    attackers are a minority, and an attacker of weight w moves v by at most w·τ in each step.
    """

    radius: float = 1.0
    """τ as a multiple of the median distance from the centre. `inf` clips nothing."""
    iterations: int = 100
    """The largest number of steps. They end earlier if nothing changes any more."""

    name = "centered_clipping"
    summary = "the mean after each client was clipped to a ball around the centre"
    source = "Karimireddy et al. 2021, Sec. 4"
    breakdown = "1/2"
    cost = "n²·s"

    def __post_init__(self) -> None:
        if not self.radius > 0:
            raise InputError(
                f"combine.radius is a multiple of the median distance, so it must be above 0, got {self.radius}. Use 1, or inf "
                "to clip nothing."
            )
        if self.iterations < 1:
            raise InputError(f"combine.iterations must be at least 1, got {self.iterations}.")

    def _combined(self, rows: Rows, weights: Weights) -> npt.NDArray[np.float64]:
        squared, shares = squared_distances(rows), weights / weights.sum()
        mixed = central_half(squared, weights)
        for _ in range(self.iterations):
            before, distances = mixed, distances_to(mixed, squared)
            reach = weighted_median(distances, weights)
            if reach == 0 and self.radius < np.inf:  # most vectors are equal, and the centre is there
                break
            most = self.radius * reach if self.radius < np.inf else np.inf
            kept = shares * np.minimum(1.0, most / np.maximum(distances, np.finfo(np.float64).tiny))
            mixed = (1 - kept.sum()) * mixed + kept
            if np.abs(mixed - before).sum() < _SETTLED:
                break
        return mixture(rows, mixed)
