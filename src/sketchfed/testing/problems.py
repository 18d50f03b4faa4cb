"""Small problems: a few examples, and models that train on them in a millisecond."""

import torch
from torch import nn

from sketchfed.models import build
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples
from sketchfed.vectors import flatten, load

SEED = PublicSeed(7)


def examples(count: int = 23, *, shape: tuple[int, ...] = (6,), outputs: int = 4, loss: str = "cross_entropy") -> Examples:
    """Random examples. Other counts give other examples; the loss says whether targets are numbers or classes."""
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, *shape, generator=generator)
    if loss == "squares":
        return Examples(x, torch.randn(count, outputs, generator=generator))
    return Examples(x, torch.randint(outputs, (count,), generator=generator))


def data_of(clients: int, *, loss: str = "squares", shape: tuple[int, ...] = (6,)) -> list[Examples]:
    """Examples of several clients, each with a number of its own."""
    return [examples(5 + client, shape=shape, loss=loss) for client in range(clients)]


def dense_model(name: str, **options: object) -> nn.Module:
    """A built-in model of 6 inputs and 4 outputs; convex ones are moved off zero."""
    module = build(name, shape=(6,), outputs=4, seed=SEED, **options)
    return load(module, flatten(module) + 0.1 * torch.randn(len(flatten(module)), generator=torch.Generator().manual_seed(3)))
