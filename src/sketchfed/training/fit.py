"""Checks that a model's outputs fit the targets, so that torch does not broadcast one to the other."""

import warnings
from contextlib import suppress

import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.training.losses import LOSSES, Loss

_TORCH_SAYS = "Using a target size"  # torch's own losses begin their warning about broadcasting with these words


def fitting_loss(loss: Loss, outputs: object, targets: Tensor) -> Tensor:
    """Return the loss of a trial batch. Raise `InputError` if outputs and targets would be broadcast to each other.

    Targets `(n,)` and outputs `(n, 1)` broadcast to `(n, n)`: every output is then compared with the targets of all
    examples, and training silently minimises the wrong function. Different shapes alone do not prove this, because a loss may
    compare different shapes on purpose (a mean and a variance for one target). They are refused if

    - the loss is the built-in 'squares';
    - the loss warns about it, as torch's `mse_loss`, `l1_loss`, `smooth_l1_loss` and `huber_loss` do;
    - the gradient of one example's outputs depends on the target of another example.

    If a loss broadcasts within each example and does not warn, this is assumed to be intended.
    """
    if not isinstance(outputs, Tensor) or outputs.shape == targets.shape:
        return loss(outputs, targets)  # type: ignore[arg-type]
    if loss is LOSSES["squares"]:
        raise _refusal(outputs, targets)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=_TORCH_SAYS, category=UserWarning)
            found = loss(outputs, targets)
    except UserWarning as warning:
        raise _refusal(outputs, targets) from warning
    if _mixes_examples(loss, outputs.detach(), targets):
        raise _refusal(outputs, targets)
    return found


def _mixes_examples(loss: Loss, outputs: Tensor, targets: Tensor) -> bool:
    """Whether the gradient of the first example's outputs changes with the target of the second."""
    if len(targets) == 1:
        outputs, targets = torch.cat([outputs, outputs]), torch.cat([targets, targets])
    low, high = 0.0, 1.0
    if targets.is_floating_point():
        high = 1 + 2 * max(float(outputs.abs().max()), float(targets.abs().max()))
        low = -high
    with suppress(Exception):  # shapes that do not broadcast, or a loss that does not accept such targets
        torch.broadcast_tensors(outputs, targets)  # type: ignore[no-untyped-call]
        below, above = (_first_gradient(loss, outputs, targets, second) for second in (low, high))
        return not torch.allclose(below, above, rtol=1e-3, atol=1e-6 * float(below.abs().max()))
    return False


def _first_gradient(loss: Loss, outputs: Tensor, targets: Tensor, second: float) -> Tensor:
    """The derivatives of the loss by the first example's outputs, if the second example's targets were `second`."""
    outputs, targets = outputs.clone().requires_grad_(True), targets.clone()
    targets[1] = second
    (gradient,) = torch.autograd.grad(loss(outputs, targets), outputs)
    return gradient[0]


def _refusal(outputs: Tensor, targets: Tensor) -> InputError:
    return InputError(
        f"for {len(targets)} examples the model's outputs have shape {tuple(outputs.shape)} and the targets shape "
        f"{tuple(targets.shape)}. The loss compares them number by number, so torch would broadcast one to the other and "
        "compare numbers that do not belong together. Give both the same shape: change the model's last layer, or reshape "
        "the targets, for example y[:, None] or y.squeeze(1)."
    )
