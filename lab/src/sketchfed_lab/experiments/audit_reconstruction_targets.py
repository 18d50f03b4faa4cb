"""What `audit-reconstruction` attacks: data sets, the models trained on them, and how close a guess came."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from sketchfed import PublicSeed
from sketchfed.attacks import mse, psnr, recognised, ssim
from sketchfed.data import ADULT_CATEGORIES, ADULT_NUMBERS, DataSet, load
from sketchfed.draws import subset
from sketchfed.errors import InputError
from sketchfed.models import build, initialise
from sketchfed.training import Examples, LocalWork, Turn, make_trainer
from sketchfed.vectors import flatten

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "relu": nn.ReLU,
}
FLAT_IMAGES = {"digits": (1, 8, 8)}
"""The shapes of images that a data set keeps as rows."""
COLUMNS = {"adult": (len(ADULT_NUMBERS), *ADULT_CATEGORIES.values())}
"""How rows divide: the number of plain numbers, then the widths of one-hot categories."""

_LEARNING = LocalWork(rate=0.02, epochs=4, batch=64, momentum=0.9)  # of the classifier


class Decoder(nn.Module):
    """What the attack looks for, from 0 to 1 in every number, as inputs of the model: it has no parameters.

    Inputs lie between `low` and `high`, the ranges of public data. Rows with one-hot `columns` are either such inputs too, or,
    with a `sharpness`, have the softmax of sharpness·u for each category, so that they are looked for among what can be (Vero
    et al. 2023, "TabLeak").
    """

    def __init__(self, low: Tensor, high: Tensor, columns: Sequence[int] = (), sharpness: float = 0.0) -> None:
        super().__init__()
        self.low, self.high, self.columns, self.sharpness = low, high, list(columns), sharpness

    def forward(self, u: Tensor) -> Tensor:
        x = self.low + (self.high - self.low) * u
        if not self.sharpness:
            return x
        numbers = x[:, : self.columns[0]]
        categories = torch.split(u[:, self.columns[0] :], self.columns[1:], dim=1)
        return torch.cat([numbers, *((self.sharpness * each).softmax(1) for each in categories)], dim=1)

    def units(self, x: Tensor) -> Tensor:
        """Inputs as numbers from 0 to 1: the pixels of images."""
        return ((x - self.low) / (self.high - self.low)).clamp(0, 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """A data set, the model whose training is watched at its first weights, and what the adversary holds: public examples."""

    data: DataSet
    shape: tuple[int, ...]
    model: nn.Module
    public: Examples
    low: Tensor
    high: Tensor
    """Ranges of inputs in public examples: of a channel or of a column."""
    classifier: Callable[[Tensor], Tensor] | None
    """Another model than the one under attack, to tell what a reconstruction shows; None for rows."""

    @property
    def columns(self) -> tuple[int, ...]:
        """How rows divide; nothing for images."""
        return COLUMNS.get(self.data.name, ())

    def decoder(self, sharpness: float = 0.0) -> Decoder:
        return Decoder(self.low, self.high, self.columns, sharpness)

    def victims(self, count: int, seed: PublicSeed) -> Examples:
        """Drawn from the test part, which the adversary does not hold."""
        chosen = drawn(len(self.data.x_test), count, seed)
        return Examples(self.data.prepare(self.data.x_test[chosen]).reshape(-1, *self.shape), self.data.y_test[chosen])

    def own(self, count: int, seed: PublicSeed) -> Examples:
        """Drawn from what the adversary holds."""
        chosen = drawn(len(self.public.x), count, seed)
        return Examples(self.public.x[chosen], self.public.y[chosen])

    def typical(self) -> Tensor:
        """The guess of somebody who looks at nothing, `shape`: means of public data, and the commonest of categories."""
        mean = self.public.x.mean(0)
        if not self.columns:
            return mean
        numbers, *categories = torch.split(mean, list(self.columns))
        return torch.cat([numbers, *(functional.one_hot(each.argmax(), len(each)).float() for each in categories)])

    def closeness(self, guess: Tensor, truth: Examples) -> dict[str, list[float]]:
        """A number a victim of each score, the main one first, of which more is closer.

        Images: PSNR in dB, structural similarity and mean square error, of pixels from 0 to 1. Rows: the share of categories
        that are right, and the mean error of numbers in standard deviations.
        """
        if self.columns:
            numbers, *categories = zip(*(torch.split(rows, list(self.columns), 1) for rows in (guess, truth.x)), strict=True)
            right = torch.stack([found.argmax(1) == true.argmax(1) for found, true in categories]).double().mean(0)
            return {"categories": _short(right), "numbers": _short((numbers[0] - numbers[1]).abs().mean(1))}
        pixels = self.decoder().units(guess), self.decoder().units(truth.x)
        return {"psnr": _short(psnr(*pixels)), "ssim": _short(ssim(*pixels)), "mse": _short(mse(*pixels))}

    def recognised(self, guess: Tensor, truth: Examples) -> dict[str, float]:
        """The shares of guesses and of originals that the classifier takes for what they are."""
        if self.classifier is None:
            return {}
        shares = (recognised(self.classifier, images, truth.y) for images in (guess, truth.x))
        return dict(zip(("recognised", "recognised_originals"), shares, strict=True))


@lru_cache(maxsize=1)
def target(name: str, *, public: int, activation: str, channels: int, hidden: int, seed: PublicSeed) -> Target:
    """Make a target with first weights: a small LeNet for images, with this many channels, or a hidden layer for rows."""
    data = load(name)
    shape = FLAT_IMAGES.get(name, data.shape)
    images = len(shape) == 3
    if not images and name not in COLUMNS:
        known = ", ".join(COLUMNS)
        raise InputError(f"'{name}' has neither images nor columns that are known. Use images, or rows such as {known}.")
    chosen = drawn(len(data.x_train), min(public, len(data.x_train)), seed.child("public"))
    held = Examples(data.prepare(data.x_train[chosen]).reshape(-1, *shape), data.y_train[chosen])
    axes, spread = ((0, 2, 3), (-1, 1, 1)) if images else ((0,), (-1,))
    make, width = (lenet, channels) if images else (perceptron, hidden)
    return Target(
        data=data,
        shape=shape,
        model=initialise(make(shape, data.outputs, width=width, activation=ACTIVATIONS[activation]), seed.child("model")),
        public=held,
        low=held.x.amin(axes).reshape(spread),
        high=held.x.amax(axes).reshape(spread),
        classifier=_classifier(shape, data.outputs, held, seed.child("classifier")) if images else None,
    )


def lenet(shape: tuple[int, ...], outputs: int, *, width: int, activation: Callable[[], nn.Module]) -> nn.Sequential:
    """The LeNet of Zhu et al. 2019 but for its width and activation; 4,918 parameters with 6 channels on MNIST."""
    places = [(shape[0], 2), (width, 2), (width, 1)]
    layers = [part for inputs, step in places for part in (nn.Conv2d(inputs, width, 5, step, 2), activation())]
    sides = [(side + 3) // 4 for side in shape[1:]]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * math.prod(sides), outputs))


def perceptron(shape: tuple[int, ...], outputs: int, *, width: int, activation: Callable[[], nn.Module]) -> nn.Sequential:
    """One hidden layer."""
    return nn.Sequential(nn.Linear(shape[0], width), activation(), nn.Linear(width, outputs))


def _classifier(shape: tuple[int, ...], outputs: int, public: Examples, seed: PublicSeed) -> Callable[[Tensor], Tensor]:
    module = build("lenet" if min(shape[1:]) >= 20 else "mlp", shape=shape, outputs=outputs, seed=seed)
    trainer = make_trainer(module, "cross_entropy")
    weights = trainer.train(flatten(module), public, _LEARNING, Turn(seed))
    return lambda x: trainer.outputs(weights, x)


def drawn(total: int, count: int, seed: PublicSeed) -> Tensor:
    """Numbers of `count` of `total` examples."""
    return subset(seed, count, of=total)


def _short(values: Tensor) -> list[float]:
    return [float(f"{value:.4g}") for value in values.tolist()]
