"""Rounds that ask for the mean input in place of a gradient."""

import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed
from sketchfed.training.base import Examples, LocalWork, Trainer

LENGTH = 2.0**10
"""Inputs are made so much longer: than any clip norm, which then leaves directions, and the noise does not depend on units."""


class InputTrainer:
    """A trainer that takes minus an example's input for its gradient, so that a step of local work adds the mean input.

    It is the gradient of −⟨w, x⟩ for `inputs` of the weights, those from `start` on; all others have none. Clipping, noise,
    secure sums and accounting see a gradient like any other.
    """

    def __init__(self, trainer: Trainer, *, start: int, inputs: int) -> None:
        self.dim, self.sequential = trainer.dim, trainer.sequential
        self.sketched, self.outputs, self.score = trainer.sketched, trainer.outputs, trainer.score
        self.inputs = inputs
        self._place = slice(start, start + inputs)

    def check(self, examples: Examples) -> None:
        if examples.x[:1].numel() not in (0, self.inputs):
            raise InputError(
                f"the first matrix of the model takes {self.inputs:,} numbers, and an example has {examples.x[0].numel():,}: "
                "what goes into that matrix are no images. Remove subspace.centre and subspace.image."
            )

    def train(self, weights: Tensor, examples: Examples, work: LocalWork, seed: PublicSeed) -> Tensor:
        """One step over all examples, whatever the local work is: their mean does not depend on the weights."""
        self.check(examples)
        trained = weights.clone()
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
