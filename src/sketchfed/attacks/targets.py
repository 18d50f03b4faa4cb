"""The targets of an attack: the examples behind one update, or behind several updates about the same examples."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from sketchfed.attacks.observation import Observation, Observed
from sketchfed.attacks.view import Update


@dataclass(frozen=True, kw_only=True, eq=False)
class Joint:
    """Several observations of the same examples as one. Each has other weights and another sketch, so there are more equations.

    Each is scaled to norm 1, because gradients shrink from round to round, and small ones would not count.
    """

    parts: tuple[Observation, ...]

    @cached_property
    def values(self) -> Tensor:
        return torch.cat([part.values / scale for part, scale in zip(self.parts, self._scales, strict=True)])

    @property
    def module(self) -> nn.Module:
        return self.parts[0].module

    @property
    def gradient(self) -> Tensor:
        """The mean over those with as many coordinates as the first. Labels are inferred from the last coordinates."""
        found = [part.gradient for part in self.parts]
        return torch.stack([each for each in found if each.shape == found[0].shape]).mean(0)

    def seen(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([part.seen(x, y) / scale for part, scale in zip(self.parts, self._scales, strict=True)])

    @cached_property
    def _scales(self) -> list[float]:
        return [max(float(part.values.norm()), 1e-30) for part in self.parts]


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """Unknown examples, and all updates that are known to come from them."""

    updates: tuple[Update, ...]

    @property
    def first(self) -> Update:
        return self.updates[0]

    @property
    def count(self) -> int:
        """The number of examples."""
        return self.first.count

    @cached_property
    def observation(self) -> Observed:
        if len(self.updates) == 1:
            return self.first.observation
        return Joint(parts=tuple(update.observation for update in self.updates))


def repeated(updates: Iterable[Update], *, most: int = 8) -> list[Target]:
    """Return targets with several updates, those with the most updates first, and at most `most` updates each.

    The order of batches follows from the public seed, so anyone who sees replies knows which of them come from the same
    examples. A client that uses all of its data in every round is a special case.
    """
    groups: defaultdict[tuple[int, tuple[int, ...]], list[Update]] = defaultdict(list)
    for update in updates:
        if update.used is not None:
            groups[update.clients[0], update.used].append(update)
    several = [Target(updates=tuple(group[:most])) for group in groups.values() if len(group) > 1]
    return sorted(several, key=lambda target: -len(target.updates))
