"""The exact ε of discrete noise, from the probabilities of all outcomes.

For one vector v that a unit adds, Σ [P(y) − e^ε·Q(y)]₊ over all y is the smallest δ at ε (Canonne, Kamath & Steinke 2020, Thm
7, is that sum for one number). Several releases with the same v compose by convolution of their privacy losses (Koskela et al.
2020). So `exact_epsilon` is the truth for v. For a unit that may add any v up to a length it is a lower bound, and the truth if
the worst v is among those tried. Nothing here is taken from the accountant.
"""

import math
from functools import reduce

import numpy as np


def masses(deviation, shares=1, mean=0, reach=None):
    """The probabilities, on −reach..reach, of a sum of as many discrete Gaussians with this deviation each."""
    reach = reach or math.ceil(14 * deviation * math.sqrt(shares)) + 30
    at = np.arange(-reach, reach + 1)
    one = np.exp(-(at**2) / (2 * deviation**2))
    one /= one.sum()
    whole = reduce(lambda a, b: np.convolve(a, b)[reach:-reach], [one] * shares)
    return np.roll(whole, mean) if mean else whole


def joint(parts):
    """The probabilities of vectors with these independent numbers."""
    return reduce(np.multiply.outer, parts).ravel()


def neighbours(deviation, shift, sampling=1.0, shares=1):
    """Outcomes' probabilities without a unit and with it, where the unit adds `shift` with this probability."""
    whole = deviation * math.sqrt(shares)
    reach = math.ceil(9 * whole) if len(shift) > 2 else math.ceil(14 * whole) + 30 + max(shift)  # three make many vectors
    without = joint([masses(deviation, shares, reach=reach) for _ in shift])
    moved = joint([masses(deviation, shares, mean, reach) for mean in shift])
    return without, (1 - sampling) * without + sampling * moved


def loss(p, q):
    """What the privacy loss may be, and how likely it is under p."""
    seen = (p > 1e-200) & (q > 1e-200)
    return np.log(p[seen] / q[seen]), p[seen]


def repeated(losses, likely, times, points=1 << 20):
    """The distribution of a sum of this many losses, on a grid so fine that the means of all cells stay as they are."""
    mean = float(losses @ likely)
    spread = math.sqrt(times * float((losses - mean) ** 2 @ likely))
    step = (2 * 16 * spread + 2 * np.abs(losses[likely > 1e-25]).max()) / points
    kept = likely > 1e-25  # all others together are less likely than 1e-19
    at, share = np.divmod((losses[kept] - mean) / step, 1)
    cells = np.zeros(points)
    np.add.at(cells, at.astype(int) % points, likely[kept] * (1 - share))
    np.add.at(cells, (at.astype(int) + 1) % points, likely[kept] * share)
    whole = np.fft.irfft(np.fft.rfft(cells) ** times, points)
    index = (np.arange(points) + points // 2) % points - points // 2
    return times * mean + index * step, np.maximum(whole, 0)


def exact_epsilon(p, q, delta, times=1):
    """The ε at δ of both directions, by bisection of Σ [p − e^ε·q]₊ over all outcomes."""
    found = 0.0
    for one, other in ((p, q), (q, p)):
        losses, likely = loss(one, other)
        if times > 1:
            losses, likely = repeated(losses, likely, times)
        low, high = 0.0, 1e4
        while high - low > 1e-9:
            middle = (low + high) / 2
            above = losses > middle
            broken = float(likely[above] @ -np.expm1(middle - losses[above]))
            low, high = (middle, high) if broken > delta else (low, middle)
        found = max(found, high)
    return found


def vectors(square):
    """All integer vectors with |v|² ≤ square, up to the order and the signs of their numbers, without zeros."""

    def longer(before, left, largest):
        for number in range(1, min(largest, math.isqrt(left)) + 1):
            yield (*before, number)
            yield from longer((*before, number), left - number**2, number)

    return list(longer((), square, square))


def projected(deviation, vector, sampling=1.0):
    """Probabilities without a unit and with it, of ⟨y, v⟩ for outcomes y: they depend on nothing else."""
    reach = math.ceil(14 * deviation)
    at = np.arange(-reach, reach + 1)
    one = np.exp(-(at**2) / (2 * deviation**2))
    whole = np.ones(1)
    for number in vector:
        spread = np.zeros(2 * reach * number + 1)
        spread[::number] = one / one.sum()
        whole = np.convolve(whole, spread)
    length = sum(number**2 for number in vector)
    without = np.pad(whole, length)
    return without, (1 - sampling) * without + sampling * np.roll(without, length)
