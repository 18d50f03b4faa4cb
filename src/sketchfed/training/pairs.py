"""A loss of outputs and targets on batches of any kind that are pairs: of inputs, in whatever form, and targets."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sketchfed.errors import InputError
from sketchfed.training.base import ClientData
from sketchfed.training.called import called_name
from sketchfed.training.fit import fitting_loss
from sketchfed.training.losses import Loss, cross_entropy, loss_named
from sketchfed.training.objective import Objective, checked_loss, form_of
from sketchfed.training.positions import (
    check_classes,
    check_labels,
    classes_last,
    counted,
    several_labels,
    weight_of,
)


@dataclass(frozen=True)
class OfPairs(Objective):
    """A loss of the model's outputs for inputs, and targets, which may have classes for each position or several labels.

    Inputs are given to the model as they are, but for numbers of 64 bits, which become float32. With `floats`, integers do too.
    """

    loss: str | Loss
    task: str
    floats: bool = False
    dim: int | None = None
    """The dimension of the classes in outputs for each position. If absent, the shapes of each batch must say it."""
    _tried: set[tuple[Any, ...]] = field(default_factory=set, compare=False, repr=False)
    """The forms of batches whose outputs fitted the targets."""

    @property
    def code(self) -> dict[str, Any]:
        """The user's code on which the result depends."""
        return {"loss": self.loss}

    def __call__(self, module: nn.Module, examples: ClientData) -> Tensor:
        inputs, targets = self.pair(examples)
        return self._loss_of(module(inputs), targets)

    tried = __call__

    def pair(self, examples: ClientData) -> tuple[Any, Tensor]:
        """The inputs and targets of a batch, in the types that models and losses take."""
        content = examples.content()
        if not isinstance(content, tuple | list) or len(content) != 2 or not isinstance(content[1], Tensor):
            raise InputError(
                f"a batch is {_described(content)}, and the loss needs a pair: inputs and a tensor of targets. Make one in "
                "collate, or pass batch_loss(model, batch), which reads any batch."
            )
        inputs, targets = content
        if isinstance(inputs, Tensor) and (inputs.dtype == torch.float64 or (self.floats and not inputs.is_floating_point())):
            inputs = inputs.to(torch.float32)
        return inputs, self._typed(targets)

    def _typed(self, targets: Tensor) -> Tensor:
        if self.task != "classification":
            return targets.to(torch.float32)
        if targets.is_floating_point() or targets.is_complex():
            raise InputError(
                f"classes must be integers, got {targets.dtype} of shape {tuple(targets.shape)}. Convert them: y.long(). If "
                "several labels apply to an example, use loss='binary_cross_entropy'. If targets are numbers, set "
                "task='regression'."
            )
        return targets.to(torch.int64)

    def _loss_of(self, outputs: Any, targets: Tensor) -> Tensor:
        function, name = loss_named(self.loss), called_name(self.loss, "loss")
        form = form_of((outputs, targets))
        if form in self._tried:
            return self._checked(function, outputs, targets, name)
        if self.task == "labels" and isinstance(outputs, Tensor):
            check_labels(outputs, targets)
        if function is cross_entropy:
            found = self._checked(function, outputs, targets, name)
        else:
            found = checked_loss(fitting_loss(function, outputs, targets), name)
        if len(targets) > 1 and torch.is_grad_enabled():
            self._tried.add(form)
        return found

    def _checked(self, function: Loss, outputs: Any, targets: Tensor, name: str) -> Tensor:
        if function is not cross_entropy:
            return checked_loss(function(outputs, targets), name)
        try:
            return checked_loss(cross_entropy(outputs, targets, self.dim), name)
        except IndexError:  # torch says which class, and not what it means
            check_classes(targets, classes_last(outputs, targets, self.dim)[0].shape[1])
            raise

    def score(self, module: nn.Module, examples: ClientData) -> tuple[float, int]:
        """The sum of losses over all targets, and how many of them the model has right."""
        inputs, targets = self.pair(examples)
        outputs = module(inputs)
        weight = self.weight(examples)
        loss = float(self._loss_of(outputs, targets)) * weight if weight else 0.0
        if self.task == "regression":
            return loss, 0
        if several_labels(outputs, targets):
            return loss, int(((outputs > 0) == (targets > 0.5)).sum())
        scores, labels = counted(*self.rows(outputs, targets))
        return loss, int((scores.argmax(1) == labels).sum())

    def rows(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Classes for each position as rows, and everything else as it is."""
        return classes_last(outputs, targets, self.dim) if self.task == "classification" else (outputs, targets)

    @property
    def counts(self) -> bool:
        """Whether the number of right answers is known."""
        return self.task != "regression"

    def weight(self, examples: ClientData) -> int:
        """How many targets a batch has."""
        targets = self.pair(examples)[1]
        return targets.numel() if self.task == "labels" else weight_of(targets)


def _described(content: object) -> str:
    if isinstance(content, dict):
        return f"a dict of {', '.join(map(repr, list(content)[:5]))}"
    if isinstance(content, tuple | list):
        return f"a {type(content).__name__} of {', '.join(type(part).__name__ for part in content[:5]) or 'nothing'}"
    return "None" if content is None else f"an object of type {type(content).__name__}"
