"""The update of the DOME paper: streaming PCA by one step of orthogonal iteration."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.kernels import small
from sketchfed.kernels.small import Small
from sketchfed.subspaces.basis import Basis
from sketchfed.subspaces.rule import UpdateRule
from sketchfed.subspaces.subspace import Subspace


@dataclass(frozen=True, kw_only=True)
class HistoryPca(UpdateRule):
    """U, R ← QR(U·Λ + ĝĝᵀU) with Λ the norms of R's columns; the first r columns of U are kept, with a share `energy` of ΣΛ².

    Paper: Nicolas et al. 2025, Alg. 2, after Yang et al. 2018, as printed: U has `size` columns in every round, of which the
    sketch takes the first r in the order in which they come, and r is the least that will do. The first round is like the
    others with U = S and Λ = 0; its QR is of a matrix of rank one, and the directions after the first, which the paper leaves
    open, are completed within the span of S and ĝ. The first column follows the mean and outgrows the others: with
    energy = 0.9, r falls to 1 after a few rounds where gradients agree, and `incremental_svd` is the better choice.

    As U has `size` columns, each in need of a row, the first update writes S down.
    """

    energy: float = 0.9

    name = "history_pca"
    summary = "the paper's streaming PCA; falls to rank 1"
    source = "Nicolas et al. 2025, Alg. 2"

    def __post_init__(self) -> None:
        if not 0 < self.energy <= 1:
            raise InputError(f"energy is a share, above 0 and at most 1, got {self.energy}.")

    def tracked(self, size: int) -> int:
        return size

    def _updated(self, subspace: Subspace, found: Tensor, is_sensed: bool) -> Subspace:
        estimate = subspace.adjoint(found) if is_sensed else found
        begun = subspace.basis.rank > 0
        basis = subspace.basis if begun else written_down(subspace)
        before = subspace.values if begun else np.zeros(subspace.size)
        basis, c, rest = basis.extended(estimate)
        changed = np.diag(before) + small.product(c[:, None], c[None])
        if rest > 0:
            changed = np.vstack([changed, rest * c])
        q, r = small.orthonormal(changed)
        values = column_norms(r)
        if not values.any():  # nothing was ever sensed: the next round is the first
            return replace(subspace, draw=subspace.draw + 1)
        kept = leading(values**2, self.energy)
        unknown = np.empty(0)
        return replace(subspace, basis=basis.rotated(q), values=values, energy=unknown, kept=kept, draw=subspace.draw + 1)


def written_down(subspace: Subspace) -> Basis:
    """All of S as a basis."""
    units = torch.eye(subspace.size, dtype=subspace.basis.dtype)
    return Basis.from_rows(map(subspace.adjoint, units), like=subspace.basis)


def column_norms(r: Small) -> Small:
    total = np.zeros(r.shape[1])
    for row in r:
        total += row * row
    norms: Small = np.sqrt(total)
    return norms


def leading(energies: Small, share: float) -> int:
    """How many of the first energies have this share of all."""
    so_far = np.cumsum(energies)
    return min(int(np.searchsorted(so_far, share * so_far[-1])) + 1, len(energies))
