"""A pull on local steps: what is added to the gradient of a client's loss."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.vectors import Layout


@dataclass(frozen=True, eq=False)
class Pull:
    """The gradient of each local step becomes g + proximal·(w − w₀) + linear, where w₀ are the weights of the round's start.

    So a client minimises its loss plus (proximal/2)·‖w − w₀‖² + ⟨linear, w⟩. The proximal term is that of FedProx (Li et al.
    2020, Eq. 2); the linear one is what corrections of client drift need. `g` is the gradient of the loss after clipping, and
    before momentum, weight decay and whatever else an optimiser does. In a client form, w are the weights that the client sees.
    """

    proximal: float = 0.0
    linear: Tensor | None = None
    """A vector `(dim,)` that stays the same during the round. None adds nothing."""

    def __post_init__(self) -> None:
        if not 0 <= self.proximal < math.inf:
            raise InputError(f"a proximal term must not be negative, and it must be finite, got {self.proximal}.")
        if self.linear is not None and self.linear.ndim != 1:
            raise InputError(f"the linear part of a pull is a vector with a number for each weight, got {self.linear.shape}.")

    def __bool__(self) -> bool:
        """Whether anything is added."""
        return self.proximal > 0 or self.linear is not None

    def add_to(self, gradient: Tensor, weights: Tensor, start: Tensor) -> None:
        """Add the pull at `weights` to a gradient, in place. `start` are the weights at the start of the round."""
        if self.proximal:
            gradient.add_(weights - start, alpha=self.proximal)
        if self.linear is not None:
            gradient.add_(self.linear.view_as(gradient))

    def to(self, device: torch.device) -> "Pull":
        """The same pull for gradients on a device."""
        return self if self.linear is None else Pull(self.proximal, self.linear.to(device))

    def of_each(self, layout: Layout) -> list["Pull"]:
        """The pull on each parameter of a module, in the order of its layout."""
        if self.linear is None:
            return [self] * len(layout.names)
        return [Pull(self.proximal, part.reshape(-1)) for part in layout.views(self.linear).values()]
