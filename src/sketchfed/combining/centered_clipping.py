"""Centered clipping."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sketchfed.combining.base import CombineRule, Rows, Weights
from sketchfed.combining.mixtures import cloud, distances_to, mixture
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
    weighted median of the distances from the start. While attackers are a minority, that median is at most the distance of some
    honest vector. Attackers of weight share a move v by at most a·τ in a step, and honest clients that v has left behind move
    it back by (1 − a)·τ.
    """

    radius: float = 1.0
    """τ as a multiple of the median distance from the first centre. `inf` clips nothing."""
    iterations: int = 100
    """The largest number of steps. They end earlier if nothing changes any more."""

    name = "centered_clipping"
    summary = "the mean after each client was clipped to a ball around the centre"
    source = "Karimireddy et al. 2021, Sec. 4"
    breakdown = "1/2"
    cost = "n²·s"

    def __post_init__(self) -> None:
        if not (0 < self.radius <= 100 or self.radius == np.inf):
            raise InputError(
                "combine.radius is a multiple of the median distance. It must be above 0 and at most 100, or inf to clip "
                f"nothing, got {self.radius}."
            )
        if self.iterations < 1:
            raise InputError(f"combine.iterations must be at least 1, got {self.iterations}.")

    def _combined(self, rows: Rows, weights: Weights) -> npt.NDArray[np.float64]:
        shares = weights / weights.sum()
        if self.radius == np.inf:
            return mixture(rows, shares)
        rows, squared, mixed, reach = cloud(rows, weights)
        if reach == 0:  # most vectors are equal, and the centre is there
            return mixture(rows, mixed)
        most = self.radius * reach
        for _ in range(self.iterations):
            before, distances = mixed, distances_to(mixed, squared)
            kept = shares * (most / np.maximum(distances, most))
            mixed = (1 - kept.sum()) * mixed + kept
            if np.abs(mixed - before).sum() < _SETTLED:
                break
        return mixture(rows, mixed)
