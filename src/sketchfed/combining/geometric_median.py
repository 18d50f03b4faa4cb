"""The geometric median."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sketchfed.combining.base import CombineRule, Rows, Weights
from sketchfed.combining.mixtures import cloud, distances_to, mixture
from sketchfed.errors import InputError

_SETTLED = 1e-9


@dataclass(frozen=True, kw_only=True)
class GeometricMedian(CombineRule):
    """The point with the smallest weighted sum of distances to all vectors, by smoothed Weiszfeld steps.

    Paper: Pillutla, Kakade & Harchaoui 2022, "Robust Aggregation for Federated Learning", Alg. 2: z ← Σ βᵢxᵢ/Σ βᵢ with
    βᵢ = weightᵢ/max(ν, ‖z − xᵢ‖). Departs from the paper: ν is relative to the median distance, because updates shrink as the
    model learns. The first z is the mean of the half of the vectors that is closest to the medoid, not the mean of all: from a
    mean that an attacker moved far away, many steps lead back. Vectors more than 1,000 median distances away from it count as
    if they were that far, in their direction.
    """

    iterations: int = 100
    """The largest number of steps. They end earlier if nothing changes any more."""
    smoothing: float = 1e-6
    """ν, as a share of the median distance: closer vectors count as if they were this far away."""

    name = "geometric_median"
    summary = "the point with the smallest sum of distances to all clients"
    source = "Pillutla et al. 2022, Alg. 2"
    breakdown = "1/2"
    cost = "n²·s"

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise InputError(f"combine.iterations must be at least 1, got {self.iterations}.")
        if not 0 < self.smoothing <= 1:
            raise InputError(
                f"combine.smoothing is a share of the median distance, so it must be above 0 and at most 1, got "
                f"{self.smoothing}."
            )

    def _combined(self, rows: Rows, weights: Weights) -> npt.NDArray[np.float64]:
        rows, squared, mixed, reach = cloud(rows, weights)
        if reach == 0:  # most vectors are equal, so they are the median
            return mixture(rows, mixed)
        least = self.smoothing * reach
        for _ in range(self.iterations):
            before = mixed
            mixed = weights / np.maximum(least, distances_to(mixed, squared))
            mixed /= mixed.sum()
            if np.abs(mixed - before).sum() < _SETTLED:
                break
        return mixture(rows, mixed)
