"""Rounds that estimate the mean input instead of a gradient."""

import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.training.base import Examples, LiveExamples, LocalWork, Trainer
from sketchfed.training.memory import Turn

LENGTH = 2.0**10
"""Inputs are multiplied by this, so that they exceed any clip norm. Clipping then keeps only their directions, and the noise
does not depend on the units of the inputs."""


class InputTrainer:
    """A trainer whose gradient for an example is minus the example's input, so that a local step adds the mean input.

    This is the gradient of −⟨w, x⟩, where w are the `inputs` weights from `start` on. All other weights have gradient zero.
    Clipping, noise, secure sums and accounting treat it like any other gradient.
    """

    def __init__(self, trainer: Trainer, *, start: int, inputs: int) -> None:
        self.dim, self.sequential = trainer.dim, trainer.sequential
        self.sketched, self.outputs, self.score = trainer.sketched, trainer.outputs, trainer.score
        self.inputs = inputs
        self._place = slice(start, start + inputs)

    def check(self, examples: Examples) -> None:
        if examples.x[:1].numel() not in (0, self.inputs):
            raise InputError(
                f"the first matrix of the model takes {self.inputs:,} numbers, but an example has {examples.x[0].numel():,}: "
                "the inputs of that matrix are not images. Remove subspace.centre and subspace.image."
            )

    def train(self, weights: Tensor, examples: Examples, work: LocalWork, turn: Turn) -> Tensor:
        """Take one step over all examples, whatever `work` says: their mean does not depend on the weights."""
        self.check(examples)
        trained = weights.clone()
        if isinstance(examples, LiveExamples):
            examples = examples.read(torch.arange(len(examples.x)), turn.seed.child("transforms"))
        mean = examples.x.flatten(1).sum(0) / max(1, len(examples.x))
        trained[self._place].add_(mean, alpha=work.rate * LENGTH)
        return trained

    def gradients(self, weights: Tensor, examples: Examples, out: Tensor | None = None) -> Tensor:
        self.check(examples)
        rows = torch.zeros(len(examples.x), self.dim)
        rows[:, self._place] = examples.x.flatten(1).mul(-LENGTH)
        return rows

    def clipped_sum(self, weights: Tensor, examples: Examples, clip: float) -> Tensor:
        rows = self.gradients(weights, examples)
        return torch.renorm(rows, p=2, dim=0, maxnorm=clip).sum(0)

    def gram(self, step: Tensor) -> Tensor:
        return step
