"""Smooth images: the cosines of lowest frequency in two dimensions, the same to the bit on every machine."""

from decimal import Decimal, localcontext

import numpy as np
import numpy.typing as npt

from sketchfed.caches import cached
from sketchfed.errors import InputError
from sketchfed.kernels.small import Small

_PI = Decimal("3.14159265358979323846264338327950288419716939937511")
_DIGITS = 40  # rounded to float64 once


@cached(maxsize=8)
def smooth_images(height: int, width: int, *, channels: int, frequencies: int) -> npt.NDArray[np.float32]:
    """The orthonormal cosines of the lowest frequencies of each channel, `(channels·frequencies, channels·height·width)`.

    They are the products of a DCT-II along either side, those with the least i² + j² for i and j half waves. Pixels are laid
    out as torch does.
    """
    if min(height, width) < 1 or not 1 <= frequencies <= height * width:
        raise InputError(
            f"images of {height} × {width} have {max(0, height * width):,} frequencies, and {frequencies:,} of them were asked "
            "for. Change subspace.frequencies or subspace.image."
        )
    order = sorted(((i, j) for i in range(height) for j in range(width)), key=lambda f: (f[0] ** 2 + f[1] ** 2, f))
    down, across = cosines(height), cosines(width)
    one = np.stack([np.outer(down[i], across[j]).reshape(-1) for i, j in order[:frequencies]])
    rows = np.zeros((channels, frequencies, channels, height * width), np.float32)
    for channel in range(channels):
        rows[channel, :, channel] = one
    flat = rows.reshape(channels * frequencies, -1)
    flat.setflags(write=False)
    return flat


@cached(maxsize=8)
def cosines(length: int) -> Small:
    """The orthonormal DCT-II, `(frequency, place)`: cos(π·frequency·(2·place + 1)/(2·length)), correctly rounded."""
    with localcontext() as context:
        context.prec = _DIGITS
        quarter = [_cosine(k * _PI / (2 * length)) for k in range(length + 1)]
        ends, others = (Decimal(1) / length).sqrt(), (Decimal(2) / length).sqrt()
        scaled = [float(others * value) for value in quarter]
        half = scaled + [-value for value in reversed(scaled[:-1])]  # from 0 to π
        turn = np.array(half + half[-2:0:-1])
        places = np.arange(length)
        table: Small = turn[np.outer(places, 2 * places + 1) % (4 * length)]
        table[0] = float(ends)
    table.setflags(write=False)
    return table


def _cosine(angle: Decimal) -> Decimal:
    """Of an angle from 0 to π/2, by its series."""
    total = term = Decimal(1)
    index, least = 0, Decimal(10) ** -_DIGITS
    while abs(term) > least:
        index += 2
        term *= -angle * angle / (index * (index - 1))
        total += term
    return total
