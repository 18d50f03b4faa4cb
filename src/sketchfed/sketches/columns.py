"""Sketches with a few ±1/√nonzeros in each column: what they share."""

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sketchfed.caches import cached_within
from sketchfed.kernels import scatter
from sketchfed.kernels.jit import on_cpu
from sketchfed.seeds import Words
from sketchfed.sketches.base import MOST_MOVED, Sketch

_CODES_AT_ONCE = 2**16  # 256 KiB of codes: they are read again while still in the second-level cache


@dataclass(frozen=True, kw_only=True)
class ColumnSketch(Sketch):
    """A family tells, for a range of columns, which buckets each goes to and with which sign; the rest is here.

    A code is 2·bucket + sign bit; codes come as `(nonzeros, columns)`.
    """

    @property
    def _nonzeros(self) -> int:
        return 1

    portable = True

    @abstractmethod
    def _codes(self, first: int, count: int) -> Words:
        """The codes of columns first to first + count, computed by numba."""

    def _strips(self) -> Iterator[tuple[int, int]]:
        width = max(1, _CODES_AT_ONCE // self._nonzeros)
        return ((first, min(width, self.dim - first)) for first in range(0, self.dim, width))

    def _apply(self, x: Tensor) -> Tensor:
        out = x.new_zeros(x.shape[0], self.size)
        for first, count in self._strips():
            if on_cpu(x):
                scatter.scatter_rows(x.numpy(), first, self._codes(first, count), out.numpy())
            else:
                scatter.scatter_twin(x[:, first : first + count], _codes_on(self, x.device, first, count), out)
        return self._scaled(out)

    def _adjoint(self, y: Tensor) -> Tensor:
        out = y.new_empty(y.shape[0], self.dim)
        for first, count in self._strips():
            if on_cpu(y):
                scatter.gather_rows(y.numpy(), self._codes(first, count), out.numpy(), first)
            else:
                out[:, first : first + count] = scatter.gather_twin(y, _codes_on(self, y.device, first, count))
        return self._scaled(out)

    def _scaled(self, out: Tensor) -> Tensor:
        return out if self._nonzeros == 1 else out.div_(out.new_tensor(math.sqrt(self._nonzeros)))  # a plain number is inverted

    def _empty_codes(self, count: int) -> Words:
        return np.empty((self._nonzeros, count), np.uint32)


def _codes_on(sketch: ColumnSketch, device: torch.device, first: int, count: int) -> Tensor:
    """The codes of columns first to first + count as int64, on a device."""
    return _all_codes(sketch, device)[0][:, first : first + count].long() & 0xFFFFFFFF


@cached_within(room=MOST_MOVED)
def _all_codes(sketch: ColumnSketch, device: torch.device) -> tuple[Tensor]:
    """The codes of all columns, drawn on the CPU and moved once. torch takes their highest bits for signs."""
    return (torch.from_numpy(sketch._codes(0, sketch.dim).view(np.int32)).to(device),)
