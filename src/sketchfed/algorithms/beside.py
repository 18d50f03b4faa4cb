"""Trainers for vectors that hold more than a model: a client's weight, or its control variate."""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import functional

from sketchfed.algorithms.base import Algorithm
from sketchfed.algorithms.combined import TellsDecoded
from sketchfed.algorithms.segments import Segments
from sketchfed.algorithms.state import RoundContext
from sketchfed.errors import InputError
from sketchfed.nn.model_sketch import ModelSketch
from sketchfed.seeds import PublicSeed
from sketchfed.training import LocalWork, Pull, Trainer, Turn
from sketchfed.training.items import Stream

CONTROL = "sketchfed.control"
"""The name under which a client keeps its control variate, in `Turn.kept`."""


def extended(trainer: Trainer, algorithm: Algorithm, sizes: Sequence[int], seed: PublicSeed) -> Trainer:
    """The trainer of the vector that travels, from that of the model. `sizes` are the clients' numbers of examples."""
    segments = algorithm.segments
    if segments is None or segments.dim == segments.model:
        return trainer
    if segments.control:
        if not isinstance(algorithm, TellsDecoded):
            raise InputError(
                "algorithm.scaffold = true needs to know what the server decodes of a vector, which algorithm "
                f"'{algorithm.name}' does not say. Give it a method `decoded(x, context)`, or use 'fedavg' or 'iterative'."
            )
        return ControlledTrainer(trainer, segments, algorithm, seed)
    return WeighedTrainer(trainer, segments, sizes, algorithm.most_examples or max(sizes))


class _Extended:
    """A trainer of the model in a longer vector. Everything but training looks at the model only."""

    def __init__(self, trainer: Trainer, segments: Segments) -> None:
        self._trainer, self._segments = trainer, segments
        self.dim, self.sequential = segments.dim, trainer.sequential

    def check(self, examples: Any) -> None:
        self._trainer.check(examples)

    def gradients(self, weights: Tensor, examples: Any, out: Tensor | None = None) -> Tensor:
        found = self._trainer.gradients(self._model(weights), examples)
        return functional.pad(found, (0, self.dim - found.shape[1]))

    def clipped_sum(self, weights: Tensor, examples: Any, clip: float) -> Tensor:
        found = self._trainer.clipped_sum(self._model(weights), examples, clip)
        return functional.pad(found, (0, self.dim - len(found)))

    def sketched(self, form: ModelSketch) -> NoReturn:
        raise InputError("weights and control variates do not go with training through sketched layers.")

    def gram(self, step: Tensor) -> Tensor:
        return step

    def outputs(self, weights: Tensor, x: Tensor) -> Tensor:
        return self._trainer.outputs(self._model(weights), x)

    def score(self, weights: Tensor, examples: Any) -> tuple[float, int]:
        return self._trainer.score(self._model(weights), examples)

    def _model(self, weights: Tensor) -> Tensor:
        return weights[: self._segments.model]


class WeighedTrainer(_Extended):
    """Multiplies a client's change by its weight and puts the weight behind it.

    The weight is the client's number of examples, at most `most`, divided by `most`. The server divides the mean of all changes
    by the mean weight (McMahan et al. 2017, Alg. 1, where both sums are over the clients of the round).
    """

    def __init__(self, trainer: Trainer, segments: Segments, sizes: Sequence[int], most: int) -> None:
        super().__init__(trainer, segments)
        self._sizes, self._most = sizes, most

    def train(self, weights: Tensor, examples: Any, work: LocalWork, turn: Turn) -> Tensor:
        start = self._model(weights)
        trained = self._trainer.train(start, examples, work, turn)
        start = start.to(trained.device)
        weight = min(self._sizes[turn.client], self._most) / self._most
        moved = trained.sub_(start).mul_(weight).add_(start)
        return torch.cat([moved, moved.new_tensor([self._segments.scale * weight])])


class ControlledTrainer(_Extended):
    """Corrects local steps by control variates: the gradient becomes g − cᵢ + c.

    Paper: Karimireddy et al. 2020 (SCAFFOLD), Alg. 1, with Option II for the client's new variate: cᵢ⁺ = cᵢ − c + (x − y)/(K·η)
    for K steps of rate η from x to y. The change of the variate travels behind that of the weights, in the same code. Where the
    code loses something, the client moves its own variate by what the server decodes of its change, times `Segments.gain`. So
    the server's variate stays the mean of the clients', whatever the code (compare Mishchenko et al. 2019, DIANA).
    """

    def __init__(self, trainer: Trainer, segments: Segments, algorithm: TellsDecoded, seed: PublicSeed) -> None:
        super().__init__(trainer, segments)
        self._algorithm, self._seed = algorithm, seed

    def train(self, weights: Tensor, examples: Any, work: LocalWork, turn: Turn) -> Tensor:
        if isinstance(examples, Stream) and work.steps is None:
            raise InputError(
                "algorithm.scaffold = true divides by the number of steps, and nobody knows how many batches a DataLoader "
                "gives. Set algorithm.local_steps."
            )
        segments, start = self._segments, self._model(weights)
        first, last = segments.control_span
        common, own = weights[first:last], self._kept(turn)
        pull = functional.pad(common - own, (0, segments.buffers))
        turn.pull = Pull(turn.pull.proximal, pull)
        trained = self._trainer.train(start, examples, work, turn).cpu()  # where both of its encodings have the same bits
        out = weights.clone()
        if torch.equal(trained, start):  # nothing was learnt, or training failed and counts as zero
            return out
        moved = (start - trained)[: segments.parameters]
        change = moved.div_(work.count(examples.size) * work.rate).sub_(common)
        turn.kept[CONTROL] = own + self._decoded(change, turn) * segments.gain
        out[: segments.model] = trained
        out[first:last] += change
        return out

    def _kept(self, turn: Turn) -> Tensor:
        found = turn.kept.get(CONTROL)
        if found is None:
            return torch.zeros(self._segments.control)
        if not isinstance(found, Tensor) or found.shape != (self._segments.control,):
            raise InputError("the control variate that this client kept belongs to another model. Start a new run.")
        return found

    def _decoded(self, change: Tensor, turn: Turn) -> Tensor:
        """What the server decodes of this client's change of its variate."""
        first, last = self._segments.control_span
        whole = torch.zeros(self.dim)
        whole[first:last] = change
        context = RoundContext(round=turn.round, seed=self._seed, client=turn.client)
        return self._algorithm.decoded(whole, context)[first:last]
