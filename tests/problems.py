"""Small problems and a plain training loop to compare trainers with."""

import torch
from torch import nn

from sketchfed import PublicSeed
from sketchfed.models import build
from sketchfed.training import Examples, LocalWork, Loss
from sketchfed.training.base import batches
from sketchfed.vectors import flatten, load

SEED = PublicSeed(7)


def examples(count: int = 23, *, shape: tuple[int, ...] = (6,), outputs: int = 4, loss: str = "cross_entropy") -> Examples:
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, *shape, generator=generator)
    if loss == "squares":
        return Examples(x, torch.randn(count, outputs, generator=generator))
    return Examples(x, torch.randint(outputs, (count,), generator=generator))


def dense_model(name: str, **options: object) -> nn.Module:
    """A built-in model of 6 inputs and 4 outputs; convex ones are moved off zero."""
    module = build(name, shape=(6,), outputs=4, seed=SEED, **options)
    return load(module, flatten(module) + 0.1 * torch.randn(len(flatten(module)), generator=torch.Generator().manual_seed(3)))


def by_torch(module: nn.Module, loss: Loss, weights: torch.Tensor, data: Examples, work: LocalWork) -> torch.Tensor:
    """The weights after local work, by torch.optim.SGD on the module itself."""
    load(module, weights)
    module.train()
    optimizer = torch.optim.SGD(
        [p for p in module.parameters() if p.requires_grad], lr=work.rate, momentum=work.momentum, weight_decay=work.decay
    )
    for batch in batches(data, work, SEED):
        optimizer.zero_grad()
        loss(module(batch.x), batch.y).backward()
        optimizer.step()
    return flatten(module)
