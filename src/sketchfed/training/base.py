"""What every trainer shares: the local work to do, the order of batches, and how a model is scored."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.kernels.draws import permutation
from sketchfed.nn.model_sketch import ModelSketch
from sketchfed.seeds import PublicSeed

CHUNK = 16
"""Examples whose gradients are held at a time, where each has one of its own."""


class Examples(NamedTuple):
    """Prepared inputs `(n, *shape)` in float32 and their targets."""

    x: Tensor
    y: Tensor


class Score(NamedTuple):
    """Mean loss and accuracy (None for regression) over a data set."""

    loss: float
    accuracy: float | None


@dataclass(frozen=True, kw_only=True)
class LocalWork:
    """What a client does in a round: `steps` gradient steps, or `epochs` passes over its data if `steps` is None.

    `batch` None takes all examples in each step (local GD), a number draws batches without replacement, pass after pass
    (local SGD). Momentum starts anew each round: v ← momentum·v + g, w ← w − rate·v. `decay` adds decay·w to g, the
    gradient of (decay/2)‖w‖².
    """

    rate: float
    steps: int | None = None
    epochs: int = 1
    batch: int | None = None
    momentum: float = 0.0
    decay: float = 0.0

    def count(self, examples: int) -> int:
        """How many steps this is for so many examples."""
        return self.steps if self.steps is not None else self.epochs * -(-examples // (self.batch or examples))

    def order(self, examples: int, seed: PublicSeed) -> tuple[Tensor, list[tuple[int, int]]]:
        """Indices of examples in the order of use, and the slices of it that are batches."""
        batch = min(self.batch or examples, examples)
        if batch == examples:
            return torch.arange(examples), [(0, examples)] * self.count(examples)
        each = -(-examples // batch)
        passes = -(-self.count(examples) // each)
        orders = [permutation(seed.child("pass", index).stream, dim=examples) for index in range(passes)]
        starts = [turn * examples + start for turn in range(passes) for start in range(0, examples, batch)]
        slices = [(start, min(start + batch, (start // examples + 1) * examples)) for start in starts]
        return torch.from_numpy(np.concatenate(orders).astype(np.int64)), slices[: self.count(examples)]


class Trainer(Protocol):
    """A model's arithmetic on flat weights. Calls from several threads at a time do not disturb each other."""

    dim: int
    sequential: bool
    """Whether clients must be trained one after the other: so it is where the model draws from torch's global generator."""

    def check(self, examples: Examples) -> None:
        """Raise `InputError` unless the model can be trained on examples like these."""

    def train(self, weights: Tensor, examples: Examples, work: LocalWork, seed: PublicSeed) -> Tensor:
        """The weights and, added to them, the change that the local work asks for; those given are left alone."""

    def gradients(self, weights: Tensor, examples: Examples, out: Tensor | None = None) -> Tensor:
        """The gradient of each example's own loss, `(n, dim)`; in the memory of `out`, of n rows or more, if that helps."""

    def clipped_sum(self, weights: Tensor, examples: Examples, clip: float) -> Tensor:
        """The sum of the examples' gradients, each scaled to a norm of at most `clip`, `(dim,)`."""

    def sketched(self, form: ModelSketch) -> "Trainer":
        """The trainer of the model's client form: its weights are sketches, and `train` adds to them what is to be said."""

    def gram(self, step: Tensor) -> Tensor:
        """How these weights move when the server's move by such a step: as much, unless a sketch lies between them."""

    def outputs(self, weights: Tensor, x: Tensor) -> Tensor:
        """The model's outputs for prepared inputs, in evaluation mode."""

    def score(self, weights: Tensor, examples: Examples) -> tuple[float, int]:
        """Sum of losses and number of right answers (0 for regression) of a chunk of examples."""


@contextmanager
def explained(examples: Examples) -> Iterator[None]:
    """Where a module does not fit its data, say so in place of what torch says."""
    try:
        yield
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise InputError(
            f"the model cannot be trained on examples of shape {tuple(examples.x.shape[1:])}: {error}. Check the model's "
            "input shape, its number of outputs and the loss."
        ) from error


def batches(examples: Examples, work: LocalWork, seed: PublicSeed) -> Iterator[Examples]:
    """The batches of a round's local work, each a view into one gathered copy."""
    order, slices = work.order(len(examples.x), seed)
    order = order[: slices[-1][1]] if slices else order  # one step takes one batch, not a whole pass
    in_order = len(order) == len(examples.x) and slices[:1] == [(0, len(order))]
    x, y = (examples.x, examples.y) if in_order else (examples.x[order], examples.y[order])
    for start, stop in slices:
        yield Examples(x[start:stop], y[start:stop])


def scored(outputs: Tensor, targets: Tensor, mean_loss: Tensor) -> tuple[float, int]:
    right = int((outputs.argmax(1) == targets).sum()) if not targets.is_floating_point() else 0
    return float(mean_loss) * len(targets), right
