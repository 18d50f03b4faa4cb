"""Training that never fails because of the data.

A server chooses the weights. It can choose them so that training leaves the finite numbers if, and only if, some example has
some property. A client that then refuses to answer tells the server one bit of its data, without noise and at no cost. The same
holds if a model, a loss or a loop of the user's own raises an exception for certain data. So where anything is hidden, a unit
whose contribution is not finite, or raises an exception, contributes zero, and the client answers as ever.
"""

import logging

import torch
from torch import Tensor

from sketchfed.errors import WireError, reason
from sketchfed.nn.model_sketch import ModelSketch
from sketchfed.training.base import Examples, LocalWork, Trainer
from sketchfed.training.memory import ClientMemory, Turn

log = logging.getLogger("sketchfed")

MOST = 1e12
"""The largest number in a contribution. What is larger may overflow when it is encoded, and no honest training leads there."""


class TotalTrainer:
    """A trainer in which contributions, of clients and of examples, count as zero if they are not finite, absurdly large, or
    raise an exception.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.dim, self.sequential = trainer.dim, trainer.sequential
        self.check, self.gram, self.outputs, self.score = trainer.check, trainer.gram, trainer.outputs, trainer.score

    def train(self, weights: Tensor, examples: Examples, work: LocalWork, turn: Turn) -> Tensor:
        kept = dict(ClientMemory(kept=turn.kept).copy().kept)  # a copy of its tensors too, which training may change
        try:
            trained = self._trainer.train(weights, examples, work, turn)
        except WireError:  # the server said something else to this client than what all agreed on, which does not count as work
            raise
        except Exception as error:
            log.warning(
                "training raised an exception, so this client's update counts as zero. Nobody else is told. %s", reason(error)
            )
            turn.kept = kept
            return weights.clone()
        if _small((trained - weights.to(trained.device))[None]).all():
            return trained
        _warn("this client's update")
        turn.kept = kept
        return weights.clone()

    def gradients(self, weights: Tensor, examples: Examples, out: Tensor | None = None) -> Tensor:
        try:
            found = self._trainer.gradients(weights, examples, out)
        except Exception as error:
            return self._one_by_one(weights, examples, error)
        small = _small(found)
        if not small.all():
            _warn(f"the gradients of {int((~small).sum())} examples")
            found[~small] = 0.0
        return found

    def _one_by_one(self, weights: Tensor, examples: Examples, error: Exception) -> Tensor:
        """The gradient of each example, after an exception that one of them may have raised."""
        rows = torch.zeros(examples.size, self.dim)
        if examples.size == 1:
            log.warning(
                "an example raised an exception, so its gradient counts as zero. Nobody else is told. %s", reason(error)
            )
            return rows
        for place in range(examples.size):
            rows[place] = self.gradients(weights, examples.part(place, place + 1))[0]
        return rows

    def clipped_sum(self, weights: Tensor, examples: Examples, clip: float) -> Tensor:
        try:
            found = self._trainer.clipped_sum(weights, examples, clip)
            if _small(found[None]).all():
                return found
            _warn("the gradients of some examples")
        except Exception as error:
            if examples.size == 1:
                return self._one_by_one(weights, examples, error)[0]
        total = torch.zeros(self.dim)
        for place in range(examples.size if examples.size > 1 else 0):
            total += self.clipped_sum(weights, examples.part(place, place + 1), clip)
        return total

    def sketched(self, form: ModelSketch) -> "TotalTrainer":
        return TotalTrainer(self._trainer.sketched(form))


def _small(rows: Tensor) -> Tensor:
    """Which rows hold no number that is too large. NaN is not small."""
    return (rows.abs() <= MOST).all(dim=1)


def _warn(what: str) -> None:
    log.warning("training led to numbers that are not finite, or absurdly large: %s counts as zero. Nobody else is told.", what)
