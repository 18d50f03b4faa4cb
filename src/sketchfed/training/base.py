"""The common part of all trainers: the local work, the order of batches and the scoring of a model."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as trees

from sketchfed.errors import InputError
from sketchfed.kernels.draws import permutation
from sketchfed.nn.model_sketch import ModelSketch
from sketchfed.seeds import PublicSeed
from sketchfed.training.memory import Turn

CHUNK = 16
"""The number of per-example gradients that are in memory at a time."""


class ClientData(Protocol):
    """A client's examples, or a batch of them, of whatever kind."""

    @property
    def size(self) -> int:
        """The number of examples."""

    def content(self) -> Any:
        """All of them as one batch, in the form in which a loss of a batch takes it."""

    def part(self, start: int, stop: int) -> Any:
        """Some of the examples, which follow each other."""


class Examples(NamedTuple):
    """Prepared inputs `(n, *shape)` and their targets."""

    x: Tensor
    y: Tensor

    @property
    def size(self) -> int:
        """The number of examples."""
        return len(self.x)

    def content(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets."""
        return self.x, self.y

    def part(self, start: int, stop: int) -> "Examples":
        """Some of the examples, which follow each other."""
        return Examples(self.x[start:stop], self.y[start:stop])


class LiveExamples(Examples):
    """Examples with random transforms, which change each time they are read. `x` and `y` are the result of one reading.

    `read(rows, seed)` reads some of them again, with transforms that draw from the seed.
    """

    read: Callable[[Tensor, PublicSeed], Examples]

    def __new__(cls, x: Tensor, y: Tensor, read: Callable[[Tensor, PublicSeed], Examples]) -> "LiveExamples":
        made = super().__new__(cls, x, y)
        made.read = read
        return made


def taken(examples: Any, rows: Tensor, seed: PublicSeed) -> Any:
    """Select some of the examples. Random transforms draw from the seed."""
    if isinstance(examples, LiveExamples) or not isinstance(examples, Examples):
        return examples.read(rows, seed)
    return Examples(examples.x[rows], examples.y[rows])


class Score(NamedTuple):
    """The mean loss, the accuracy and other metrics by name on a data set. None for what is not known."""

    loss: float | None
    accuracy: float | None
    others: Mapping[str, float | None] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class LocalWork:
    """The work of a client in one round: `steps` gradient steps, or `epochs` passes over its data if `steps` is None.

    With `batch` None, each step uses all examples (local GD). Otherwise each pass over the data draws batches of this size
    without replacement (local SGD). Momentum starts from zero each round: v ← momentum·v + g, w ← w − rate·v. `decay` adds
    decay·w, the gradient of (decay/2)‖w‖², to g.
    """

    rate: float
    steps: int | None = None
    epochs: int = 1
    batch: int | None = None
    momentum: float = 0.0
    decay: float = 0.0

    def count(self, examples: int) -> int:
        """The number of steps for this many examples."""
        return self.steps if self.steps is not None else self.epochs * -(-examples // (self.batch or examples))

    def order(self, examples: int, seed: PublicSeed) -> tuple[Tensor, list[tuple[int, int]]]:
        """Return the indices of the examples in the order of use, and the slices of this order that form the batches."""
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
    """Computes training steps, gradients and outputs of a model with flat weights. Trainers are thread-safe."""

    dim: int

    @property
    def sequential(self) -> bool:
        """Whether clients must be trained one after the other: the model draws from torch's global generator, or on a GPU."""

    def check(self, examples: Any) -> None:
        """Raise `InputError` unless the model can be trained on examples like these."""

    def train(self, weights: Tensor, examples: Any, work: LocalWork, turn: Turn) -> Tensor:
        """Return new weights after the local work. The weights given are not modified; `turn.kept` may be.

        Weights are given on the CPU. What is returned may be on the device that trains.
        """

    def gradients(self, weights: Tensor, examples: Any, out: Tensor | None = None) -> Tensor:
        """Return the gradient of each example's own loss, `(n, dim)`, perhaps on the device that trains.

        A trainer may write the result into `out`, which must have at least n rows.
        """

    def clipped_sum(self, weights: Tensor, examples: Any, clip: float) -> Tensor:
        """Return the sum `(dim,)` of the examples' gradients, each scaled down to a norm of at most `clip`."""

    def sketched(self, form: ModelSketch) -> "Trainer":
        """Return the trainer of the model's client form. `train` returns the sketched weights plus the update to send."""

    def gram(self, step: Tensor) -> Tensor:
        """How these weights move when the server takes a step: by the step itself, or by RRᵀ times it in a client form."""

    def outputs(self, weights: Tensor, x: Tensor) -> Tensor:
        """Return the model's outputs for prepared inputs in evaluation mode."""

    def score(self, weights: Tensor, examples: Any) -> tuple[float, int]:
        """Return the sum of losses and the number of correct answers (0 for regression) on a chunk of examples."""


@contextmanager
def explained(examples: ClientData, *, of_batch: bool = False) -> Iterator[None]:
    """Replace torch's errors by a clear message if a model does not fit its data.

    `of_batch` says that the user's own loss calls the model.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        what = f"examples of shape {tuple(examples.x.shape[1:])}" if isinstance(examples, Examples) else "these examples"
        last = (
            " If the model takes several inputs, or returns something else than a tensor, pass batch_loss(model, batch)."
            if isinstance(error, TypeError | AttributeError) and not of_batch
            else ""
        )
        raise InputError(
            f"the model cannot be trained on {what}: {type(error).__name__}: {str(error).rstrip('.')}. "
            f"{_type_advice(examples, str(error))}Check the model's input shape, its number of outputs and the loss.{last}"
        ) from error


def _type_advice(examples: ClientData, said: str) -> str:
    """What to do about types of numbers, if an error of torch is about them."""
    if not any(word in said for word in ("dtype", "scalar type", "Double", "Long", "FloatTensor")):
        return ""
    leaves, _ = trees.tree_flatten(tuple(examples) if isinstance(examples, Examples) else examples.content())
    types = sorted({str(leaf.dtype).removeprefix("torch.") for leaf in leaves if isinstance(leaf, Tensor)})
    return (
        f"Batches hold {' and '.join(types)}. Layers take float32 (x.float()); an embedding and classes take int64 (y.long()). "
    )


def batches(examples: Any, work: LocalWork, seed: PublicSeed) -> Iterator[Any]:
    """Yield the batches of a round's local work: views if they follow the order of the examples, and otherwise copies.

    Only one batch is copied at a time. It then stays in the cache for the step that uses it. Live examples are read again.
    """
    if not isinstance(examples, Examples):
        yield from examples.batches(work, seed)
        return
    order, slices = work.order(len(examples.x), seed)
    if isinstance(examples, LiveExamples):
        for step, (start, stop) in enumerate(slices):
            yield examples.read(order[start:stop], seed.child("transforms", step))
        return
    x, y = examples
    for start, stop in slices:
        if stop - start == len(x):
            yield examples
        else:
            rows = order[start:stop]
            yield Examples(x.index_select(0, rows), y.index_select(0, rows))


def spans(count: int, most: int) -> list[tuple[int, int]]:
    """Cut examples into parts, `most` at a time. Only if there is no other way does a part hold a single example.

    Some models and losses of users squeeze a batch of one example to an example.
    """
    starts = list(range(0, count, most))
    if most > 2 and count > 1 and count - starts[-1] == 1:
        starts[-1] -= 1
    return list(zip(starts, [*starts[1:], count], strict=True)) if starts else []


def scored(outputs: Tensor, targets: Tensor, mean_loss: Tensor) -> tuple[float, int]:
    right = int((outputs.argmax(1) == targets).sum()) if not targets.is_floating_point() else 0
    return float(mean_loss) * len(targets), right
