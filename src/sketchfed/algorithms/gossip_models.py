"""Gossip without memories: nodes tell their neighbours a sketch of their model, and mix within the span of the sketch."""

from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor, nn

from sketchfed.algorithms.iterative import Iterative
from sketchfed.algorithms.mixing import check_global_rate, check_mixing, known
from sketchfed.algorithms.settings import SketchSettings
from sketchfed.algorithms.state import RoundContext
from sketchfed.sketches import SKETCHES
from sketchfed.wire import Packet

_PADDED = 0.5
"""The default step for families whose (size/dim)·RᵀR is no projection but up to twice as long."""


@dataclass(frozen=True, kw_only=True)
class GossipModels(Iterative):
    """All nodes draw the same sketch R in a round, say R·x, and agree better on the part of their models that R sees.

    With P = (size/dim)·RᵀR, a round is x ← x + Δ, then x ← x + γ·Σⱼ wᵢⱼ·P(xⱼ − x). If the rows of R are orthogonal, as those of
    'balanced' are, P is a projection: the mean of all models stays where it is, and no disagreement grows, for any γ up to 1.
    On average a round removes size/dim of the disagreement that D-PSGD (Lian et al. 2017) would remove. Nobody keeps estimates,
    so nothing is lost for good if a message is. Zhang & Wang 2021, App. D, suggest such an exchange, with a seed for each link:
    that is algorithm 'dbcl' on a graph. Here all nodes of a round share the seed, so a node can also work with a sum of what
    its neighbours say.
    """

    sketch: SketchSettings = field(default_factory=lambda: SketchSettings(name="balanced", ratio=0.1))
    mixing: float | None = None
    """γ, how far a node moves towards its neighbours in a round. If absent, 1 for sketches with orthogonal rows, and 0.5 for
    others."""

    name = "gossip_models"
    summary = "neighbours on a graph tell each other sketches of their models"
    source = "here, after Zhang & Wang 2021, App. D"
    served = False
    own_step = "nodes of a graph mix with their neighbours, and nobody takes a global step."
    alone = "nodes of a graph move towards their neighbours' models, and nobody averages what travels beside them."

    def __post_init__(self) -> None:
        super().__post_init__()
        others = {
            "algorithm.form = 'projection'": (self.form != "unbiased", "nodes keep no errors. Remove it."),
            f"sketch.bits = {self.sketch.bits}": (
                (self.sketch.bits, self.sketch.down) != (32, 32),
                "rounding a sketch of a whole model is an error that stays as large when the nodes agree. Use 32 bits, or "
                "algorithm 'gossip', which says differences.",
            ),
        }
        check_mixing(self, self.mixing, others)

    def resolved(self, dim: int, clients: int | None = None, module: nn.Module | None = None) -> Self:
        check_global_rate(self)
        found = replace(super().resolved(dim, clients, module), global_rate=1.0)
        if found.mixing is not None:
            return found
        orthogonal = SKETCHES[found.sketch.name].orthogonal
        return replace(found, mixing=1.0 if orthogonal else _PADDED)

    @property
    def mixing_rate(self) -> float:
        """`mixing` of completed settings."""
        return known(self.mixing)

    def said(self, weights: Tensor, context: RoundContext) -> Packet:
        """What a node says of its model in a round."""
        code = self._codec(len(weights)).linear(context.shared)
        return code.packet(code.apply(weights))

    def heard(self, packet: Packet, dim: int, context: RoundContext) -> Tensor:
        """The sketch `(size,)` in what a node said, which is checked."""
        self.check(packet, dim, context)
        return self._codec(dim).read(packet, context.shared)

    def towards(self, weights: Tensor, sketched: Tensor, share: float, context: RoundContext) -> Tensor:
        """P·(Σ wⱼxⱼ − share·x), from a node's model x, Σ wⱼ·R·xⱼ over its neighbours, and share = Σ wⱼ."""
        codec = self._codec(len(weights))
        own = codec.linear(context.shared).apply(weights)
        return codec.desketched(torch.sub(sketched, own, alpha=share), context.shared).mul_(codec.shares)
