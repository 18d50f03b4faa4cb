"""Rows that are clipped, flattened and rounded before noise is added to their sum.

Noise is drawn on the CPU, so there is no torch twin.
"""

import numpy as np

from sketchfed.kernels import fwht
from sketchfed.kernels.jit import kernel

_NARROW = 64  # below, `signed_transform` cannot work in place
_TOGETHER = 1024


@kernel
def norms(rows, out):
    """out ← the norm of each row, in float64; what is not finite shows there."""
    for row in range(rows.shape[0]):
        square = 0.0
        for i in range(rows.shape[1]):
            square += np.float64(rows[row, i]) * np.float64(rows[row, i])
        out[row] = np.sqrt(square)


@kernel
def add_clipped(rows, lengths, clip, total):
    """total ← total + Σ row·min(1, clip/length), in float64."""
    for row in range(rows.shape[0]):
        factor = clip / lengths[row] if lengths[row] > clip else 1.0
        for i in range(rows.shape[1]):
            total[i] += factor * np.float64(rows[row, i])


@kernel
def scale_clipped(rows, lengths, clip, scale, out):
    """out ← scale·row·min(1, clip/length) for each row, in float64."""
    for row in range(rows.shape[0]):
        factor = scale * (clip / lengths[row]) if lengths[row] > clip else scale
        for i in range(rows.shape[1]):
            out[row, i] = factor * np.float64(rows[row, i])


@kernel
def flatten(rows, width, signs):
    """In place: for each turn, signs and a normalised Hadamard transform of the first `width` numbers of each row, in odd
    turns of the last; width is a power of two.
    """
    log, shrink = fwht.log_of(width), 1 / np.sqrt(width)
    for row in range(rows.shape[0]):
        for turn in range(signs.shape[0]):
            start = rows.shape[1] - width if turn & 1 else 0
            part = rows[row, start : start + width]
            if width < _NARROW:
                fwht.negate(part, signs[turn], width, part, 0)
                fwht.transform(part, 0, log)
            else:
                fwht.signed_transform(part, 0, width, signs[turn], part, log)
            for i in range(width):
                part[i] *= shrink


@kernel
def unflatten(row, width, signs):
    """In place: the inverse of `flatten`, of one row."""
    log, shrink = fwht.log_of(width), 1 / np.sqrt(width)
    for turn in range(signs.shape[0] - 1, -1, -1):
        start = row.size - width if turn & 1 else 0
        part = row[start : start + width]
        fwht.transform(part, 0, log)
        fwht.negate(part, signs[turn], width, part, 0)
        for i in range(width):
            part[i] *= shrink


@kernel
def add_rounded(rows, pending, words, most_square, rounded, total):
    """total ← total + each pending row rounded up or down at random without bias, unless its square exceeds `most_square`.

    A word a number, for pending rows only and in their order. Rows that were added are pending no more; returns how many are
    left. `rounded` is working memory for a row.
    """
    at, left = 0, 0
    for row in range(rows.shape[0]):
        if not pending[row]:
            continue
        square = 0.0
        for start in range(0, rows.shape[1], _TOGETHER):  # sums of sums: errors stay below 2^-30 at any length
            part = 0.0
            for i in range(start, min(start + _TOGETHER, rows.shape[1])):
                low = np.floor(rows[row, i])
                up = (np.float64(words[at + i]) + 0.5) * 2.0**-32 < rows[row, i] - low
                value = low + 1.0 if up else low
                part += value * value
                rounded[i] = np.int64(value)
            square += part
        at += rows.shape[1]
        if square > most_square:
            left += 1
            continue
        pending[row] = False
        for i in range(rows.shape[1]):
            total[i] += rounded[i]
    return left


@kernel
def add_truncated(rows, pending, total):
    """total ← total + each pending row rounded towards zero, which makes no row longer."""
    for row in range(rows.shape[0]):
        if pending[row]:
            for i in range(rows.shape[1]):
                total[i] += np.int64(rows[row, i])
