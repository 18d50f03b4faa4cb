"""Losses by name. A loss is a mean over a batch."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from sketchfed.parts import Registry

Loss = Callable[[Tensor, Tensor], Tensor]
"""A function from the outputs and targets of a batch to the mean loss, a scalar."""


def _squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """½‖output − target‖², averaged over the batch. The gradient of each example's loss is the residual."""
    return 0.5 * torch.sum((outputs - targets) ** 2) / outputs.shape[0]


LOSSES: Registry[Loss] = Registry(
    "loss", {"cross_entropy": functional.cross_entropy, "squares": _squares}, group="sketchfed.losses"
)


def loss_named(loss: str | Loss) -> Loss:
    return loss if callable(loss) else LOSSES[loss]
