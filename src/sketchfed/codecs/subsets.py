"""A compact encoding for the set of coordinates in a packet, in about size·(2 + log2(dim/size)) bits.

The set is sorted and encoded with the Elias–Fano code (Elias 1974, "Efficient storage and retrieval by content and address of
static files"; Fano 1971). Each coordinate is split into `width` = ⌊log2(dim/size)⌋ low bits, which are sent unchanged, and
a high part. The high parts are ascending, so their differences are small. They are sent in unary, as one string of bits in
which the i-th one is at position high + i. If a set would take more than dim bits in this way, which happens for more than
about dim/4 coordinates, it is sent as a bitmap. Both sides know dim and size, so they know the format and its length.
"""

import numpy as np
import numpy.typing as npt
import torch

from sketchfed.errors import WireError
from sketchfed.wire import Bits, Packet, bits_named

Positions = npt.NDArray[np.int64]


def to_bits(rows: Positions, *, dim: int) -> Bits:
    """Encode distinct ascending coordinates below `dim` for a packet."""
    size = len(rows)
    width, length = _layout(dim, size)
    if width is None:
        bits = np.zeros(dim, np.uint8)
        bits[rows] = 1
    else:
        low = (rows[:, None] >> np.arange(width)) & 1
        bits = np.zeros(length, np.uint8)
        bits[: size * width] = low.reshape(-1)
        bits[size * width + (rows >> width) + np.arange(size)] = 1
    return Bits(torch.from_numpy(bits), bits=1)


def from_packet(packet: Packet, name: str, *, dim: int, size: int) -> Positions:
    """Read `size` coordinates from the array with this name. Checks that they are ascending, distinct and below `dim`."""
    if size > dim:
        raise WireError(f"packet '{packet.kind}' names {size:,} coordinates in '{name}', but a vector has {dim:,}.")
    width, length = _layout(dim, size)
    bits = bits_named(packet, name, shape=(length,), bits=1).numpy()
    if width is None:
        rows: Positions = np.flatnonzero(bits)
        _check_count(packet, name, len(rows), size)
        return rows
    highs = np.flatnonzero(bits[size * width :])
    _check_count(packet, name, len(highs), size)
    low = bits[: size * width].reshape(size, width) @ (1 << np.arange(width))
    rows = (highs - np.arange(size) << width) + low
    if size and rows[-1] >= dim:
        raise WireError(f"array '{name}' of packet '{packet.kind}' names coordinate {rows[-1]:,}, but a vector has {dim:,}.")
    if (falls := np.flatnonzero(rows[1:] <= rows[:-1])).size:
        before, after = rows[falls[0]], rows[falls[0] + 1]
        raise WireError(
            f"array '{name}' of packet '{packet.kind}' names coordinate {after:,} after {before:,}; each must come once, in "
            "ascending order."
        )
    return rows


def _layout(dim: int, size: int) -> tuple[int | None, int]:
    """The number of low bits per coordinate (None for a bitmap) and the total number of bits."""
    if not size:
        return 0, 0
    width = (dim // size).bit_length() - 1
    length = size * width + size + (dim - 1 >> width)
    return (width, length) if length < dim else (None, dim)


def _check_count(packet: Packet, name: str, found: int, size: int) -> None:
    if found != size:
        raise WireError(f"array '{name}' of packet '{packet.kind}' has {found:,} ones, but {size:,} coordinates need {size:,}.")
