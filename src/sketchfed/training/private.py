"""Local work at example level: its batches, and steps in which no example moves more than its clipped share.

A hidden batch takes each example with the same probability, drawn from the client's secret: who was in it, nobody else knows,
and that is what amplifies privacy (Poisson sampling; Abadi et al. 2016). A pass takes each example once, in an order that
anyone may know: nothing is amplified, but an example is touched once a pass only (Nicolas et al. 2025, Sec. 3.4). Sums are
divided by `batch`, which is public, not by the size that a batch had.
"""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from sketchfed.kernels.draws import permutation
from sketchfed.privacy.sampling import poisson_sample
from sketchfed.seeds import PublicSeed, SecretSeed
from sketchfed.training.base import Examples, LocalWork, Trainer

Noise = Callable[[Tensor, SecretSeed], Tensor]
"""Adds noise to a sum of clipped numbers."""
Batches = Iterable[tuple[Examples, SecretSeed]]
"""The batch of each local step, and a secret for what else that step draws."""


def probability(work: LocalWork, examples: int) -> float:
    """That with which an example is in a batch: `batch` of them are expected."""
    assert work.batch is not None
    return min(1.0, work.batch / examples) if examples else 0.0


def poisson_batch(examples: Examples, chance: float, secret: SecretSeed) -> Examples:
    """Each example with the same chance, independent of the others."""
    if chance >= 1:
        return examples
    chosen = torch.from_numpy(poisson_sample(secret.child("batch"), len(examples.x), chance=chance))
    return Examples(examples.x[chosen], examples.y[chosen])


def passed_batches(examples: int, batch: int) -> int:
    """How many batches a pass over so many examples has; the last may be short."""
    return max(1, -(-examples // batch))


def passed_batch(examples: Examples, batch: int, turn: int, seed: PublicSeed) -> Examples:
    """The batch of a client that was chosen `turn` times before: pass after pass, each in a new order from the client's seed.

    It is a function of the turn alone, so a round that is run again uses the same examples.
    """
    count = len(examples.x)
    index, place = divmod(turn, passed_batches(count, batch))
    if batch >= count:
        return examples
    order = torch.from_numpy(permutation(seed.child("pass", index).stream, dim=count))
    chosen = order[place * batch : (place + 1) * batch].long()
    return Examples(examples.x[chosen], examples.y[chosen])


def private_descent(
    trainer: Trainer, weights: Tensor, batches: Batches, work: LocalWork, *, clip: float, noise: Noise
) -> Tensor:
    """The weights and the change of local steps whose gradients are clipped for each example and noised.

    Paper: Song et al. 2023, Alg. 2, lines 13 to 17, with clipping in place of an assumed Lipschitz constant, and noise on the
    sum of a batch. Whatever is computed from the result later needs no more noise.
    """
    assert work.batch is not None
    trained, said = weights.clone(), weights.clone()
    velocity = torch.zeros_like(trained) if work.momentum else None
    for batch, own in batches:
        step = noise(trainer.clipped_sum(trained, batch, clip), own).div_(work.batch)
        if work.decay:
            step.add_(trained, alpha=work.decay)
        if velocity is not None:
            step = velocity.mul_(work.momentum).add_(step)
        said.add_(step, alpha=-work.rate)
        trained.add_(trainer.gram(step), alpha=-work.rate)
    return said


def hidden_batches(examples: Examples, work: LocalWork, secret: SecretSeed) -> Iterator[tuple[Examples, SecretSeed]]:
    """The batch of each local step, and a secret for what else that step draws."""
    chance = probability(work, len(examples.x))
    for index in range(work.count(len(examples.x))):
        own = secret.child("step", index)
        yield poisson_batch(examples, chance, own), own
