"""A new random subspace every round."""

from dataclasses import dataclass, replace

from torch import Tensor

from sketchfed.subspaces.rule import UpdateRule
from sketchfed.subspaces.subspace import Subspace


@dataclass(frozen=True, kw_only=True)
class Fresh(UpdateRule):
    """Probes alone, drawn anew: an orthonormal random sketch, as in Chen et al. 2022. It captures size/dim of any gradient."""

    name = "fresh"
    summary = "a new random subspace every round"
    source = "Chen et al. 2022"

    def tracked(self, size: int) -> int:
        return 0

    def _updated(self, subspace: Subspace, found: Tensor, is_sensed: bool) -> Subspace:
        return replace(subspace, draw=subspace.draw + 1)
