"""Training that never fails because of the data.

A server chooses the weights. It can choose them so that training leaves the finite numbers if, and only if, some example has
some property. A client that then refuses to answer tells the server one bit of its data, without noise and at no cost. So where
anything is hidden, a unit whose contribution is not finite contributes zero, and the client answers as ever.
"""

import logging

import torch
from torch import Tensor

from sketchfed.nn.model_sketch import ModelSketch
from sketchfed.training.base import Examples, LocalWork, Trainer
from sketchfed.training.memory import Turn

log = logging.getLogger("sketchfed")

MOST = 1e12
"""The largest number in a contribution. What is larger may overflow when it is encoded, and no honest training leads there."""


class TotalTrainer:
    """A trainer in which contributions that are not finite, or absurdly large, count as zero: of clients and of examples."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.dim, self.sequential = trainer.dim, trainer.sequential
        self.check, self.gram, self.outputs, self.score = trainer.check, trainer.gram, trainer.outputs, trainer.score

    def train(self, weights: Tensor, examples: Examples, work: LocalWork, turn: Turn) -> Tensor:
        trained = self._trainer.train(weights, examples, work, turn)
        if _small((trained - weights)[None]).all():
            return trained
        _warn("this client's update")
        return weights.clone()

    def gradients(self, weights: Tensor, examples: Examples, out: Tensor | None = None) -> Tensor:
        found = self._trainer.gradients(weights, examples, out)
        small = _small(found)
        if not small.all():
            _warn(f"the gradients of {int((~small).sum())} examples")
            found[~small] = 0.0
        return found

    def clipped_sum(self, weights: Tensor, examples: Examples, clip: float) -> Tensor:
        found = self._trainer.clipped_sum(weights, examples, clip)
        if _small(found[None]).all():
            return found
        _warn("the gradients of some examples")
        total = torch.zeros_like(found)
        for place in range(len(examples.x)):
            one = Examples(examples.x[place : place + 1], examples.y[place : place + 1])
            own = self._trainer.clipped_sum(weights, one, clip)
            if _small(own[None]).all():
                total += own
        return total

    def sketched(self, form: ModelSketch) -> "TotalTrainer":
        return TotalTrainer(self._trainer.sketched(form))


def _small(rows: Tensor) -> Tensor:
    """Which rows hold no number that is too large. NaN is not small."""
    return (rows.abs() <= MOST).all(dim=1)


def _warn(what: str) -> None:
    log.warning("training led to numbers that are not finite, or absurdly large: %s counts as zero. Nobody else is told.", what)
