"""Rules that work on each coordinate by itself."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sketchfed.combining.base import Rows, Weights

_NUMBERS = 1 << 18
"""The number of values that are sorted at a time, which bounds the additional memory."""

Values = npt.NDArray[np.float64]


def by_coordinate(rows: Rows, weights: Weights, reduce: Callable[[Values, Values], Values]) -> Values:
    """Reduce each coordinate of the rows `(n, size)` to one number: `(size,)`.

    `reduce` gets some coordinates at a time: their values in ascending order, `(some, n)`, and the weights in the same order,
    which are `(1, n)` if all weights are equal.
    """
    width = max(1, _NUMBERS // len(rows))
    equal = bool((weights == weights[0]).all())
    found = np.empty(rows.shape[1])
    for start in range(0, rows.shape[1], width):
        block = np.array(rows[:, start : start + width].T, order="C")  # a copy: it is sorted in place
        if equal:
            block.sort(axis=1)
            found[start : start + width] = reduce(block.astype(np.float64), weights[None])
        else:
            order = np.argsort(block, axis=1, kind="stable")
            ordered = np.take_along_axis(block, order, axis=1).astype(np.float64)
            found[start : start + width] = reduce(ordered, weights[order])
    return found


def trimmed(values: Values, weights: Values, share: float) -> Values:
    """The mean after a share of the total weight was cut off at both ends. A vector at the edge may be cut in part."""
    upper = np.cumsum(weights, axis=1)
    total = upper[:, -1:]
    kept = np.minimum(upper, (1 - share) * total) - np.maximum(upper - weights, share * total)
    kept = np.maximum(kept, 0.0)
    found: Values = (values * kept).sum(axis=1) / kept.sum(axis=1)
    return found


def middle(values: Values, weights: Values) -> Values:
    """The median: half of the weight lies below, half above. Between two values it is their mean."""
    upper = np.cumsum(weights, axis=1)
    half = upper[:, -1:] / 2
    first, last = (upper < half).sum(axis=1), (upper <= half).sum(axis=1)
    at = np.arange(len(values))
    first, last = np.broadcast_to(first, at.shape), np.broadcast_to(last, at.shape)
    found: Values = values[at, first] / 2 + values[at, last] / 2
    return found
