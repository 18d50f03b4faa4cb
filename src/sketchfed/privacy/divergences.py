"""How far one unit can move what an observer sees: the numbers below the accountant.

Three views of the Gaussian mechanism of noise multiplier z = deviation/sensitivity, all of them exact or above the truth:

- the trade-off of ε and δ of an unsampled Gaussian in closed form (Balle & Wang 2018, Thm 8);
- the privacy loss distribution of a Poisson-sampled one, discretised upwards (Doroshenko et al. 2022, by `dp_accounting`);
- its Rényi divergences (Mironov, Talwar, Zhang 2019, Sec. 3.3, by `dp_accounting`).
"""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import gammaln, log_ndtr, logsumexp

from sketchfed.caches import cached

if TYPE_CHECKING:
    from numpy.typing import NDArray

POINTS = 1 << 15
"""The largest number of points on which a privacy loss is discretised."""
LEAST_DELTA = 1e-10
"""Below this δ, rounding errors of Fourier transforms could show in a privacy loss distribution."""

WHOLE_ORDERS = (*range(2, 64), *range(64, 128, 4), *range(128, 256, 16), *range(256, 1025, 64))
"""The whole orders at which Rényi divergences are computed."""
ALL_ORDERS = tuple(sorted({*(1 + tenths / 10 for tenths in range(1, 100)), *map(float, WHOLE_ORDERS)}))
"""The orders of `dp_accounting`, and additional high ones, which little noise or a small δ requires."""


def gaussian_delta(multiplier: float, epsilon: float) -> float:
    """The δ for this ε of one Gaussian, exactly (Balle & Wang 2018, Thm 8)."""
    half = 0.5 / multiplier
    here = float(log_ndtr(half - epsilon * multiplier))
    there = epsilon + float(log_ndtr(-half - epsilon * multiplier))
    return math.exp(here) * -math.expm1(min(there - here, 0.0))


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """The ε for this δ of one Gaussian: the inverse of `gaussian_delta`, by bisection. It is at most 1e-12 too large."""
    if gaussian_delta(multiplier, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while gaussian_delta(multiplier, high) > delta:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if gaussian_delta(multiplier, middle) > delta else (low, middle)
    return high


def interval(multiplier: float, sampling: float) -> float:
    """The grid width of a discretised privacy loss: one of 1e-4·2^i, so that coarser grids are part of finer ones.

    With a grid of a 16th of the loss's standard deviation, ε is too large by at most 3e-4 of itself, for any number of
    compositions. Losses of rare, strong steps have such a range that `POINTS` limits the grid.
    """
    deviation = sampling * math.sqrt(math.expm1(min(multiplier**-2, 60.0)))
    reach = (10 + 0.5 / multiplier) / multiplier  # where the noise has a mass of e^-50 left
    span = math.log1p(sampling * math.expm1(min(reach, 600.0))) - (math.log1p(-sampling) if sampling < 1 else -reach)
    wanted = max(min(deviation / 16, 2e-3), span / POINTS, 1e-7)
    return float(1e-4 * 2.0 ** math.floor(math.log2(wanted / 1e-4)))


@cached(maxsize=16)
def sampled_loss(multiplier: float, sampling: float, replace_one: bool, step: float) -> Any:
    """The privacy loss distribution of one Poisson-sampled Gaussian, in both directions. It is never below the truth."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as losses

    relation = NeighboringRelation.REPLACE_ONE if replace_one else NeighboringRelation.ADD_OR_REMOVE_ONE
    return losses.from_gaussian_mechanism(
        multiplier, sampling_prob=sampling, value_discretization_interval=step, neighboring_relation=relation
    )


@cached(maxsize=512)
def renyi(multiplier: float, sampling: float, orders: tuple[float, ...]) -> "NDArray[np.float64]":
    """Rényi divergences of a Poisson-sampled Gaussian at these orders (Mironov, Talwar, Zhang 2019, Sec. 3.3)."""
    at = np.asarray(orders, dtype=np.float64)
    if sampling == 1:
        return at / (2 * multiplier**2)
    whole = at == np.floor(at)
    found = np.empty_like(at)
    moments = {
        order: _whole_moment(multiplier, sampling, order) for order in {*np.floor(at).astype(int), *np.ceil(at).astype(int)}
    }
    found[whole] = [moments[int(order)] / (order - 1) for order in at[whole]]
    if not whole.all():
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
        from dp_accounting.rdp import RdpAccountant

        broken = RdpAccountant(orders=at[~whole])
        with _without_warnings():  # of orders whose series is too slow: they are infinite then, and never the best
            broken.compose(PoissonSampledDpEvent(sampling, GaussianDpEvent(multiplier)))
        # Its series takes every term as positive, which can be far too much at low orders. (α − 1)·D is convex in α.
        below = at[~whole].astype(int)
        share = at[~whole] - below
        ends = [np.array([moments[order] for order in orders]) for orders in (below.tolist(), (below + 1).tolist())]
        found[~whole] = np.minimum(broken.rdp, ((1 - share) * ends[0] + share * ends[1]) / (at[~whole] - 1))
    found.flags.writeable = False  # it is kept for the next who asks
    return found


@contextmanager
def _without_warnings() -> Iterator[None]:
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _whole_moment(multiplier: float, sampling: float, order: int) -> float:
    """ln E[((1 − q) + q·p₁/p₀)^order] under p₀, a finite sum at whole orders."""
    chosen = np.arange(order + 1)
    ways = gammaln(order + 1) - gammaln(chosen + 1) - gammaln(order - chosen + 1)
    odds = chosen * math.log(sampling) + (order - chosen) * math.log1p(-sampling)
    return float(logsumexp(ways + odds + chosen * (chosen - 1) / (2 * multiplier**2)))


def renyi_epsilons(totals: "NDArray[np.float64]", orders: tuple[float, ...], delta: float) -> "NDArray[np.float64]":
    """ε for each row of Rényi divergences, at the best order (Canonne, Kamath, Steinke 2020, Prop. 12)."""
    at = np.asarray(orders)
    each = totals + np.log1p(-1 / at) - (math.log(delta) + np.log(at)) / (at - 1)
    best = np.maximum(each.min(axis=-1), 0.0)
    # What moves so little that the total variation √(1 − e^−D) stays below δ costs nothing (Bretagnolle & Huber 1979).
    best[(delta**2 + np.expm1(-totals.min(axis=-1))) > 0] = 0.0
    return np.asarray(best)


def undominated(counts: "NDArray[np.int64]") -> "NDArray[np.int64]":
    """The rows that no other row reaches or exceeds in every column."""
    rows = np.unique(counts, axis=0)
    rows = rows[np.argsort(-rows.sum(axis=1), kind="stable")]
    kept: list[int] = []
    for index, row in enumerate(rows):
        if not (rows[kept] >= row).all(axis=1).any():
            kept.append(index)
    return rows[kept]
