"""What every update rule shares."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed
from sketchfed.subspaces.basis import Basis
from sketchfed.subspaces.subspace import Subspace


@dataclass(frozen=True, kw_only=True)
class UpdateRule(ABC):
    """How the subspace of a round follows from the one before and from what was sensed in it: a function of what all know.

    The subspace before stays as it is. Updating one subspace again and again, as a party does, is cheap; a second update of the
    same one copies its directions.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]

    def begin(self, *, dim: int, size: int, seed: PublicSeed, dtype: torch.dtype = torch.float32) -> Subspace:
        """The subspace of the first round: probes alone."""
        tracked = self.tracked(size)
        capacity = tracked + max(4, tracked // 2) if tracked else 0
        return Subspace(size=size, seed=seed, basis=Basis.empty(dim=dim, capacity=min(capacity, dim), dtype=dtype))

    @abstractmethod
    def tracked(self, size: int) -> int:
        """How many directions it keeps at most."""

    def updated(self, subspace: Subspace, *, sensed: Tensor | None = None, estimate: Tensor | None = None) -> Subspace:
        """The next subspace, from S's coefficients that were sensed, `(size,)`, or from an estimate of the gradient, `(dim,)`.

        Give the estimate if it exists anyway, or if it is more than S·sensed, such as with a mean added.
        """
        if sensed is not None and estimate is None:
            found, length = sensed, subspace.size
        elif estimate is not None and sensed is None:
            found, length = estimate, subspace.dim
        else:
            raise InputError(
                "a subspace is updated by what was sensed, or by an estimate of the gradient: give one of the two."
            )
        if found.shape != (length,):
            raise InputError(f"a subspace is updated by one vector of {length:,} numbers, got shape {tuple(found.shape)}.")
        return self._updated(subspace, found, found is sensed)

    @abstractmethod
    def _updated(self, subspace: Subspace, found: Tensor, is_sensed: bool) -> Subspace: ...
