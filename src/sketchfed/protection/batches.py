"""Local work at example level: its batches, and steps in which the gradient of each example is clipped.

A hidden batch contains each example with the same probability, drawn from the client's secret. Nobody else knows which examples
were in it, and that amplifies privacy (Poisson sampling; Abadi et al. 2016). A pass takes each example once, in an order that
anyone may know. Nothing is amplified, but an example is used only once per pass (Nicolas et al. 2025, Sec. 3.4). Sums are
divided by `batch`, which is public, not by the actual number of examples in a batch.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sketchfed.algorithms import RoundContext
from sketchfed.errors import InputError
from sketchfed.kernels.draws import permutation
from sketchfed.privacy.sampling import poisson_sample
from sketchfed.protection.passes import Passes, passed_batches
from sketchfed.seeds import PublicSeed, SecretSeed, secret_bytes
from sketchfed.training import Pull
from sketchfed.training.base import Examples, LocalWork, Trainer, taken

Noise = Callable[[Tensor, SecretSeed], Tensor]
"""Adds noise to a sum of clipped numbers."""
Batches = Iterable[tuple[Examples, SecretSeed]]
"""The batch of each local step, and a secret for all other random draws of that step."""
_NO_PULL = Pull()


class ExampleBatches(Protocol):
    """How the examples of a client are drawn for the steps of a round."""

    @property
    def drawn_in_secret(self) -> bool:
        """Whether nobody but the client knows which examples were drawn."""

    def draw(self, examples: Examples, context: RoundContext, secret: SecretSeed) -> Batches:
        """Return the batch of each local step, and a secret for all other random draws of that step."""


@dataclass(frozen=True)
class HiddenBatches:
    """Poisson batches, drawn from the client's secret."""

    work: LocalWork

    drawn_in_secret = True

    def draw(self, examples: Examples, context: RoundContext, secret: SecretSeed) -> Batches:
        return hidden_batches(examples, self.work, secret)


@dataclass(frozen=True)
class PassBatches:
    """One batch per round. Batches take turns in a public order."""

    batch: int
    passes: Passes

    drawn_in_secret = False

    def draw(self, examples: Examples, context: RoundContext, secret: SecretSeed) -> Batches:
        turn = self.passes.turn(context.seed, context.round, context.client)
        own = context.seed.child("examples", context.client)
        return [(passed_batch(examples, self.batch, turn, own), secret.child("step", 0))]


def batch_of(work: LocalWork) -> int:
    """The planned number of examples in a batch. Sums are divided by it."""
    if work.batch is None:
        raise InputError("privacy at example level works in batches. Set algorithm.batch.")
    return work.batch


def probability(work: LocalWork, examples: int) -> float:
    """The probability that an example is in a batch. It is chosen so that a batch has `batch` examples on average."""
    return min(1.0, batch_of(work) / examples) if examples else 0.0


def poisson_batch(examples: Any, chance: float, secret: SecretSeed) -> Any:
    """Draw a batch that contains each example with probability `chance`, independently of the others."""
    if chance >= 1 and type(examples) is Examples:
        return examples
    chosen = torch.from_numpy(poisson_sample(secret.child("batch"), examples.size, chance=chance))
    return taken(examples, chosen, PublicSeed.from_bytes(secret_bytes(secret.child("transforms"), 16)))


def passed_batch(examples: Any, batch: int, turn: int, seed: PublicSeed) -> Any:
    """The batch of a client that was chosen `turn` times before. Each pass has a new order, drawn from the client's seed.

    The batch depends only on the turn, so a round that is run again uses the same examples.
    """
    count = examples.size
    index, place = divmod(turn, passed_batches(count, batch))
    if batch >= count and type(examples) is Examples:
        return examples
    order = torch.from_numpy(permutation(seed.child("pass", index).stream, dim=count))
    chosen = order[place * batch : (place + 1) * batch].long()
    return taken(examples, chosen, seed.child("transforms", turn))


def private_descent(
    trainer: Trainer,
    weights: Tensor,
    batches: Batches,
    work: LocalWork,
    *,
    clip: float,
    noise: Noise,
    pull: Pull = _NO_PULL,
) -> Tensor:
    """Take local steps with per-example clipping and noise, and return the new weights. The input is not modified.

    A pull is added after the noise. It may depend on noisy weights and on what was sent before, and on no example.

    Paper: Song et al. 2023, Alg. 2, lines 13 to 17, with clipping instead of an assumed Lipschitz constant, and noise on the
    sum of a batch. Anything that is computed from the result needs no further noise.
    """
    batch_size = batch_of(work)
    trained, sent = weights.clone(), weights.clone()
    velocity = torch.zeros_like(trained) if work.momentum else None
    for batch, own in batches:
        step = noise(trainer.clipped_sum(trained, batch, clip), own).div_(batch_size)
        if work.decay:
            step.add_(trained, alpha=work.decay)
        pull.add_to(step, trained, weights)
        if velocity is not None:
            step = velocity.mul_(work.momentum).add_(step)
        sent.add_(step, alpha=-work.rate)
        trained.add_(trainer.gram(step), alpha=-work.rate)
    return sent


def hidden_batches(examples: Examples, work: LocalWork, secret: SecretSeed) -> Iterator[tuple[Examples, SecretSeed]]:
    """Yield the batch of each local step, and a secret for all other random draws of that step."""
    chance = probability(work, examples.size)
    for index in range(work.count(examples.size)):
        own = secret.child("step", index)
        yield poisson_batch(examples, chance, own), own
