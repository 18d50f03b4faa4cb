"""A combine rule that leaves out the clients that are farthest from the others."""

from dataclasses import dataclass

import numpy as np
import torch

from sketchfed.combining import CombineRule, Median, check_share


@dataclass(frozen=True, kw_only=True)
class NearMean(CombineRule):
    """The mean of the clients that are nearest to the median. Clients of total weight `byzantine` are left out."""

    byzantine: float = 0.3
    """The share of clients that may be attackers."""

    name = "near_mean"
    summary = "the mean of the clients nearest to the median"
    source = "the tutorial"
    breakdown = "`byzantine`"
    cost = "n·s·log n"

    def __post_init__(self) -> None:
        check_share("byzantine", self.byzantine)

    def _combined(self, rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
        vectors = rows.astype(np.float64)
        median = Median().combine(torch.from_numpy(vectors), torch.from_numpy(weights)).numpy()
        nearest = np.argsort(np.linalg.norm(vectors - median, axis=1), kind="stable")
        vectors, weights = vectors[nearest], weights[nearest]
        before = np.cumsum(weights) - weights
        kept = np.clip((1 - self.byzantine) * weights.sum() - before, 0, weights)  # the last one is kept in part
        return np.average(vectors, axis=0, weights=kept)
