"""A plain training loop to compare trainers with, beside the small problems of `sketchfed.testing`."""

import torch
from torch import nn

from sketchfed.testing.problems import SEED, dense_model, examples
from sketchfed.training import Examples, LocalWork, Loss
from sketchfed.training.base import batches
from sketchfed.vectors import flatten, load

__all__ = ["SEED", "by_torch", "dense_model", "examples"]


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
