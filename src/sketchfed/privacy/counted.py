"""Privacy loss of coarse discrete noise, from the probabilities of all outcomes for all vectors that one unit can add.

A unit adds an integer vector v with |v|² ≤ `square`. Noise with P(y) ∝ exp(−|y|²/(2σ²)) on each number makes the likelihood
ratio of y + v and y at an outcome exp((⟨y, v⟩ − |v|²/2)/σ²): the normalisation is the same for all integer v (Canonne, Kamath &
Steinke 2020, Sec. 2). So everything that can be learned about v is in the integer ⟨y, v⟩, and its distribution follows from the
absolute values of the numbers of v that are not 0, in any order. If `square` is small there are few such v: they are the ways
to write integers up to `square` as sums of squares. Each of them has a privacy profile, the smallest δ for every ε, that is a
sum over all outcomes (Canonne, Kamath & Steinke 2020, Thm 7, in more dimensions and with sampling).

The largest δ of all v, at every ε, is the profile of a dominating pair (Zhu, Dong & Wang 2022, Prop. 8), and dominating pairs
compose, also if v depends on earlier releases (Thm 10 there). For one release nothing is lost. For several releases the bound
is above the truth where no single v is the worst at all ε. In all cases tried that cost less than 0.05/σ² of ε.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from sketchfed.caches import cached

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_SQUARE = 36
"""Up to this |v|² there are 502 different v, which take about a second."""
_REACH = 13.0  # in standard deviations: noise beyond has a probability of e^-84
_ROOM = 1 + 1e-6  # on δ, for rounding errors; ε moves by less than that


def largest_square(deviation: float, multiplier: float) -> int:
    """The largest |v|² of an integer vector that one unit can add, at least 1: (deviation/multiplier)², rounded down."""
    return max(1, math.floor((deviation / multiplier) ** 2 * (1 + 1e-9)))


@cached(maxsize=16)
def counted_loss(deviation: float, square: int, size: int, sampling: float, step: float) -> Any:
    """The privacy loss distribution of one release, in both directions, discretised so that it is never below the truth.

    deviation: of the noise on each of `size` integers. square: the largest |v|² of one unit. sampling: the probability with
    which the unit is in the sum. step: the grid of the privacy loss.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    reach = (_REACH + math.sqrt(square) / deviation) * math.sqrt(square) / deviation
    most = math.log1p(sampling * math.expm1(reach))
    least = math.log1p(-sampling) if sampling < 1 else -reach
    grid = np.arange(math.floor(least / step) - 1, math.ceil(most / step) + 2)
    odds = np.exp(grid * step)
    # An outcome y has a loss above ε if ⟨y, v⟩ − |v|²/2 is above this threshold.
    thresholds = deviation**2 * np.log(np.maximum(odds - (1 - sampling), 1e-300) / sampling)
    profiles = np.zeros((2, len(grid)))
    for half, chances in _outcomes(deviation, square, size):
        centre = len(chances) // 2
        moved = chances * (1 - sampling + sampling * np.exp((np.arange(len(chances)) - centre - half) / deviation**2))
        above = np.clip(np.floor(thresholds + (half + centre)) + 1, 0, len(chances)).astype(np.int64)
        there, here = (_summed(each[::-1])[len(chances) - above] for each in (moved, chances))
        profiles[0] = np.maximum(profiles[0], there - odds * here)  # with the unit, against without it
        there, here = (_summed(each)[above] for each in (moved, chances))
        profiles[1] = np.maximum(profiles[1], here - there / odds)  # the other way round, at −ε
    made = []
    for at, profile in ((grid, profiles[0]), (-grid[::-1], profiles[1][::-1])):
        falling = np.minimum(np.maximum.accumulate(profile[::-1])[::-1] * _ROOM, 1.0)
        made.append(pld_pmf.create_pmf_pessimistic_connect_dots(step, at, falling))
    return PrivacyLossDistribution(*made)


def _summed(values: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """The sum of the first k values, for every k from 0 on."""
    return np.concatenate([[0.0], np.cumsum(values)])


def _outcomes(deviation: float, square: int, size: int) -> "Iterator[tuple[float, NDArray[np.float64]]]":
    """|v|²/2 and the probabilities of all ⟨y, v⟩, around 0, for every v that a unit can add."""
    reach = math.ceil(_REACH * deviation)
    single = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * deviation**2))
    single /= single.sum()

    def longer(
        parts: int, length: int, largest: int, chances: "NDArray[np.float64]"
    ) -> "Iterator[tuple[float, NDArray[np.float64]]]":
        """All v that begin with these numbers and go on with some of at most `largest`."""
        if parts:
            yield length / 2, chances
        if parts == size:
            return
        for number in range(1, min(largest, math.isqrt(square - length)) + 1):
            spread = np.zeros((len(single) - 1) * number + 1)
            spread[::number] = single
            whole, total = np.convolve(chances, spread), length + number**2
            cut = max(0, len(whole) // 2 - math.ceil(_REACH * deviation * math.sqrt(total)))
            yield from longer(parts + 1, total, number, whole[cut : len(whole) - cut])

    return longer(0, 0, math.isqrt(square), np.ones(1))
