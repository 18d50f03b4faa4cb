"""What is known besides a run: data like that of the clients, which the adversary may have, and the auditor's tools."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.runs.workload import Workload
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples

IMAGES = {"digits": (1, 8, 8)}
"""Data sets whose examples are flattened images."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Property:
    """A property that some examples have."""

    name: str
    has: Callable[[Tensor], Tensor]
    """A function from inputs `(n, *shape)` to true or false, `(n,)`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Outside:
    """Held-out examples in two halves: the adversary has `known`, and `others` stand for people who took no part."""

    known: Examples
    others: Examples
    image: tuple[int, int, int] | None
    """Channels, height and width, if examples are images."""

    @classmethod
    def of(cls, workload: Workload, seed: PublicSeed, image: tuple[int, int, int] | None = None) -> "Outside":
        dataset = workload.dataset
        order = torch.from_numpy(seed.child("outside").words(len(dataset.x_test)).astype("int64")).argsort(stable=True)
        x, y = dataset.prepare(dataset.x_test[order]), dataset.y_test[order]
        half = len(x) // 2
        shown = image or IMAGES.get(dataset.name) or (dataset.shape if _is_image(dataset.shape) else None)
        return cls(known=Examples(x[:half], y[:half]), others=Examples(x[half:], y[half:]), image=shown)  # type: ignore[arg-type]

    @property
    def low(self) -> float:
        return float(self.known.x.min())

    @property
    def high(self) -> float:
        return float(self.known.x.max())

    @cached_property
    def mean(self) -> Tensor:
        """The guess without any observation: the mean image, `shape`."""
        return self.known.x.mean(0)

    def scaled(self, x: Tensor) -> Tensor:
        """Inputs, scaled to values from 0 to 1."""
        return ((x - self.low) / max(self.high - self.low, 1e-30)).clamp(0, 1)

    def pictures(self, x: Tensor) -> Tensor:
        """Examples as images `(n, channels, height, width)` from 0 to 1."""
        if self.image is None:
            raise InputError(
                f"examples of shape {tuple(x.shape[1:])} are not known to be images. Give image = (channels, height, width)."
            )
        return self.scaled(x).reshape(len(x), *self.image)

    @cached_property
    def property(self) -> Property:
        """The default property: the image is in the brightest quarter, or the column is in its highest quarter.

        Models are taught neither. Of all columns, it is the one that varies most.
        """
        rows = self.scaled(self.known.x).flatten(1)
        if self.image is not None:
            limit = float(rows.mean(1).quantile(0.75))
            return Property(name="brighter than three quarters", has=lambda x: self.scaled(x).flatten(1).mean(1) > limit)
        column = int(rows.var(0).argmax())
        highest = float(rows[:, column].quantile(0.75))
        limit = highest if float((rows[:, column] > highest).float().mean()) > 0.05 else float(rows[:, column].mean())
        return Property(name=f"a high value in column {column}", has=lambda x: self.scaled(x).flatten(1)[:, column] > limit)

    @cached_property
    def recogniser(self) -> Callable[[Tensor], Tensor]:
        """Classifies by the nearest known example. It is not the model under attack, so nothing was fitted to it."""
        rows, labels = self.known.x.flatten(1), self.known.y

        def nearest(x: Tensor) -> Tensor:
            closest = labels[torch.cdist(x.flatten(1), rows).argmin(1)]
            return torch.nn.functional.one_hot(closest, int(labels.max()) + 1).float()

        return nearest


def _is_image(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[0] in (1, 3) and math.prod(shape[1:]) > 1
