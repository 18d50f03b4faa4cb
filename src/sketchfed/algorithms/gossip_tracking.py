"""Gossip with gradient tracking: nodes step along an estimate of everybody's mean change instead of their own change."""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from sketchfed.algorithms.gossip import Gossip
from sketchfed.algorithms.state import Replica, RoundContext
from sketchfed.wire import Packet

TRACKED = "tracked"
"""The name of the tracked mean change among the moments of an estimate."""


@dataclass(frozen=True, kw_only=True)
class GossipTracking(Gossip):
    """Each node follows the mean change of all nodes (u) and steps along it, so that unequal data does not pull nodes apart.

    Paper: Zhao et al. 2022 (BEER, Alg. 1), with the change by local work, Δ, in place of −η times a gradient. With estimates x̂
    and û, a round is

    1. x ← x + γ·Σⱼ wᵢⱼ(x̂ⱼ − x̂ᵢ) + η·u, and the node says C(x − x̂ᵢ);
    2. it trains from the new x, u ← u + γ·Σⱼ wᵢⱼ(ûⱼ − ûᵢ) + Δ − Δ of the round before, and the node says C(u − ûᵢ).

    Both are said in one message, which is twice as long as one of algorithm 'gossip'. η is `tracking_rate`. The mean of u over
    all nodes is the mean of their latest changes as long as no message is lost. The paper takes one gradient a round, on large
    batches: with small batches, the noise of Δ is tracked as well.
    """

    tracking_rate: float = 1.0
    """η, the step along the tracked mean change."""

    name = "gossip_tracking"
    summary = "gossip that also tracks the mean change of all nodes"
    source = "Zhao et al. 2022"
    packets_each: ClassVar[int] = 2

    def moved(self, estimate: Replica, said: list[Packet], context: RoundContext) -> Replica:
        first, second = said
        tracked: Tensor = estimate.moments[TRACKED]
        found = super().moved(estimate, [first], context)
        return replace(found, moments={TRACKED: tracked + self.part(second, len(tracked), context)})
