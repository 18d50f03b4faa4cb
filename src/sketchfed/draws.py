"""Shared random draws: everybody who has the public seed draws the same, on every platform and device.

>>> from sketchfed import PublicSeed
>>> permutation(PublicSeed(7), 5)
tensor([3, 2, 0, 1, 4])
>>> normals(PublicSeed(7), 2).shape
torch.Size([2])
"""

from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.kernels import draws, philox
from sketchfed.kernels.normals import normals_twin
from sketchfed.seeds import PublicSeed

__all__ = ["normals", "permutation", "subset", "uniform"]

_MOST = 2**31 - 1
_CHUNK = 2**20


def permutation(seed: PublicSeed, count: int) -> Tensor:
    """The numbers from 0 to count − 1 in a uniformly random order, `(count,)` int64."""
    _check("count", count, most=_MOST)
    return torch.from_numpy(draws.permutation(seed.stream, dim=count).astype(np.int64))


def subset(seed: PublicSeed, size: int, *, of: int) -> Tensor:
    """`size` different numbers from 0 to of − 1 in ascending order, `(size,)` int64. Every subset is equally likely."""
    _check("of", of, most=_MOST)
    _check("size", size, most=of)
    return torch.from_numpy(draws.subset(seed.stream, dim=of, size=size).astype(np.int64))


def normals(seed: PublicSeed, count: int, *, rows: Tensor | None = None) -> Tensor:
    """Independent standard normal numbers, `(count,)` float32.

    With `rows`, `(n,)` int64, those rows of a matrix with `count` columns and as many rows as anybody asks for, `(n, count)`:
    each row is the same whichever others are drawn with it. Without, its row 0.
    """
    _check("count", count, most=_MOST)
    if rows is None:
        return normals_twin(seed.stream, rows=torch.zeros(1, dtype=torch.int64), columns=count)[0]
    return normals_twin(seed.stream, rows=rows, columns=count)


def uniform(seed: PublicSeed, shape: Sequence[int], *, bound: float) -> Tensor:
    """Independent numbers from −bound to bound, float32: midpoints of 2^24 equal intervals, exact before they are scaled."""
    count = prod(shape)
    words = philox.words(seed.stream, count)[:count]
    out = words.view(np.float32)  # in the memory of the words, some at a time: a layer may fill most of it
    for start in range(0, count, _CHUNK):
        part = slice(start, start + _CHUNK)
        out[part] = bound * (((words[part] >> np.uint32(8)).astype(np.float64) + 0.5) * 2.0**-23 - 1)
    return torch.from_numpy(out).reshape(tuple(shape))


def _check(name: str, value: int, *, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise InputError(f"{name} must be a whole number from 0 to {most:,}, got {value!r}.")
