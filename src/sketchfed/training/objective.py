"""What training minimises: a loss of outputs and targets, or a function of the model and a batch."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as trees

from sketchfed.errors import InputError
from sketchfed.parts import Registry
from sketchfed.training.base import ClientData, Examples, scored
from sketchfed.training.broadcasts import refusing_broadcasts
from sketchfed.training.called import called_name
from sketchfed.training.fit import fitting_loss
from sketchfed.training.items import placed
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

    def score(self, module: nn.Module, examples: Any) -> tuple[float, int]:
        """The sum of losses over all targets, and how many of them the model has right."""
        return float(self(module, examples)) * self.weight(examples), 0

    def weight(self, examples: Any) -> int:
        """How many targets a batch has."""
        return int(examples.size)

    def pair(self, examples: Any) -> tuple[Any, Tensor]:
        """The inputs and targets of a batch."""
        raise InputError("a batch of this loss has no targets that others know, so it has no metrics. Use evaluate.")

    def rows(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and targets as built-in metrics take them."""
        return outputs, targets


@dataclass(frozen=True)
class OfBatch(Objective):
    """A loss that is given the model and the batch, and so decides itself what the model is called with."""

    counts: ClassVar[bool] = False
    """Nobody else knows which answers are right."""

    function: BatchLoss
    _tried: set[tuple[Any, ...]] = field(default_factory=set, compare=False, repr=False)
    """The forms of batches, the types and numbers of dimensions of their tensors, in which nothing was broadcast."""

    def __call__(self, module: nn.Module, examples: ClientData) -> Tensor:
        content = examples.content()
        form = form_of(content)
        if form in self._tried or examples.size < 2 or not torch.is_grad_enabled():
            return checked_loss(self.function(module, content), self._name)
        with refusing_broadcasts(module, examples.size):
            found = checked_loss(self.function(module, content), self._name)
        self._tried.add(form)
        return found

    @property
    def code(self) -> dict[str, Any]:
        """The user's code on which the result depends."""
        return {"batch_loss": self.function}

    @property
    def _name(self) -> str:
        return called_name(self.function, "batch_loss")

    tried = __call__


@dataclass(frozen=True)
class OfOutputs(Objective):
    """A loss of the model's outputs for the inputs `x`, and the targets `y`."""

    loss: Loss

    def __call__(self, module: nn.Module, examples: Examples) -> Tensor:
        return checked_loss(self.loss(module(examples.x), examples.y), called_name(self.loss, "loss"))

    def pair(self, examples: Examples) -> tuple[Tensor, Tensor]:
        """The inputs and targets of a batch."""
        return examples.x, examples.y

    def score(self, module: nn.Module, examples: Examples) -> tuple[float, int]:
        """The sum of losses, and how many answers are right."""
        outputs = outputs_of(module, examples.x)
        return scored(outputs, examples.y, self.loss(outputs, examples.y))

    def tried(self, module: nn.Module, examples: Examples) -> Tensor:
        """The same, for a first batch. Raise `InputError` if outputs and targets do not fit each other."""
        return checked_loss(fitting_loss(self.loss, module(examples.x), examples.y), called_name(self.loss, "loss"))


def checked_loss(found: object, name: str) -> Tensor:
    """A loss as a scalar. Raise `InputError` unless it is one real number that can be minimised."""
    if not isinstance(found, Tensor):
        raise InputError(f"'{name}' returned {_described(found)}, and a loss is a tensor. Return the mean loss of the batch.")
    if found.numel() != 1:
        raise InputError(f"'{name}' returned numbers of shape {tuple(found.shape)}, and a loss is one. Return their mean.")
    if torch.is_grad_enabled() and not found.requires_grad:
        raise InputError(
            f"'{name}' returned a number that does not depend on the model's parameters, as far as autograd sees. Call the "
            "model on the batch, do not detach the result, and use no argmax or comparison."
        )
    if not found.is_floating_point():
        raise InputError(f"'{name}' returned {found.dtype}, and a loss is a real number. Return a float.")
    return found if not found.ndim else found.reshape(())


def _described(found: object) -> str:
    if isinstance(found, tuple | list):
        return f"a {type(found).__name__} of {len(found)}"
    return "None" if found is None else f"a {type(found).__name__}"


def form_of(content: object) -> tuple[Any, ...]:
    """The types and numbers of dimensions of the tensors in a batch."""
    leaves, _ = trees.tree_flatten(content)
    return tuple((leaf.ndim, leaf.dtype) if isinstance(leaf, Tensor) else type(leaf) for leaf in leaves)


@dataclass(frozen=True)
class OnDevice(Objective):
    """An objective of a model on a device. Batches are moved there, one at a time."""

    objective: Any
    device: torch.device

    def __call__(self, module: nn.Module, examples: Any) -> Tensor:
        found: Tensor = self.objective(module, placed(examples, self.device))
        return found

    def score(self, module: nn.Module, examples: Any) -> tuple[float, int]:
        """The sum of losses, and how many answers are right."""
        found: tuple[float, int] = self.objective.score(module, placed(examples, self.device))
        return found

    def weight(self, examples: Any) -> int:
        """How many targets a batch has."""
        return int(self.objective.weight(examples))

    def tried(self, module: nn.Module, examples: Any) -> Tensor:
        """The same, for a first batch. Raise `InputError` unless it can be minimised."""
        found: Tensor = self.objective.tried(module, placed(examples, self.device))
        return found


def outputs_of(module: nn.Module, x: Any) -> Tensor:
    """The outputs of a model in evaluation, also if it squeezes a batch of one example, so that they lack a dimension.

    Then the example is evaluated as a batch of two.
    """
    outputs: Tensor = module(x)
    if isinstance(x, Tensor) and len(x) == 1 and isinstance(outputs, Tensor) and outputs.shape[:1] != (1,):
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
