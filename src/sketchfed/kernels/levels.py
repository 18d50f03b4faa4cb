"""Numbers to the codes of few levels: at random without bias, in step with other clients, or to the nearest.

Codes become bytes, and bytes live on the CPU, so there is no torch twin.
"""

import numpy as np

from sketchfed.kernels.jit import inlined, kernel

_TOGETHER = 64  # numbers whose nearest levels are searched side by side, which vectorises


@inlined
def _uniform(word):
    """A 32-bit word as a number in the middle of its 2^32nd of (0, 1)."""
    return (np.float64(word) + 0.5) * 2.0**-32


@kernel
def stochastic(x, norms, bucket, most, words, codes):
    """codes ← most ± ⌊most·|x|/norm⌋, or one further from `most` with the probability of what was cut off.

    Numbers i·bucket to (i + 1)·bucket have norm i, and none is larger than its norm.
    """
    for number in range(norms.size):
        scale = most / np.float64(norms[number]) if norms[number] > 0 else 0.0
        for i in range(number * bucket, min(x.size, (number + 1) * bucket)):
            height = np.abs(np.float64(x[i])) * scale
            low = np.int64(height)
            level = min(low + (_uniform(words[i]) < height - low), most)
            codes[i] = most + level if x[i] >= 0 else most - level


@kernel
def correlated(x, reach, spacing, shift, starts, ranks, words, clients, place, top, codes):
    """codes ← the level below each (x/reach + 1)/2, or the one above it where the client's uniform number is small enough.

    Levels of number i lie `spacing` apart from −shift·uniform(starts[i]) on; codes go from 0 to `top`. The uniform number
    is (rank + own)/clients, in which `own` is of the client's own words and `rank`, from 0 to clients − 1, is its `place`
    moved on by what all clients draw for this number.
    """
    scale = 0.5 / reach if reach > 0 else 0.0
    for i in range(x.size):
        height = (np.float64(x[i]) * scale + 0.5 + shift * _uniform(starts[i])) / spacing
        low = min(max(np.int64(height), 0), top - 1)
        rank = place + np.int64(np.uint64(ranks[i]) * np.uint64(clients) >> np.uint64(32))
        rank -= clients if rank >= clients else 0
        codes[i] = low + (rank + _uniform(words[i]) < clients * (height - low))


@kernel
def nearest(y, thresholds, levels, codes):
    """codes ← the nearest level to each number of y·√n/‖y‖, n being their count, which makes the mean square 1.

    Returns ‖y‖², ⟨y, q⟩ and ‖q‖² for the vector q of levels.
    """
    square, product, size = 0.0, 0.0, 0.0
    for i in range(y.size):
        square += np.float64(y[i]) * np.float64(y[i])
    scale = np.float32(np.sqrt(y.size / square)) if square > 0 else np.float32(0)
    found = np.empty(_TOGETHER, np.int32)
    for start in range(0, y.size, _TOGETHER):
        count = min(_TOGETHER, y.size - start)
        found[:] = 0
        step = levels.size >> 1
        while step:
            for i in range(count):
                found[i] += step * np.int32(y[start + i] * scale > thresholds[found[i] + step - 1])
            step >>= 1
        for i in range(count):
            level = np.float64(levels[found[i]])
            codes[start + i] = found[i]
            product += y[start + i] * level
            size += level * level
    return square, product, size
