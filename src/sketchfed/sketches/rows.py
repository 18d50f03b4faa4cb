"""Sketches whose matrix is dense and made up as it is used: what they share."""

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchfed.kernels.jit import on_cpu
from sketchfed.sketches.base import Sketch

_ENTRIES_AT_ONCE = 2**20


@dataclass(frozen=True, kw_only=True)
class RowSketch(Sketch):
    """A family gives a kernel for R and Rᵀ on the CPU and makes a few rows of √size·R at a time elsewhere."""

    @abstractmethod
    def _apply_kernel(self, x: Tensor, scale: float, out: Tensor) -> None: ...

    @abstractmethod
    def _adjoint_kernel(self, y: Tensor, scale: float, out: Tensor) -> None: ...

    @abstractmethod
    def _rows_twin(self, rows: Tensor) -> Tensor:
        """These rows of √size·R, `(rows, dim)` in float32, on the tensor's device."""

    def _strips(self, device: torch.device) -> Iterator[Tensor]:
        height = max(1, _ENTRIES_AT_ONCE // self.dim)
        return (torch.arange(first, min(first + height, self.size), device=device) for first in range(0, self.size, height))

    def _apply(self, x: Tensor) -> Tensor:
        out, scale = x.new_empty(x.shape[0], self.size), 1 / math.sqrt(self.size)
        if on_cpu(x):
            self._apply_kernel(x, scale, out)
            return out
        for rows in self._strips(x.device):
            out[:, rows] = x @ self._rows_twin(rows).to(x.dtype).T * scale
        return out

    def _adjoint(self, y: Tensor) -> Tensor:
        out, scale = y.new_zeros(y.shape[0], self.dim), 1 / math.sqrt(self.size)
        if on_cpu(y):
            self._adjoint_kernel(y, scale, out)
            return out
        for rows in self._strips(y.device):
            out += y[:, rows] * scale @ self._rows_twin(rows).to(y.dtype)
        return out
