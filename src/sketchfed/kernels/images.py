"""Windows of images, for convolutions as matrix products and for pooling.

Images are `(channels, batch, height, width)`: the product of a filter matrix and the windows then has this shape too.
"""

import numpy as np
import torch
from torch import Tensor

from sketchfed.kernels.jit import kernel


@kernel
def _unfold(x, high, wide, stride, padding, out):
    channels, batch, height, width = x.shape
    rows, columns = out.shape[4], out.shape[5]
    for c in range(channels):
        for ky in range(high):
            for kx in range(wide):
                for b in range(batch):
                    for row in range(rows):
                        y, to = row * stride + ky - padding, out[c, ky, kx, b, row]
                        if y < 0 or y >= height:
                            to[:] = 0
                            continue
                        line = x[c, b, y]
                        if stride == 1:
                            first, last = max(0, padding - kx), max(0, min(columns, width + padding - kx))
                            to[:first] = 0
                            part, source = to[first:last], line[first + kx - padding :]
                            for j in range(part.size):
                                part[j] = source[j]
                            to[last:] = 0
                            continue
                        for j in range(columns):
                            at = j * stride + kx - padding
                            to[j] = line[at] if 0 <= at < width else x.dtype.type(0)


@kernel
def _fold(windows, stride, padding, out):
    channels, high, wide, batch, rows, columns = windows.shape
    height, width = out.shape[2], out.shape[3]
    out[:] = 0
    for c in range(channels):
        for ky in range(high):
            for kx in range(wide):
                for b in range(batch):
                    for row in range(rows):
                        y, source = row * stride + ky - padding, windows[c, ky, kx, b, row]
                        if y < 0 or y >= height:
                            continue
                        line = out[c, b, y]
                        if stride == 1:
                            first, last = max(0, padding - kx), max(0, min(columns, width + padding - kx))
                            part, to = source[first:last], line[first + kx - padding :]
                            for j in range(part.size):
                                to[j] += part[j]
                            continue
                        for j in range(columns):
                            at = j * stride + kx - padding
                            if 0 <= at < width:
                                line[at] += source[j]


@kernel
def _largest(x, side, out, places):
    planes, rows, columns = out.shape
    for p in range(planes):
        for row in range(rows):
            best, place, first = out[p, row], places[p, row], x[p, row * side]
            for j in range(columns):
                best[j] = first[j * side]
                place[j] = 0
            for k in range(1, side * side):
                line, shift = x[p, row * side + k // side], k % side
                for j in range(columns):
                    if line[j * side + shift] > best[j]:
                        best[j] = line[j * side + shift]
                        place[j] = k


@kernel
def _largest_of_four(x, out, places):
    """For the usual side of two, without branches, which nobody could predict."""
    planes, rows, columns = out.shape
    for p in range(planes):
        for row in range(rows):
            upper, lower, best, place = x[p, 2 * row], x[p, 2 * row + 1], out[p, row], places[p, row]
            for j in range(columns):
                right, low_right = upper[2 * j + 1] > upper[2 * j], lower[2 * j + 1] > lower[2 * j]
                high = upper[2 * j + 1] if right else upper[2 * j]
                low = lower[2 * j + 1] if low_right else lower[2 * j]
                beneath = low > high
                best[j] = low if beneath else high
                place[j] = np.int32(2 + low_right) if beneath else np.int32(right)


@kernel
def _spread(delta, places, side, out):
    planes, rows, columns = delta.shape
    out[:] = 0
    for p in range(planes):
        for row in range(rows):
            for j in range(columns):
                k = places[p, row, j]
                out[p, row * side + k // side, j * side + k % side] = delta[p, row, j]


@kernel
def _spread_to_four(delta, places, out):
    planes, rows, columns = delta.shape
    zero = delta.dtype.type(0)
    if out.shape[1] > 2 * rows or out.shape[2] > 2 * columns:
        out[:] = 0
    for p in range(planes):
        for row in range(rows):
            numbers, place, upper, lower = delta[p, row], places[p, row], out[p, 2 * row], out[p, 2 * row + 1]
            for j in range(columns):
                number, k = numbers[j], place[j]
                upper[2 * j] = number if k == 0 else zero
                upper[2 * j + 1] = number if k == 1 else zero
                lower[2 * j] = number if k == 2 else zero
                lower[2 * j + 1] = number if k == 3 else zero


def windows(x: Tensor, size: tuple[int, int], stride: int, padding: int) -> Tensor:
    """All windows of images padded with zeros, `(channels, *size, batch, rows, columns)`."""
    channels, batch, height, width = x.shape
    rows, columns = ((side + 2 * padding - part) // stride + 1 for side, part in zip((height, width), size, strict=True))
    out = x.new_empty(channels, *size, batch, rows, columns)
    _unfold(x.numpy(), *size, stride, padding, out.numpy())
    return out


def summed(found: Tensor, shape: tuple[int, ...], stride: int, padding: int) -> Tensor:
    """Add windows up to images of this shape: the transpose of `windows`."""
    out = found.new_empty(shape)
    _fold(found.numpy(), stride, padding, out.numpy())
    return out


def largest(x: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """The largest number of each window, for windows that do not overlap, and its place in it: the first, if there are several.

    Lines and columns that fill no window are left out.
    """
    channels, batch, height, width = x.shape
    out = x.new_empty(channels, batch, height // side, width // side)
    places = torch.empty(out.shape, dtype=torch.int32)
    planes = [t.view(-1, *t.shape[2:]).numpy() for t in (x, out, places)]
    if side == 2:
        _largest_of_four(*planes)
    else:
        _largest(planes[0], side, *planes[1:])
    return out, places


def spread(delta: Tensor, places: Tensor, side: int, shape: tuple[int, ...]) -> Tensor:
    """Put each number at its place in its window, and zeros elsewhere: the transpose of `largest`."""
    out = delta.new_empty(shape)
    planes = [t.view(-1, *t.shape[2:]).numpy() for t in (delta, places, out)]
    if side == 2:
        _spread_to_four(*planes)
    else:
        _spread(planes[0], planes[1], side, planes[2])
    return out
