"""The coordinate-wise trimmed mean."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sketchfed.combining.base import CombineRule, Rows, Weights, check_share
from sketchfed.combining.coordinates import by_coordinate, trimmed
from sketchfed.errors import InputError


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(CombineRule):
    """In each coordinate, the mean without the smallest and the largest values.

    Paper: Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", Def. 2: a share
    β = `byzantine` is removed at each end. With attackers of weight at most β, what is kept in each coordinate lies between two
    honest values. Departs from the paper: β is a share of the weight, and a client at the edge may be removed in part, so β·n
    need not be an integer.
    """

    byzantine: float = 0.2
    """The share of clients that may be attackers. This share is removed at each end of each coordinate."""

    name = "trimmed_mean"
    summary = "in each coordinate, the mean without the smallest and largest values"
    source = "Yin et al. 2018, Def. 2"
    breakdown = "`byzantine`"
    cost = "n·s·log n"

    def __post_init__(self) -> None:
        check_share("byzantine", self.byzantine)

    def _combined(self, rows: Rows, weights: Weights) -> npt.NDArray[np.float64]:
        return by_coordinate(rows, weights, lambda values, own: trimmed(values, own, self.byzantine))

    def check(self, packets: int) -> None:
        super().check(packets)
        if 0 < self.byzantine * packets < 1 - 1e-9:
            raise InputError(
                f"combine.byzantine = {self.byzantine} of {packets} packets per round is less than one packet, so a part of "
                f"every attacker would stay. Use {1 / packets:.3g} or more, or more clients per round."
            )
