"""What all images have in common: asked for in a round of its own, and damped from then on."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sketchfed.caches import cached
from sketchfed.kernels import small
from sketchfed.subspaces.frame import Frame

DAMPING = 0.2
"""What counts of a change of the first layer along the mean image."""


@dataclass(frozen=True, eq=False)
class MeanImage:
    """The map of the round that asks for the mean image: the lowest frequencies of what an input has in place of a gradient.

    An input stands in the row of the first output (`training.InputTrainer`). Where fewer numbers travel than there are
    frequencies, the highest of them are taken as zero; where more travel, the others are zero.
    """

    frame: Frame
    size: int

    @property
    def _place(self) -> slice:
        return slice(self.frame.start, self.frame.start + min(self.size, len(self.frame.rows)))

    def apply(self, x: Tensor) -> Tensor:
        """`(..., dim)` to `(..., size)`."""
        found = self.frame.apply(x)[..., self._place]
        return functional.pad(found, (0, self.size - found.shape[-1]))

    def adjoint(self, y: Tensor) -> Tensor:
        """`(..., size)` to `(..., dim)`."""
        inside = y.new_zeros(*y.shape[:-1], self.frame.inner)
        place = self._place
        inside[..., place] = y[..., : place.stop - place.start]
        return self.frame.adjoint(inside)

    def direction(self, sensed: Tensor) -> Tensor:
        """The unit vector along what was sensed, `(frequencies,)`; zeros if that was nothing."""
        columns = len(self.frame.rows)
        found = functional.pad(sensed[:columns], (0, max(0, columns - len(sensed)))).double()
        square = small.product(found.numpy()[None], found.numpy()[:, None])[0, 0]
        return (found / np.sqrt(square) if square > 0 else found).float()


def damped(frame: Frame, centre: Tensor) -> Frame:
    """The frame in which changes of the first layer along a direction of its inputs, `(frequencies,)`, count `DAMPING` as much.

    All inputs have the mean image in common, so the gradients of all examples lie mostly along it: it takes most of what a
    clip norm leaves them, and the loss is steepest there, which keeps steps short everywhere else. E·(I − (1 − s)·uuᵀ) in
    place of E, for sending and for moving, gives the other directions their share.
    """
    return _damped(frame, centre.numpy().tobytes())


@cached(maxsize=4)
def _damped(frame: Frame, centre: bytes) -> Frame:
    """All clients of a round use one object."""
    unit = torch.frombuffer(bytearray(centre), dtype=torch.float32).double().numpy()[None]
    rows = frame.rows.astype(np.float64)
    along = small.product(unit.T, small.product(unit, rows))
    return replace(frame, rows=(rows - (1 - DAMPING) * along).astype(np.float32))
