"""A part of R^dim that is known beforehand to matter: the first layer moves along smooth images only."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.kernels import directions
from sketchfed.subspaces.cosines import smooth_images
from sketchfed.vectors import Layout


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """An orthonormal E, dim × inner: one matrix of a model, outputs × inputs, in terms of a few rows; the rest as it is.

    A gradient of the first layer is Σ δ·xᵀ over inputs x, so what inputs have little of, its rows have little of. Images have
    little of high frequencies: that is public, and costs no privacy. Updates E·u of the model then leave those frequencies of
    the first weights as they were drawn, and everything else, sketches, moments and steps, happens in R^inner.
    """

    dim: int
    start: int
    """Where the matrix begins in the flat vector."""
    outputs: int
    rows: npt.NDArray[np.float32]
    """Orthonormal, `(frequencies, inputs)`."""

    @classmethod
    def smooth(cls, layout: Layout, *, image: Sequence[int], frequencies: int) -> "Frame":
        """The frame in which the first matrix of a model sees only the lowest frequencies of images `[height, width]`."""
        height, width = image
        matrices = [number for number, shape in enumerate(layout.shapes) if len(shape) >= 2]
        if not matrices:
            raise InputError(
                "subspace.image is about the inputs of the first matrix, and this model has none. Remove subspace.image."
            )
        name, shape = layout.names[matrices[0]], layout.shapes[matrices[0]]
        start, inputs = sum(map(math.prod, layout.shapes[: matrices[0]])), math.prod(shape[1:])
        if inputs % (height * width):
            raise InputError(
                f"subspace.image = [{height}, {width}] does not fit '{name}', the first matrix of the model, which has "
                f"{inputs:,} inputs: they should be channels · {height} · {width}. Remove subspace.image where a convolution "
                "comes first, or give the size of the images that are flattened into it."
            )
        rows = smooth_images(height, width, channels=inputs // (height * width), frequencies=frequencies)
        return cls(dim=layout.dim, start=start, outputs=shape[0], rows=rows)

    @property
    def inner(self) -> int:
        """The dimensions that are left."""
        return self.dim - self.outputs * (int(self.rows.shape[1]) - len(self.rows))

    def apply(self, x: Tensor) -> Tensor:
        """Eᵀx: shape `(..., dim)` to `(..., inner)`."""
        vectors = x.reshape(-1, self.dim)
        stop = self.start + self.outputs * self.rows.shape[1]
        matrices = vectors[:, self.start : stop].reshape(-1, self.rows.shape[1]).contiguous()
        found = np.empty((len(matrices), len(self.rows)))
        directions.inner(self.rows, matrices.numpy(), found)
        inside = torch.from_numpy(found).to(torch.float32).reshape(len(vectors), -1)
        return torch.cat([vectors[:, : self.start], inside, vectors[:, stop:]], dim=1).reshape(*x.shape[:-1], self.inner)

    def adjoint(self, y: Tensor) -> Tensor:
        """E·y: shape `(..., inner)` to `(..., dim)`."""
        vectors = y.reshape(-1, self.inner)
        stop = self.start + self.outputs * len(self.rows)
        factors = vectors[:, self.start : stop].reshape(-1, len(self.rows)).contiguous()
        out = np.zeros((len(factors), self.rows.shape[1]), np.float32)
        directions.combine(self.rows, factors.numpy(), out)
        outside = torch.from_numpy(out).reshape(len(vectors), -1)
        return torch.cat([vectors[:, : self.start], outside, vectors[:, stop:]], dim=1).reshape(*y.shape[:-1], self.dim)
