"""The task of `batch-norm`: clients whose images differ in colour or in class, and a small ResNet with a norm of choice."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from sketchfed.data import DataSet, load

Numbers = npt.NDArray[Any]
Norm = Callable[[int], nn.Module]
NORMS: dict[str, Norm] = {"batch": nn.BatchNorm2d, "group": lambda channels: nn.GroupNorm(4, channels)}
SKEWS = ("features", "labels")


@dataclass(frozen=True, kw_only=True)
class Images:
    """What a client holds: images to train on, and images of its own kind that are held out."""

    x: Tensor
    y: Tensor
    x_held: Tensor
    y_held: Tensor


class Block(nn.Module):
    """A basic residual block (He et al. 2016, Fig. 5, left)."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), norm(outputs), nn.ReLU()),
            *(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), norm(outputs)),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = (
            nn.Sequential() if same else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


def resnet(width: int, norm: str, *, seed: int) -> nn.Module:
    """ResNet-8: a convolution of stride 2, three blocks of `width`, 2·`width` and 4·`width` channels, and a dense layer."""
    made = NORMS[norm]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            *(nn.Conv2d(3, width, 3, 2, 1, bias=False), made(width), nn.ReLU()),
            *(Block(width, width, 1, made), Block(width, 2 * width, 2, made), Block(2 * width, 4 * width, 2, made)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10)),
        )


def clients_of(skew: str, *, clients: int, images: int, held: int, concentration: float, seed: int, part: str) -> list[Images]:
    """CIFAR-10 for clients that differ in one way. Nobody's training images are anybody else's.

    With "features", each client has a contrast, a brightness and a tint of its own, and all classes alike. With "labels", each
    has shares of the classes of its own, drawn from Dirichlet(`concentration`), in training and in held-out images. `part` is
    "test" for the test images of the data set, or "validation" for training images that nobody trains on.
    """
    data, draw = _cifar10(), np.random.default_rng([seed, SKEWS.index(skew)])
    shares = draw.dirichlet([concentration] * 10, clients) if skew == "labels" else np.full((clients, 10), 0.1)
    places = _Places(data.y_train.numpy(), draw)
    trained = [places.taken(_rounded(images * share)) for share in shares]
    source = (data.x_train, data.y_train) if part == "validation" else (data.x_test, data.y_test)
    kept = [
        (places if part == "validation" else _Places(data.y_test.numpy(), draw)).taken(_rounded(held * share))
        for share in shares
    ]
    made = []
    for rows, rows_held in zip(trained, kept, strict=True):
        look = _look(draw) if skew == "features" else (1.0, 0.0)
        made.append(
            Images(
                x=_seen(data, data.x_train[rows], look),
                y=data.y_train[rows],
                x_held=_seen(data, source[0][rows_held], look),
                y_held=source[1][rows_held],
            )
        )
    return made


@cache
def _cifar10() -> DataSet:
    return load("cifar10")


class _Places:
    """The images of each class in a random order, which are given away one after the other."""

    def __init__(self, labels: Numbers, draw: np.random.Generator) -> None:
        self._left = [draw.permutation(np.flatnonzero(labels == label)) for label in range(10)]

    def taken(self, counts: Numbers) -> Tensor:
        """The next images of each class: fewer if a class is used up."""
        found = [left[:count] for left, count in zip(self._left, counts, strict=True)]
        self._left = [left[count:] for left, count in zip(self._left, counts, strict=True)]
        return torch.from_numpy(np.concatenate(found))


def _rounded(amounts: Numbers) -> Numbers:
    """Whole numbers with the same sum: the largest remainders are rounded up."""
    whole = np.floor(amounts + 1e-9).astype(np.int64)
    short = round(float(amounts.sum())) - int(whole.sum())
    whole[np.argsort(whole - amounts, kind="stable")[:short]] += 1
    return whole


Look = tuple[Tensor | float, Tensor | float]
"""What a channel is multiplied with, and what is added to it."""


def _look(draw: np.random.Generator) -> Look:
    gain = draw.uniform(0.4, 1.2) * np.exp(draw.uniform(-0.4, 0.4, 3))
    offset = draw.uniform(-0.1, 0.25) + draw.uniform(-0.1, 0.1, 3)
    return torch.tensor(gain, dtype=torch.float32), torch.tensor(offset, dtype=torch.float32)


def _seen(data: DataSet, images: Tensor, look: Look) -> Tensor:
    """Images as a client's camera sees them, prepared for the model."""
    gain, offset = look
    changed = (images.to(torch.float32) * gain + 255 * offset).round().clamp(0, 255)
    return data.prepare(changed.to(torch.uint8))
