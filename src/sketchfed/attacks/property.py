"""Property inference: does an update come from examples of some kind, such as faces with glasses?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sketchfed.attacks.observation import Observation
from sketchfed.attacks.shadows import Progress, alike, check_examples, check_size, groups_seen
from sketchfed.errors import InputError
from sketchfed.kernels.draws import permutation, subset
from sketchfed.kernels.normals import normals_twin
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples
from sketchfed.vectors import Layout

Marks = npt.NDArray[np.bool_]

_COMPONENTS, _SHORT = 50, 1e-30
_HELD = 2**27
"""The largest amount of numbers of simulated updates that are in memory at a time."""


@dataclass(frozen=True, kw_only=True)
class PropertyInference:
    """A random forest that learns from simulated updates which of them come from examples with a property.

    Paper: Melis, Song, De Cristofaro & Shmatikov 2019, "Exploiting Unintended Feature Leakage in Collaborative Learning", Sec.
    4.3. The adversary has its own examples with and without the property, and can compute the updates that they would cause.
    The property need not be what the model learns. The features of an update are its direction, the logarithm of its length,
    and the logarithms of each parameter's share of the length. For a sketch, the adjoint estimates them.

    Departures: one update is judged, not the mean score over rounds. The numbers that vary most are kept, instead of pooling.
    Lengths are features. Half of the trees use principal components, because a single number of a sketch, or of the mean over a
    batch, says little.
    """

    trees: int = 100
    shadows: int = 400
    """The number of simulated updates to learn from. Half of them have the property."""
    features: int = 2_000
    """The largest number of features: the numbers of an update that vary most over the simulated updates."""
    share: float = 1.0
    """The share of examples with the property in a batch that has it. At least one example has it."""

    name: ClassVar[str] = "property"
    summary: ClassVar[str] = "whether an update comes from examples with a property"
    source: ClassVar[str] = "Melis et al. 2019"

    def __post_init__(self) -> None:
        if self.trees < 2 or self.shadows < 4 or self.features < 1 or not 0 < self.share <= 1:
            raise InputError(
                "there are 2 trees or more, 4 shadows or more and 1 feature or more, and a share lies above 0 and up to 1; got "
                f"{self.trees}, {self.shadows}, {self.features} and {self.share}."
            )

    def score(
        self,
        observations: Sequence[Observation],
        *,
        count: int,
        examples: Examples,
        has: Tensor,
        seed: PublicSeed,
        clip: float | None = None,
        noise: float = 0.0,
        on_step: Progress = None,
    ) -> Tensor:
        """How likely each update has the property, `(observations,)` from 0 to 1. Only their order has a meaning.

        The observations are updates of one round, each from `count` unknown examples. `has`, `(n,)`, says which of the
        `examples` have the property. None of these may belong to the victims. What a mechanism does is public, so the simulated
        updates go through it too: they are scaled down to a length of `clip`, and normal `noise` of this deviation is added to
        each number. `on_step` is called for each of them. Equal seeds give equal scores.
        """
        first = self._checked(observations, examples, has, clip, noise)
        labels = np.arange(self.shadows) % 2 == 0
        chosen = self.drawn(count, has, labels, seed)

        def simulated(start: int, stop: int) -> tuple[Tensor, Tensor]:
            picked = chosen[start:stop]
            rows = groups_seen(first, Examples(examples.x[picked], examples.y[picked]), on_step=on_step).float()
            check_size(first, rows)
            if clip is not None:
                rows = rows * (clip / rows.norm(dim=1, keepdim=True).clamp(min=_SHORT)).clamp(max=1.0)
            if noise:
                stream = seed.child("noise").stream
                rows = rows + noise * normals_twin(stream, rows=torch.arange(start, stop), columns=rows.shape[1])
            return _described(first, rows)

        size = len(first.values)
        held = min(self.shadows, max(8, _HELD // len(first.weights)))
        pilot, lengths = simulated(0, held)
        kept = pilot.var(0).topk(min(self.features, size)).indices.sort().values
        known = [(pilot[:, kept], lengths)]
        for start in range(held, self.shadows, held):
            rows, lengths = simulated(start, min(start + held, self.shadows))
            known.append((rows[:, kept], lengths))
        rows, lengths = _described(first, torch.stack([observation.values.detach().float() for observation in observations]))
        learnt = [torch.cat(each) for each in zip(*known, strict=True)]
        return self.judged(learnt, labels, [rows[:, kept], lengths], seed)

    def judged(self, learnt: Sequence[Tensor], labels: Marks, asked: Sequence[Tensor], seed: PublicSeed) -> Tensor:
        """The verdict of trees that learned from directions and lengths about other updates."""
        from sklearn.ensemble import RandomForestClassifier  # a second to import

        mean = learnt[0].mean(0)
        axes = torch.linalg.svd(learnt[0] - mean, full_matrices=False).Vh[:_COMPONENTS].T
        turned = [[(rows - mean) @ axes, lengths] for rows, lengths in (learnt, asked)]
        states, halves = seed.child("forest").words(2), (self.trees - self.trees // 2, self.trees // 2)
        votes = np.zeros(len(asked[0]))
        for state, trees, (known, unknown) in zip(states, halves, ((learnt, asked), turned), strict=True):
            forest = RandomForestClassifier(n_estimators=trees, random_state=int(state), n_jobs=1)
            forest.fit(torch.cat(list(known), dim=1).numpy(), labels)
            votes += trees * forest.predict_proba(torch.cat(list(unknown), dim=1).numpy())[:, 1]
        return torch.from_numpy(votes / self.trees).float()

    def drawn(self, count: int, has: Tensor, labels: Marks, seed: PublicSeed) -> Tensor:
        """The examples behind each simulated update, `(shadows, count)`, in a random order."""
        having, lacking = (mask.nonzero()[:, 0].numpy() for mask in (has, ~has))
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(f"an update comes from a whole number of examples, 1 or more, got {count!r}.")
        inside = max(1, round(self.share * count))
        if len(having) < max(2, inside) or len(lacking) < max(2, count):
            raise InputError(
                f"to simulate updates of {count:,} examples, {inside:,} of them with the property or none, the adversary needs "
                f"at least {max(2, inside):,} with it and {max(2, count):,} without; it has {len(having):,} and "
                f"{len(lacking):,}. Give more, or observe updates of fewer examples."
            )
        drawn = []
        for number, label in enumerate(labels):
            own, k = seed.child("shadow", number), inside if label else 0
            picked = [
                pool[subset(own.child(kind).stream, dim=len(pool), size=size)]
                for kind, pool, size in (("with", having, k), ("without", lacking, count - k))
                if size
            ]
            drawn.append(np.concatenate(picked)[permutation(own.child("order").stream, dim=count)])
        return torch.from_numpy(np.stack(drawn))

    def _checked(
        self, observations: Sequence[Observation], examples: Examples, has: Tensor, clip: float | None, noise: float
    ) -> Observation:
        """The first of the observations, if it can represent all of them."""
        if not observations:
            raise InputError("there is no observation to judge. Give one or more.")
        sizes = sorted({len(observation.values) for observation in observations})
        if len(sizes) > 1:
            raise InputError(
                f"the updates have {sizes[0]:,} to {sizes[-1]:,} numbers, so they were not seen through one operator. Judge "
                "those of one round at a time."
            )
        first = observations[0]
        if not all(alike(first, other) for other in observations[1:]):
            raise InputError(
                "the updates do not all come from the same weights, work and map, so one forest cannot judge them. Judge those "
                "of one round at a time."
            )
        check_examples(examples)
        if has.dtype != torch.bool or has.shape != (len(examples.x),):
            raise InputError(
                f"`has` says of each of {len(examples.x):,} examples whether it has the property, true or false, got "
                f"{has.dtype} of shape {tuple(has.shape)}."
            )
        if bool(has.all()) or not bool(has.any()):
            raise InputError(
                f"{'all' if bool(has.any()) else 'none'} of the {len(has):,} examples of the adversary have the property, so "
                "there is nothing to tell apart. Give both kinds."
            )
        if not (math.isfinite(noise) and noise >= 0) or not (clip is None or clip > 0):
            raise InputError(f"noise is a deviation from 0 on, and clip a positive length or None; got {noise!r} and {clip!r}.")
        return first


def _described(observation: Observation, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return directions of updates, `(n, size)`, and logarithms of lengths and shares of parameters, `(n, 1 + parameters)`."""
    lengths = rows.norm(dim=1, keepdim=True).clamp(min=_SHORT)
    directions = rows / lengths
    back = directions if observation.map is None else observation.map.adjoint(directions)
    parts = torch.split(back, [math.prod(shape) for shape in Layout.of(observation.module).shapes], dim=1)
    shares = torch.stack([part.norm(dim=1).clamp(min=_SHORT) for part in parts], dim=1)
    return directions, torch.cat([lengths, shares], dim=1).log()
