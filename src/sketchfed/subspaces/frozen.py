"""One random subspace for good."""

from dataclasses import dataclass

from torch import Tensor

from sketchfed.subspaces.rule import UpdateRule
from sketchfed.subspaces.subspace import Subspace


@dataclass(frozen=True, kw_only=True)
class Frozen(UpdateRule):
    """The probes of the first round, in every round: what is outside them is never learnt. A baseline."""

    name = "frozen"
    summary = "one random subspace for all rounds"
    source = "baseline"

    def tracked(self, size: int) -> int:
        return 0

    def _updated(self, subspace: Subspace, found: Tensor, is_sensed: bool) -> Subspace:
        return subspace
