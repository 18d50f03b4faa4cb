"""Observations of training on a few handwritten digits: what the attacks are tested with."""

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn

from sketchfed import PublicSeed
from sketchfed.attacks import Observation
from sketchfed.codecs.linear import LinearMap
from sketchfed.data import DataSet, load
from sketchfed.training import LOSSES, LocalWork
from sketchfed.vectors import flatten

SEED = PublicSeed(11)
STEP = LocalWork(rate=0.1, steps=1)


@cache
def _all_digits() -> DataSet:
    return load("digits")


def digits(count: int = 1, *, shape: tuple[int, ...] = (1, 8, 8), first: int = 0) -> tuple[Tensor, Tensor]:
    data = _all_digits()
    return data.prepare(data.x_train[first : first + count]).reshape(count, *shape), data.y_train[first : first + count]


def wide(module: nn.Module) -> nn.Module:
    """With weights in which units saturate enough for gradients to tell inputs apart, as Zhu et al. 2019 have them."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator) - 0.5)
    return module


def convolutional() -> nn.Module:
    """A small LeNet with sigmoids, 1,954 parameters."""
    first, second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, stride=2)
    return wide(nn.Sequential(first, nn.Sigmoid(), second, nn.Sigmoid(), nn.Flatten(), nn.Linear(128, 10)))


def dense() -> nn.Module:
    return wide(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))


def observed(
    module: nn.Module, x: Tensor, y: Tensor, *, work: LocalWork = STEP, known: LinearMap | None = None, noise: float = 0.0
) -> Observation:
    """What is seen of training a module on these examples; noise is relative to what it is added to."""
    weights = flatten(module)
    blank = torch.zeros(1)
    seen = Observation(
        values=blank, module=module, loss=LOSSES["cross_entropy"], weights=weights, work=work, seed=SEED, map=known
    )
    values = seen.seen(x, y).detach()
    normal = torch.randn(values.shape, generator=torch.Generator().manual_seed(1))
    deviation = noise * float(values.norm()) / len(values) ** 0.5
    return replace(seen, values=values + deviation * normal)


def decibels(guess: Tensor, truth: Tensor) -> float:
    return float(-10 * torch.log10((guess - truth).square().mean()))
