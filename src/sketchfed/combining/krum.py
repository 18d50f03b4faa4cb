"""Krum and multi-Krum."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sketchfed.combining.base import CombineRule, Rows, Weights, check_share
from sketchfed.combining.mixtures import Matrix, mixture, squared_distances
from sketchfed.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Krum(CombineRule):
    """The vector whose neighbours are closest, or the mean of several such vectors.

    Paper: Blanchard et al. 2017, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", Sec. 4. The score of
    a vector is the sum of squared distances to its n − f − 2 nearest others, with f = `byzantine`·n attackers, and the lowest
    score wins. `best` > 0 averages the best vectors (multi-Krum, Sec. 5). It needs n > 2f + 2. With weights, the neighbours of
    vector i are those that are nearest up to a weight of (1 − byzantine)·W − wᵢ − W/n, of which the last may count in part, and
    the score is divided by that weight. If nothing is left of it, the nearest neighbour decides. Equal scores are decided by
    the order of the vectors.
    """

    byzantine: float = 0.2
    """The share of clients that may be attackers."""
    best: float = 0.0
    """The share of the clients, those with the lowest scores, that are averaged (multi-Krum). 0 takes the best packet alone."""

    name = "krum"
    summary = "the client whose nearest neighbours are closest, or the mean of the best such clients"
    source = "Blanchard et al. 2017, Sec. 4"
    breakdown = "`byzantine`, below 1/2 − 1/n"
    cost = "n²·s"

    def __post_init__(self) -> None:
        check_share("byzantine", self.byzantine)
        if not 0 <= self.best <= 1:
            raise InputError(f"combine.best is a share of the clients, so it must be from 0 to 1, got {self.best}.")

    def _combined(self, rows: Rows, weights: Weights) -> npt.NDArray[np.float64]:
        chosen = self.chosen(squared_distances(rows), weights)
        coefficients = np.zeros_like(weights)
        coefficients[chosen] = weights[chosen] / weights[chosen].sum()
        return mixture(rows, coefficients)

    def chosen(self, squared: Matrix, weights: Weights) -> npt.NDArray[np.int64]:
        """The indices of the vectors that are averaged, from the squared distances `(n, n)` of all pairs."""
        order = np.argsort(self._scores(squared, weights), kind="stable")
        within = np.cumsum(weights[order]) <= self.best * weights.sum() * (1 + 1e-9)
        return order[: max(1, int(within.sum()))]

    def _scores(self, squared: Matrix, weights: Weights) -> npt.NDArray[np.float64]:
        total, scores = weights.sum(), np.zeros(len(weights))
        for index in range(len(weights) if len(weights) > 1 else 0):
            others = np.delete(np.arange(len(weights)), index)
            order = others[np.argsort(squared[index, others], kind="stable")]
            wanted = (1 - self.byzantine) * total - weights[index] - total / len(weights)
            wanted = max(wanted, 1e-9 * total)
            upper = np.cumsum(weights[order])
            counted = np.clip(wanted - (upper - weights[order]), 0.0, weights[order])
            scores[index] = (squared[index, order] * counted).sum() / counted.sum()
        return scores

    def check(self, packets: int) -> None:
        super().check(packets)
        if self.byzantine and not packets > 2 * self.byzantine * packets + 2:
            raise InputError(
                f"combine.byzantine = {self.byzantine}: Krum tolerates f of n attackers if n > 2f + 2, which fails for "
                f"{packets} packets per round. Use byzantine below {max(0.0, 0.5 - 1 / packets):.3g}, or more clients per "
                "round."
            )
