"""Classes for each example, or for each of its positions: tokens of a text, pixels of an image."""

import torch
from torch import Tensor

from sketchfed.errors import InputError

IGNORED = -100
"""A class that marks a position without a target, such as padding. It counts in no loss and in no metric, as in torch."""


def dims_of_classes(outputs: Tensor, targets: Tensor) -> list[int]:
    """The dimensions of outputs that can be classes, for targets `(n, *positions)`: 1, −1, both, or none."""
    if outputs.ndim != targets.ndim + 1 or outputs.shape[:1] != targets.shape[:1]:
        return []
    positions = targets.shape[1:]
    second, last = outputs.shape[2:] == positions, outputs.shape[1:-1] == positions
    return [1] * second + [-1] * (last and bool(positions))


def classes_last(outputs: Tensor, targets: Tensor, dim: int | None = None) -> tuple[Tensor, Tensor]:
    """Outputs as `(N, classes)` and targets as `(N,)`, with a row for each position of each example.

    For targets `(n, *positions)`, outputs are `(n, classes, *positions)`, as torch has them, or `(n, *positions, classes)`, as
    language models have them. `dim` says in which dimension the classes are; if it is absent, the shapes must say so.
    """
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"the model's outputs are a {type(outputs).__name__}, and the loss takes one tensor. Return the tensor, or pass "
            "batch_loss(model, batch), which picks what it needs."
        )
    known = dims_of_classes(outputs, targets)
    if not known or dim not in (None, *known):
        raise InputError(
            f"the model's outputs have shape {tuple(outputs.shape)} and the classes shape {tuple(targets.shape)}. For "
            "classes of shape (n, ...), outputs are (n, classes, ...) or (n, ..., classes). Change the model's last layer or "
            "the targets, or pass batch_loss(model, batch)."
        )
    if dim is None and len(known) > 1:
        raise InputError(
            f"outputs of shape {tuple(outputs.shape)} for classes of shape {tuple(targets.shape)} can be read in two ways: "
            "with the classes in dimension 1, or in the last one. Pass batch_loss(model, batch), which says which it is."
        )
    rows = outputs.movedim(known[0] if dim is None else dim, -1)
    return rows.reshape(-1, rows.shape[-1]), targets.reshape(-1)


def counted(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The same, without positions that have no target."""
    scores, labels = classes_last(outputs, targets)
    kept = labels != IGNORED
    return (scores, labels) if bool(kept.all()) else (scores[kept], labels[kept])


def several_labels(outputs: Tensor, targets: Tensor) -> bool:
    """Whether targets say of each label whether it applies, as numbers 0 and 1 in the shape of the outputs."""
    return targets.is_floating_point() and outputs.shape == targets.shape


def weight_of(targets: Tensor) -> int:
    """How many targets there are: positions with a class, or examples of a regression."""
    return len(targets) if targets.is_floating_point() else int((targets != IGNORED).sum())


def check_classes(targets: Tensor, classes: int) -> None:
    """Raise `InputError` unless targets are classes of a model with this many outputs."""
    known = targets[targets != IGNORED]
    if known.numel() and (int(known.min()) < 0 or int(known.max()) >= classes):
        wrong = int(known.max()) if int(known.min()) >= 0 else int(known.min())
        raise InputError(
            f"a target is class {wrong}, and the model has {classes} outputs, so classes are 0 to {classes - 1}. Give the "
            f"model's last layer more outputs, or correct the targets. Positions without a target are {IGNORED}."
        )


def check_labels(outputs: Tensor, targets: Tensor) -> None:
    """Raise `InputError` unless targets say of each output whether its label applies."""
    if outputs.shape != targets.shape:
        raise InputError(
            f"the model's outputs have shape {tuple(outputs.shape)} and the labels shape {tuple(targets.shape)}. Labels say of "
            "each output whether it applies, so both have one shape."
        )
    if not bool(torch.isfinite(targets).all()) or float(targets.min()) < 0 or float(targets.max()) > 1:
        raise InputError(
            f"labels are 0 or 1, or shares between them, got {float(targets.min()):g} to {float(targets.max()):g}. Correct "
            "the targets, or use loss='squares' for numbers."
        )
