"""Trainers that do more than train a model: a client's weight, and corrections of local steps (SCAFFOLD, FedDyn)."""

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
GRADIENT = "sketchfed.gradient"
"""The name under which a client keeps FedDyn's gradient of its own loss."""


def extended(trainer: Trainer, algorithm: Algorithm, sizes: Sequence[int], seed: PublicSeed) -> Trainer:
    """The trainer of the vector that travels, from that of the model. `sizes` are the clients' numbers of examples."""
    segments = algorithm.segments
    if segments is None:
        return trainer
    if algorithm.correction:
        return (ControlledTrainer if algorithm.scaffold else DynamicTrainer)(trainer, segments, algorithm, seed)
    if not segments.weight:
        return trainer
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
        return torch.cat([moved, weights[-1:].to(moved) + self._segments.scale * weight])


class _Corrected(_Extended):
    """A trainer that corrects local steps by a vector that the client keeps, and that follows what the server decodes."""

    def __init__(self, trainer: Trainer, segments: Segments, algorithm: Algorithm, seed: PublicSeed) -> None:
        super().__init__(trainer, segments)
        if not isinstance(algorithm, TellsDecoded):
            raise InputError(
                f"{algorithm.correction} needs to know what the server decodes of a vector, which algorithm "
                f"'{algorithm.name}' does not say. Give it a method `decoded(x, context)`, or use 'fedavg' or 'iterative'."
            )
        self._tells, self._code, self._seed = algorithm, algorithm.code, seed
        self._alpha = algorithm.feddyn

    def _kept(self, turn: Turn, name: str, size: int) -> Tensor:
        found = turn.kept.get(name)
        if found is None:
            return torch.zeros(size)
        if not isinstance(found, Tensor) or found.shape != (size,):
            raise InputError("what this client kept to correct its steps belongs to another model. Start a new run.")
        return found

    def _followed(self, change: Tensor, turn: Turn) -> Tensor:
        """What the server decodes of this client's whole change `(dim,)`, after clipping, times `Segments.gain`."""
        context = RoundContext(round=turn.round, seed=self._seed, client=turn.client)
        decoded = self._tells.decoded(change, context)
        factor = self._segments.gain
        if self._segments.clip is not None:
            norm = float(self._code(self.dim, context).apply(change).double().norm())
            factor *= min(1.0, self._segments.clip / max(norm, 1e-30))
        return decoded.mul_(factor)


class ControlledTrainer(_Corrected):
    """Corrects local steps by control variates: the gradient becomes g − cᵢ + c.

    Paper: Karimireddy et al. 2020 (SCAFFOLD), Alg. 1, with Option II for the client's new variate: cᵢ⁺ = cᵢ − c + (x − y)/(K·η)
    for K steps of rate η from x to y. The change of the variate travels behind that of the weights, in the same code. Where the
    code loses something, the client moves its own variate by what the server decodes of its change, times `Segments.gain`. So
    the server's variate stays the mean of the clients', whatever the code (compare Mishchenko et al. 2019, DIANA).
    """

    def train(self, weights: Tensor, examples: Any, work: LocalWork, turn: Turn) -> Tensor:
        if isinstance(examples, Stream) and work.steps is None:
            raise InputError(
                "algorithm.scaffold = true divides by the number of steps, and nobody knows how many batches a DataLoader "
                "gives. Set algorithm.local_steps."
            )
        segments, start = self._segments, self._model(weights)
        first, last = segments.control_span
        common, own = weights[first:last], self._kept(turn, CONTROL, segments.control)
        pull = functional.pad(common - own, (0, segments.buffers))
        turn.pull = Pull(turn.pull.proximal, pull)
        trained = self._trainer.train(start, examples, work, turn).cpu()  # where both of its encodings have the same bits
        out = weights.clone()
        if torch.equal(trained, start):  # nothing was learnt, or training failed and counts as zero
            return out
        moved = (start - trained)[: segments.parameters]
        out[: segments.model] = trained
        out[first:last] += moved.div_(work.count(examples.size) * work.rate).sub_(common)
        turn.kept[CONTROL] = own + self._followed(out - weights, turn)[first:last]
        return out


class DynamicTrainer(_Corrected):
    """Minimises the client's loss − ⟨gᵢ, w⟩ + (α/2)·‖w − w₀‖², and keeps gᵢ ← gᵢ − α·(change of w).

    Paper: Acar et al. 2021 (FedDyn), Alg. 1. gᵢ becomes the gradient of the client's own loss where it ends, so at the optimum
    of all clients nobody moves. The server's h = −α·s (`stepped`) is the mean of all gᵢ. As in the authors' experiments, local
    work only approximates the minimum. Where the code loses something, gᵢ and h both move by what the server decodes, times
    `Segments.gain`, so that h stays the mean whatever the code.
    """

    def train(self, weights: Tensor, examples: Any, work: LocalWork, turn: Turn) -> Tensor:
        parameters = self._segments.parameters
        own = self._kept(turn, GRADIENT, parameters)
        turn.pull = Pull(self._alpha, functional.pad(own.neg(), (0, self._segments.buffers)))
        trained = self._trainer.train(weights, examples, work, turn).cpu()  # where both of its encodings have the same bits
        turn.kept[GRADIENT] = own - self._followed(trained - weights, turn)[:parameters] * self._alpha
        return trained
