"""Two ways to tell from a step whether its batch has a property: the random forest of Melis et al., and a linear rule."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sketchfed import PublicSeed
from sketchfed.attacks import PropertyInference, auc
from sketchfed.draws import normals

_SHORT = 1e-30
_RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
"""Of the mean variance along the directions in which examples differ."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Clues:
    """What is known of the victim's part in a round, and what each example of the adversary would have added to it."""

    values: Tensor
    """`(size,)`."""
    rows: Tensor
    """`(pool, size)`: a step on a batch is the sum over its examples."""
    noise: float
    sizes: list[int]
    """Of the parameters that the values are about, one after the other behind `back`."""
    back: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True, kw_only=True)
class BatchForest(PropertyInference):
    """The forest, taught on batches that are sums of what their examples add.

    That is so for one step, costs less, and lets the adversary clip each example as private clients do.
    """

    name: ClassVar[str] = "property of a batch"

    def judge(self, evidence: Clues, has: Tensor, count: int, seed: PublicSeed) -> float:
        """How likely the property occurs in the victim's batch of this many examples."""
        labels = np.arange(self.shadows) % 2 == 0
        made = self.mixed(has, count, seed) @ evidence.rows
        if evidence.noise:
            places = torch.arange(self.shadows)
            made += evidence.noise * normals(seed.child("noise"), made.shape[1], rows=places)
        known, asked = _described(evidence, made), _described(evidence, evidence.values[None])
        kept = known[0].var(0).topk(min(self.features, made.shape[1])).indices.sort().values
        return float(self.judged([known[0][:, kept], known[1]], labels, [asked[0][:, kept], asked[1]], seed)[0])

    def mixed(self, has: Tensor, count: int, seed: PublicSeed) -> Tensor:
        """Which examples are in each simulated batch, `(shadows, pool)`; every other one has the property."""
        chosen = self.drawn(count, has, np.arange(self.shadows) % 2 == 0, seed)
        return torch.zeros(self.shadows, len(has)).scatter_add_(1, chosen, torch.ones(chosen.shape))


def _described(evidence: Clues, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Directions, and logarithms of lengths: of all, and of each parameter's share."""
    lengths = rows.norm(dim=1, keepdim=True).clamp(min=_SHORT)
    directions = rows / lengths
    back = directions if evidence.back is None else evidence.back(directions)
    shares = [part.norm(dim=1, keepdim=True).clamp(min=_SHORT) for part in torch.split(back, evidence.sizes, dim=1)]
    return directions, torch.cat([lengths, *shares], dim=1).log()


def by_line(evidence: Clues, has: Tensor, count: int, forest: BatchForest, seed: PublicSeed) -> float:
    """Fisher's discriminant: how far the step is from that of a batch without the property, in deviations.

    The direction w = (count·Σ + (noise² + ridge)·1)⁻¹(μ₁ − μ₀) has the class means and the common covariance of what single
    examples add. The ridge is the one that tells batches of one half of the adversary's examples best by the other half.
    """
    half = torch.arange(len(has)) % 2 == 0
    mixing = forest.mixed(has[~half], count, seed.child("tuning"))
    labels = np.arange(len(mixing)) % 2 == 0
    tried = _Line(evidence.rows[half], has[half], count)
    tests = evidence.rows[~half]

    draws = normals(seed.child("noise"), len(mixing))

    def merit(ridge: float) -> float:
        w, _, _ = tried.rule(ridge, evidence.noise)
        scores = (mixing @ (tests @ w) + evidence.noise * draws).double().numpy()  # w has length 1
        return auc(scores[labels], scores[~labels])

    best = max(_RIDGES, key=merit)
    w, usual, deviation = _Line(evidence.rows, has, count).rule(best, evidence.noise)
    return float((evidence.values @ w - usual) / deviation)


class _Line:
    """What examples add `(n, size)`, by class, ready for any ridge."""

    def __init__(self, rows: Tensor, has: Tensor, count: int) -> None:
        means = [rows[has].mean(0), rows[~has].mean(0)]
        self.usual, self.gap = count * means[1], means[0] - means[1]
        self.centred = rows - torch.where(has[:, None], means[0], means[1])
        self.scale = count / len(rows)
        self.squares, self.axes = torch.linalg.eigh(self.centred @ self.centred.T)
        self.squares = self.squares.clamp(min=0)

    def rule(self, ridge: float, noise: float) -> tuple[Tensor, Tensor, Tensor]:
        """The direction `(size,)`, and the mean and deviation along it of batches without the property."""
        added = noise**2 + ridge * self.scale * float(self.squares.mean()) + _SHORT
        along = self.axes.T @ (self.centred @ self.gap)
        inner = self.axes @ (along * self.scale / (added + self.scale * self.squares))
        w = (self.gap - self.centred.T @ inner) / added
        w = w / w.norm().clamp(min=_SHORT)
        variance = self.scale * (self.centred @ w).square().sum() + noise**2
        return w, self.usual @ w, variance.sqrt().clamp(min=_SHORT)
