"""What training minimises: a loss of outputs and targets, or a function of the model and a batch."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sketchfed.errors import InputError
from sketchfed.parts import Registry
from sketchfed.training.base import ClientData, Examples, scored
from sketchfed.training.fit import fitting_loss
from sketchfed.training.losses import Loss, loss_named
from sketchfed.vectors import Layout

BatchLoss = Callable[[nn.Module, Any], Tensor]
"""A function from the model and a batch to the mean loss, a scalar."""

BATCH_LOSSES: Registry[BatchLoss] = Registry("loss of a batch", {}, group="sketchfed.batch_losses")


class Objective(ABC):
    """The mean loss of a batch, as a function of the model."""

    @abstractmethod
    def __call__(self, module: nn.Module, examples: Any) -> Tensor:
        """The loss, a scalar."""


@dataclass(frozen=True)
class OfBatch(Objective):
    """A loss that is given the model and the batch, and so decides itself what the model is called with."""

    function: BatchLoss

    def __call__(self, module: nn.Module, examples: ClientData) -> Tensor:
        return self.function(module, examples.content())

    def score(self, module: nn.Module, examples: ClientData) -> tuple[float, int]:
        """The sum of losses. How many answers are right is not known."""
        return float(self(module, examples)) * examples.size, 0

    def tried(self, module: nn.Module, examples: ClientData) -> Tensor:
        """The same, for a first batch. Raise `InputError` unless it is a loss that can be minimised."""
        found = self.function(module, examples.content())
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        if not isinstance(found, Tensor):
            raise InputError(f"'{name}' returned {type(found).__name__}, not a tensor. Return the mean loss of the batch.")
        if found.numel() != 1:
            raise InputError(
                f"'{name}' returned a tensor of shape {tuple(found.shape)}, and a loss is one number. Return its mean."
            )
        if not found.requires_grad:
            raise InputError(
                f"'{name}' returned a number that does not depend on the model's parameters, as far as autograd sees. Call the "
                "model on the batch, and do not detach the result."
            )
        return found


@dataclass(frozen=True)
class OfOutputs(Objective):
    """A loss of the model's outputs for the inputs `x`, and the targets `y`."""

    loss: Loss

    def __call__(self, module: nn.Module, examples: Examples) -> Tensor:
        return self.loss(module(examples.x), examples.y)

    def score(self, module: nn.Module, examples: Examples) -> tuple[float, int]:
        """The sum of losses, and how many answers are right."""
        outputs = outputs_of(module, examples.x)
        return scored(outputs, examples.y, self.loss(outputs, examples.y))

    def tried(self, module: nn.Module, examples: Examples) -> Tensor:
        """The same, for a first batch. Raise `InputError` if outputs and targets do not fit each other."""
        found = fitting_loss(self.loss, module(examples.x), examples.y)
        if isinstance(found, Tensor) and found.numel() != 1:
            raise InputError(
                f"the loss returned a tensor of shape {tuple(found.shape)}, and a loss is one number. Return its mean."
            )
        return found


def outputs_of(module: nn.Module, x: Tensor) -> Tensor:
    """The outputs of a model in evaluation, also if it squeezes a batch of one example, so that they lack a dimension.

    Then the example is evaluated as a batch of two.
    """
    outputs: Tensor = module(x)
    if len(x) == 1 and isinstance(outputs, Tensor) and outputs.shape[:1] != (1,):
        twice = module(torch.cat([x, x]))
        if twice.ndim > outputs.ndim and len(twice) == 2:
            return twice[:1]  # type: ignore[no-any-return]
    return outputs


def objective_of(loss: str | Loss | Objective) -> Any:
    """What training minimises if a run has this loss. An objective stays what it is."""
    return loss if isinstance(loss, Objective) else OfOutputs(loss_named(loss))


def loss_at(module: nn.Module, objective: Objective, layout: Layout, weights: Tensor, examples: Any) -> Tensor:
    """The loss of examples with these weights instead of the module's own. It can be differentiated by them."""
    views = {f"module.{name}": view for name, view in layout.views(weights).items()}
    found: Tensor = functional_call(_Whole(module, objective), views, (examples,))
    return found


class _Whole(nn.Module):
    """A model and its loss as one module."""

    def __init__(self, module: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.module, self._objective = module, objective
        self.training = module.training

    def forward(self, examples: Any) -> Tensor:
        return self._objective(self.module, examples)
