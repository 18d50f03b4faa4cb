"""Gossip: nodes of a graph train, tell their neighbours compressed differences, and move towards what the neighbours told."""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from torch import Tensor, nn

from sketchfed.algorithms.fedavg import FedAvg
from sketchfed.algorithms.mixing import check_global_rate, check_mixing, known
from sketchfed.algorithms.state import Change, Replica, RoundContext
from sketchfed.codecs import Codec, Dense
from sketchfed.wire import Packet


@dataclass(frozen=True, kw_only=True)
class Gossip(FedAvg):
    """Each node has a model of its own. A round trains it, and mixes it once with what is known of the neighbours' models.

    Paper: Koloskova et al. 2019 (CHOCO-SGD, Alg. 2), with any local work in place of one gradient. Everybody keeps an estimate
    x̂ of its own model and of each neighbour's model, built from all that was said so far. In a round, a node i

    1. trains: x ← x + Δ;
    2. says q = C(x − x̂ᵢ) to its neighbours, and everybody adds q to its x̂ᵢ;
    3. moves: x ← x + γ·Σⱼ wᵢⱼ(x̂ⱼ − x̂ᵢ), with the weights of the graph.

    So x − x̂ᵢ is the memory of error feedback: what the node has not said yet. C must be a contraction, so what a codec decodes
    is multiplied by its `shrinkage`. With codec 'dense' and γ = 1, nothing is lost, x̂ is the model itself, and this is D-PSGD
    (Lian et al. 2017) in which nodes train first and mix then. The paper's bound on γ is far below what works; see
    `default_mixing`.
    """

    mixing: float | None = None
    """γ, how far a node moves towards its neighbours in a round. If absent, 1 for codecs that lose nothing, and less for those
    that lose more."""

    name = "gossip"
    summary = "neighbours on a graph tell each other compressed differences"
    source = "Koloskova et al. 2019"
    served = False
    own_step = "nodes of a graph mix with their neighbours, and nobody takes a global step."
    alone = "nodes of a graph send differences between models, and nobody averages what travels beside them."
    same_start = "it runs on a graph, in rounds."
    packets_each: ClassVar[int] = 1
    """How many packets a node says in a round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        others = {
            "algorithm.error_feedback = true": (
                self.error_feedback,
                "a node always keeps what it has not said yet. Remove it.",
            ),
            "algorithm.prediction = true": (
                self.prediction,
                "neighbours' estimates are the prediction already. Remove it.",
            ),
        }
        check_mixing(self, self.mixing, others)

    def resolved(self, dim: int, clients: int | None = None, module: nn.Module | None = None) -> Self:
        check_global_rate(self)
        found = replace(super().resolved(dim, clients, module), global_rate=1.0)
        return found if found.mixing is not None else replace(found, mixing=default_mixing(found._codec(dim)))

    def client(self, change: Change, memory: Tensor | None, context: RoundContext) -> tuple[Packet, Tensor | None]:
        """Return what a node says, and x − x̂ᵢ after training, of which this is a compressed form."""
        wanted = change.values if memory is None else change.values + memory
        codec = self._codec(change.dim)
        code = codec.linear(context.shared, context.client)
        if code is not None and code.additive:
            return code.packet(code.apply(wanted)), wanted
        return codec.bare(codec.encode(wanted, context.shared, context.client)), wanted

    @property
    def mixing_rate(self) -> float:
        """`mixing` of completed settings."""
        return known(self.mixing)

    def moved(self, estimate: Replica, said: list[Packet], context: RoundContext) -> Replica:
        """The estimate of a node's model after what the node said in a round. `context.client` is that node.

        Everybody computes it from the same bytes, so all estimates of a node are equal, bit for bit.
        """
        [packet] = said
        weights = estimate.weights + self.part(packet, len(estimate.weights), context)
        return replace(estimate, round=context.round + 1, weights=weights)

    def part(self, packet: Packet, dim: int, context: RoundContext) -> Tensor:
        """The part of a vector that a packet carries. On average, it is closer to the vector than zero is."""
        codec = self._codec(dim)
        return codec.shrinkages * codec.decode([packet], context.shared)


def default_mixing(codec: Codec) -> float:
    """A step towards the neighbours with which nodes agree on every graph: 1 for a codec that loses nothing.

    A codec that keeps the share p of a vector keeps γ below 2p/((2 − p)(1 − λ)), where λ is the lowest eigenvalue of the
    weights: beyond that, disagreement grows without training, if all nodes use the same random projection. λ is above −1, so
    this is p/(2 − p). A biased codec does not say what it keeps, so it is judged by its size.
    """
    if codec.name == Dense.name:
        return 1.0
    if codec.unbiased:
        return codec.shrinkage / (2 - codec.shrinkage)
    size = getattr(codec, "size", None)
    return 0.5 if size is None else size / codec.dim
