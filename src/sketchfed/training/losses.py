"""Losses by name. A loss is a mean over a batch."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from sketchfed.errors import InputError
from sketchfed.parts import Registry
from sketchfed.training.positions import IGNORED, classes_last

Loss = Callable[[Tensor, Tensor], Tensor]
"""A function from the outputs and targets of a batch to the mean loss, a scalar."""


def cross_entropy(outputs: Tensor, targets: Tensor, dim: int | None = None) -> Tensor:
    """The cross-entropy of classes `(n,)`, or of classes `(n, *positions)` without those that are −100.

    A batch in which no position has a target has loss 0. `dim` is the dimension of the classes, if the shapes do not say it.
    Targets of the outputs' own shape are probabilities of the classes, as in torch.
    """
    if targets.ndim <= 1 or (targets.is_floating_point() and targets.shape == outputs.shape):
        return functional.cross_entropy(outputs, targets)
    if targets.is_floating_point():
        raise InputError(
            f"classes are integers, and the targets are {targets.dtype} of shape {tuple(targets.shape)}. If several labels "
            "apply to an example, use loss='binary_cross_entropy'. If targets are numbers, use task='regression'."
        )
    scores, labels = classes_last(outputs, targets, dim)
    total = functional.cross_entropy(scores, labels, ignore_index=IGNORED, reduction="sum")
    return total / (labels != IGNORED).sum().clamp(min=1)


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of each label by itself, averaged over labels and examples. Outputs are logits."""
    return functional.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype))


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """½‖output − target‖², averaged over the batch. The gradient of each example's loss is the residual."""
    return 0.5 * torch.sum((outputs - targets) ** 2) / outputs.shape[0]


LOSSES: Registry[Loss] = Registry(
    "loss",
    {"cross_entropy": cross_entropy, "squares": squares, "binary_cross_entropy": binary_cross_entropy},
    group="sketchfed.losses",
)
TASK_OF = {"cross_entropy": "classification", "squares": "regression", "binary_cross_entropy": "labels"}
"""What the targets are if a loss is named. In the task "labels", several labels may apply to an example."""


def loss_named(loss: str | Loss) -> Loss:
    return loss if callable(loss) else LOSSES[loss]
