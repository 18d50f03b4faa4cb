"""The node of algorithm 'dbcl' on a graph: neighbours draw sketches that only their link uses, and exchange sketched models."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sketchfed.algorithms import Dbcl, Replica
from sketchfed.algorithms.dbcl import SketchedModel
from sketchfed.algorithms.replicas import group
from sketchfed.errors import UnresolvedError
from sketchfed.graphs import Links
from sketchfed.nn.model_sketch import ModelSketch
from sketchfed.protection import ClientWork, NoisySteps
from sketchfed.rounds.participant import Participant
from sketchfed.rounds.peers.base import Pair, Peer, Plan
from sketchfed.seeds import PublicSeed
from sketchfed.training import ClientMemory, Examples, Pull
from sketchfed.wire import expect_kind, pack, unpack


class PairwisePeer(Peer):
    """Trains its own model, says S·x to each neighbour, and moves towards what the neighbours said, within the span of S.

    Paper: Zhang & Wang 2021, App. D, which says only that neighbours agree upon seeds and exchange sketches of their
    parameters. The rest is ours: with P the orthogonal projection onto the rows of S, x ← x + γ·Σⱼ wᵢⱼ·P(xⱼ − x). Both ends of
    a link move by opposite amounts, so the mean of all models stays where it is, and P removes the disagreement that it sees.
    γ is `algorithm.global_rate`.
    """

    def __init__(self, node: int, participant: Participant, start: Replica) -> None:
        super().__init__(node, participant, start)
        self._weights = start.weights
        self._told: dict[int, Tensor] = {}
        self._index = 0

    @classmethod
    def plan(cls, links: Links, index: int) -> Plan:
        graph = links.graph
        return [[(node, other) for node in range(graph.nodes) for other in graph.neighbours(node)]]

    @property
    def weights(self) -> Tensor:
        return self._weights

    @property
    def dbcl(self) -> Dbcl:
        if not isinstance(self.algorithm, Dbcl):
            raise UnresolvedError(f"algorithm '{self.algorithm.name}' does not sketch models.")
        return self.algorithm

    def work(self, index: int, examples: Examples, links: Links) -> None:
        replica, context = Replica(round=index, weights=self._weights), self.context(index)
        kept = dict(ClientMemory(kept=self.kept).copy().kept)  # training may change it, and may fail
        work = ClientWork(
            trainer=self.participant.trainer,
            replica=replica,
            examples=examples,
            memory=None,
            context=context,
            kept=kept,
            pull=Pull(self.participant.proximal),
        )
        protection = self.participant.protection
        if isinstance(protection, NoisySteps):
            change = protection.change(work, protection.client_secret(context))
        else:
            change = work.trained(self.algorithm.work)
        self._weights = self._weights + change.values
        self.kept, self._index, self._told = kept, index, {}

    def form(self, other: int, index: int) -> SketchedModel:
        """The sketches that this node and a neighbour use in a round, which both draw from the seed of their link."""
        return link_form(self.dbcl, self.participant.seed, (self.node, other), self.participant.clients, index)

    def tell(self, receiver: int, step: int) -> bytes:
        return pack(self.form(receiver, self._index).packet(Replica(round=self._index, weights=self._weights)))

    def hear(self, sender: int, message: bytes, step: int) -> None:
        packet = expect_kind(unpack(message), "snapshot")
        self._told[sender] = self.form(sender, self._index).replica(packet, len(self._weights)).weights

    def close(self, links: Links) -> None:
        total = torch.zeros_like(self._weights)
        for other in sorted(set(self._told).intersection(links.graph.neighbours(self.node))):
            sketch = self.form(other, self._index).sketch
            apart = self._told[other] - sketch.apply(self._weights)
            total.add_(projected(sketch, apart), alpha=links.weight(self.node, other))
        self._weights = self._weights + (self.dbcl.global_rate or 1.0) * total

    def tensors(self) -> dict[str, Tensor]:
        named = {f"kept.{name}": each for name, each in ClientMemory(kept=self.kept).to_tensors().items()}
        return {**named, "weights": self._weights}

    def restore(self, tensors: Mapping[str, Tensor], estimates: Mapping[int, Replica]) -> None:
        self._weights = tensors["weights"]
        self.kept = ClientMemory.from_tensors(group(tensors, "kept")).kept


def link_form(algorithm: Dbcl, seed: PublicSeed, ends: Pair, nodes: int, index: int) -> SketchedModel:
    """The sketches of one link in a round. Everybody who knows the public seed can draw them."""
    low, high = sorted(ends)
    return algorithm.given(seed.child("link", low * nodes + high), index)


def projected(sketch: ModelSketch, seen: Tensor) -> Tensor:
    """P·x for what is seen of x, S·x: the orthogonal projection where rows are orthogonal, otherwise (size/dim)·SᵀS·x."""
    if sketch.loads is not None:
        return sketch.adjoint(seen / sketch.loads.clamp(min=1))
    scaled = seen.clone()
    for name, part in sketch.seen.views(scaled).items():
        if name in sketch.sketches:
            part.mul_(sketch.sketches[name].size / sketch.sketches[name].dim)
    return sketch.adjoint(scaled)
