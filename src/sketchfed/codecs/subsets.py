"""Which coordinates a packet is about, in few bits: about size·(2 + log2(dim/size)).

The set is sorted and sent as Elias and Fano coded it (Elias 1974, "Efficient storage and retrieval by content and address of
static files"; Fano 1971): a coordinate is cut into `width` = ⌊log2(dim/size)⌋ low bits, which are sent as they are, and
the high part. High parts ascend, so their differences are small; they are sent in unary, all of them in one string of bits in
which the i-th one stands at place high + i. A set that takes more than dim bits that way, which is one of more than about
dim/4 coordinates, is sent as a bitmap. Both sides know dim and size, so they know which it is, and how long.
"""

import numpy as np
import numpy.typing as npt
import torch

from sketchfed.errors import WireError
from sketchfed.wire import Bits, Packet, bits_named

Rows = npt.NDArray[np.int64]


def to_bits(rows: Rows, *, dim: int) -> Bits:
    """Distinct ascending coordinates below `dim`, as a packet carries them."""
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


def from_packet(packet: Packet, name: str, *, dim: int, size: int) -> Rows:
    """The `size` coordinates in the array of that name, checked: ascending, distinct and below `dim`."""
    if size > dim:
        raise WireError(f"packet '{packet.kind}' is about {size:,} coordinates in '{name}', but a vector has {dim:,}.")
    width, length = _layout(dim, size)
    bits = bits_named(packet, name, shape=(length,), bits=1).numpy()
    if width is None:
        rows: Rows = np.flatnonzero(bits)
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
            f"array '{name}' of packet '{packet.kind}' names coordinate {after:,} after {before:,}; each should come once, "
            "in ascending order."
        )
    return rows


def _layout(dim: int, size: int) -> tuple[int | None, int]:
    """How many low bits a coordinate has, None for a bitmap, and how many bits there are in all."""
    if not size:
        return 0, 0
    width = (dim // size).bit_length() - 1
    length = size * width + size + (dim - 1 >> width)
    return (width, length) if length < dim else (None, dim)


def _check_count(packet: Packet, name: str, found: int, size: int) -> None:
    if found != size:
        raise WireError(
            f"array '{name}' of packet '{packet.kind}' has {found:,} ones where {size:,} coordinates need {size:,}."
        )
