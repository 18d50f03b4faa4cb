"""The work that every contestant does: federated averaging of a perceptron on MNIST, a local epoch of SGD a client."""

import os
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

DATA_VARIABLE = "SKETCHFED_DATA"
EXAMPLES = 60_000
SHAPE = (28, 28)
WIDTHS = (784, 200, 200, 10)


@dataclass(frozen=True, kw_only=True)
class Work:
    """`rounds` rounds of `participants` out of `clients`, timed after `warmup` rounds that nobody counts.

    With `train = False` clients return the model as they got it: what is left is the price of the engine.
    """

    rounds: int
    warmup: int = 1
    clients: int = 100
    participants: int = 10
    examples: int = 600  # of each client: 60 steps
    batch: int = 10
    rate: float = 0.1
    train: bool = True


def model() -> nn.Sequential:
    """784-200-200-10 with ReLU, the perceptron of McMahan et al. 2017."""
    first, second, third = (nn.Linear(i, o) for i, o in pairwise(WIDTHS))
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third)


@cache
def pixels() -> tuple[Tensor, Tensor]:
    """MNIST in a random order, or noise of its shape where it is not at hand: steps take as long on one as on the other."""
    file = Path(os.environ.get(DATA_VARIABLE, ".")) / "mnist.npz"
    generator = np.random.default_rng(7)
    if file.is_file():
        order = generator.permutation(EXAMPLES)
        with np.load(file) as arrays:
            images, labels = arrays["x_train"][order], arrays["y_train"][order]
    else:
        images = generator.integers(0, 256, (EXAMPLES, *SHAPE), dtype=np.uint8)
        labels = generator.integers(0, WIDTHS[-1], EXAMPLES)
    return torch.from_numpy(images), torch.from_numpy(labels).long()


@cache
def data() -> tuple[Tensor, Tensor]:
    """The images as a model takes them, from 0 to 1."""
    images, labels = pixels()
    return images.flatten(1).float().div_(255), labels


def share(client: int, examples: int) -> tuple[Tensor, Tensor]:
    """A client's own examples: with data in a random order, any slice is an IID share."""
    inputs, labels = data()
    rows = slice(client * examples % EXAMPLES, client * examples % EXAMPLES + examples)
    return inputs[rows], labels[rows]


def local_epoch(trained: nn.Module, inputs: Tensor, labels: Tensor, *, batch: int, rate: float, fused: bool) -> None:
    """An epoch of SGD on the cross entropy as one writes it in torch, on slices of tensors instead of a DataLoader."""
    optimizer = torch.optim.SGD(trained.parameters(), lr=rate, fused=fused)
    loss = nn.CrossEntropyLoss()
    order = torch.randperm(len(inputs))
    for start in range(0, len(inputs), batch):
        rows = order[start : start + batch]
        optimizer.zero_grad()
        loss(trained(inputs[rows]), labels[rows]).backward()
        optimizer.step()
