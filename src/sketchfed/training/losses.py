"""Losses by name: the mean over a batch."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from sketchfed.errors import UnknownNameError

Loss = Callable[[Tensor, Tensor], Tensor]
"""Outputs and targets of a batch to the mean loss, a scalar."""


def _squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """½‖output − target‖², averaged over the batch: its gradient is the residual."""
    return 0.5 * torch.sum((outputs - targets) ** 2) / outputs.shape[0]


LOSSES: dict[str, Loss] = {"cross_entropy": functional.cross_entropy, "squares": _squares}


def loss_named(loss: str | Loss) -> Loss:
    if callable(loss):
        return loss
    if loss not in LOSSES:
        raise UnknownNameError("loss", loss, LOSSES)
    return LOSSES[loss]
