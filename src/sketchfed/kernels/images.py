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
    """The largest number of each window of side × side, and its place in the window: the first, if there are several."""
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
                    value = line[j * side + shift]
                    if not value <= best[j]:
                        best[j] = value
                        place[j] = k


@kernel
def _spread(delta, places, side, out):
    """Put each number at its place in its window, and zeros elsewhere."""
    planes, rows, columns = delta.shape
    out[:] = 0
    for p in range(planes):
        for row in range(rows):
            for j in range(columns):
                k = np.int64(places[p, row, j])
                out[p, row * side + k // side, j * side + k % side] = delta[p, row, j]


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
    """The largest number of each window, for windows that do not overlap, and its place in the window."""
    channels, batch, height, width = x.shape
    out = x.new_empty(channels, batch, height // side, width // side)
    places = torch.empty(out.shape, dtype=torch.uint8)
    _largest(*(t.view(-1, *t.shape[2:]).numpy() for t in (x,)), side, *(t.view(-1, *t.shape[2:]).numpy() for t in (out, places)))
    return out, places


def spread(delta: Tensor, places: Tensor, side: int, shape: tuple[int, ...]) -> Tensor:
    """Put each number at its place in its window: the transpose of `largest`."""
    out = delta.new_empty(shape)
    _spread(*(t.view(-1, *t.shape[2:]).numpy() for t in (delta, places)), side, out.view(-1, *shape[2:]).numpy())
    return out
