"""The leading directions of all that was sensed, with the past fading."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.kernels.secular import rank_one
from sketchfed.kernels.small import Small
from sketchfed.subspaces.basis import Basis
from sketchfed.subspaces.rule import UpdateRule
from sketchfed.subspaces.subspace import Subspace

_NONE = np.empty(0)


@dataclass(frozen=True, kw_only=True)
class IncrementalSvd(UpdateRule):
    """The leading eigenvectors of forgetting·UΛUᵀ + ĝĝᵀ, at most `share` of the size; the rest of the sketch are fresh probes.

    Brand 2002, "Incremental singular value decomposition of uncertain data with missing values", with forgetting as in Levey
    and Lindenbaum 2000, in place of Nicolas et al. 2025, Alg. 2. With c = Uᵀĝ and ρ the norm of the rest of ĝ, it is the
    eigenproblem of diag(forgetting·Λ, 0) + (c, ρ)(c, ρ)ᵀ, of one row more than there are directions.
    """

    forgetting: float = 0.95
    """What a round leaves of the weight of the rounds before."""
    share: float = 0.5
    """How much of the size kept directions may take."""

    name = "incremental_svd"
    summary = "leading directions of what was sensed, the past fading"
    source = "Brand 2002"

    def __post_init__(self) -> None:
        if not 0 < self.forgetting <= 1:
            raise InputError(f"forgetting is what a round leaves of the past, above 0 and at most 1, got {self.forgetting}.")
        if not 0 < self.share < 1:
            raise InputError(f"share is the part of the size for kept directions, between 0 and 1, got {self.share}.")

    def tracked(self, size: int) -> int:
        if size < 2:
            raise InputError("a subspace of size 1 has no room for a kept direction and a probe. Use a size of 2 or more.")
        return min(max(1, int(self.share * size)), size - 1)

    def _updated(self, subspace: Subspace, found: Tensor, is_sensed: bool) -> Subspace:
        basis, c, rest = subspace.basis.extended(subspace.adjoint(found) if is_sensed else found)
        past = self.forgetting * subspace.values
        if rest > 0:
            past, c = np.append(past, 0.0), np.append(c, rest)
        values, vectors = rank_one(past, c)
        kept = min(len(values), self.tracked(subspace.size))
        turned = basis.rotated(np.ascontiguousarray(vectors[:, :kept]))
        made = replace(subspace, basis=turned, values=values[:kept].copy(), energy=_NONE, kept=kept, draw=subspace.draw + 1)
        was_compressed = len(basis.rows) < len(subspace.basis.rows)  # a pass more, after which errors start from nothing
        return replace(made, energy=made.kept_energy() if was_compressed else _followed(subspace, basis, vectors[:, kept:]))


def _followed(before: Subspace, basis: Basis, dropped: Small) -> Small:
    """diag(UUᵀ) of what is kept of an extended basis: UUᵀ grows by the new direction and shrinks by those that are dropped."""
    if basis.rank == 0:
        return _NONE
    energy = before.kept_energy().copy()
    new = np.eye(basis.rank)[before.kept :]
    for sign, coefficients in ((1, new), (-1, dropped.T)):
        for direction in basis.combine(torch.from_numpy(np.ascontiguousarray(coefficients))).numpy():
            energy += sign * direction * direction
    return np.clip(energy, 0, 1, out=energy)
