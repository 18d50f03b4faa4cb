"""Nodes that exchange sketches of their models: with one sketch for all ('gossip_models'), or one for each link ('dbcl')."""

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from sketchfed.algorithms import Dbcl, Replica
from sketchfed.algorithms.dbcl import SketchedModel
from sketchfed.algorithms.gossip_models import GossipModels
from sketchfed.algorithms.replicas import group
from sketchfed.errors import UnresolvedError, WireError
from sketchfed.graphs import Links
from sketchfed.nn.model_sketch import ModelSketch
from sketchfed.protection import ClientWork, NoisySteps, SecureSteps
from sketchfed.rounds.participant import Participant
from sketchfed.rounds.peers.base import GraphPeer, Hop, Plan
from sketchfed.rounds.peers.saved import vector
from sketchfed.seeds import PublicSeed
from sketchfed.training import ClientMemory, Examples, Pull
from sketchfed.wire import Packet, pack, unpack


class ModelsPeer(GraphPeer):
    """Trains its own model, says a sketch of it, and moves towards what its neighbours said. It keeps nothing else."""

    def __init__(self, node: int, participant: Participant, start: Replica, root: int = 0) -> None:
        super().__init__(node, participant, start, root)
        self._weights = start.weights
        self._told: dict[int, Tensor] = {}
        self._index = 0

    @classmethod
    def plan(cls, links: Links, root: int) -> Plan:
        graph = links.graph
        return [[(node, other) for node in range(graph.nodes) for other in graph.neighbours(node)]]

    @property
    def weights(self) -> Tensor:
        return self._weights

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
        steps = protection.steps if isinstance(protection, SecureSteps) else protection
        if isinstance(steps, NoisySteps):
            change = steps.change(work, steps.client_secret(context))
        else:
            change = work.trained(self.algorithm.work)
        self._weights = self._weights + change.values
        self.kept, self._index, self._told = kept, index, {}

    def tell(self, receiver: int, step: int) -> bytes | None:
        return pack(self.sketched(receiver, self._index, self._weights))

    def hear(self, sender: int, message: bytes, step: int) -> None:
        told = self.read(sender, self._index, unpack(message))
        self.check_norm(float(told.norm()), float(self._weights.norm()))
        self._told[sender] = told

    def close(self, links: Links) -> None:
        neighbours = links.graph.neighbours(self.node)
        heard = {other: told for other, told in sorted(self._told.items()) if other in neighbours}
        if heard:
            self._weights = self._weights + self.pulled(heard, {other: links.weight(self.node, other) for other in heard})

    @abstractmethod
    def sketched(self, other: int, index: int, weights: Tensor) -> Packet:
        """What a node says of its model to a neighbour."""

    @abstractmethod
    def read(self, other: int, index: int, packet: Packet) -> Tensor:
        """The numbers in what a neighbour said, which are checked."""

    @abstractmethod
    def pulled(self, heard: Mapping[int, Tensor], shares: Mapping[int, float]) -> Tensor:
        """The step towards the neighbours that were heard, each with the weight of its link."""

    def tensors(self, index: int) -> dict[str, Tensor]:
        named = {f"kept.{name}": each for name, each in ClientMemory(kept=self.kept).to_tensors().items()}
        return {**named, "weights": self._weights}

    def restore(self, tensors: Mapping[str, Tensor], estimates: Mapping[int, Replica]) -> None:
        self._weights = vector(tensors, "weights", len(self._weights))
        self.kept = ClientMemory.from_tensors(group(tensors, "kept")).kept


class SharedPeer(ModelsPeer):
    """The node of algorithm 'gossip_models': all nodes of a round use the same sketch."""

    @property
    def models(self) -> GossipModels:
        if not isinstance(self.algorithm, GossipModels):
            raise UnresolvedError(f"algorithm '{self.algorithm.name}' does not say sketches of models.")
        return self.algorithm

    def sketched(self, other: int, index: int, weights: Tensor) -> Packet:
        return self.models.said(weights, self.context(index)).stamped(round=index)

    def read(self, other: int, index: int, packet: Packet) -> Tensor:
        if packet.scalars.get("round") != index or packet.clients != 1:
            raise WireError(f"it must be of round {index} and of one node, got {packet!r}.")
        return self.models.heard(packet, len(self.weights), self.context(index, other))

    def pulled(self, heard: Mapping[int, Tensor], shares: Mapping[int, float]) -> Tensor:
        total = torch.zeros_like(next(iter(heard.values())))
        for other, told in heard.items():
            total.add_(told, alpha=shares[other])
        step = self.models.towards(self.weights, total, sum(shares.values()), self.context(self._index))
        return step.mul_(self.models.mixing_rate)


class PairwisePeer(ModelsPeer):
    """The node of algorithm 'dbcl' on a graph: each link has a sketch of its own in each round, of each layer.

    Paper: Zhang & Wang 2021, App. D, which says only that neighbours agree upon seeds and exchange sketches of their
    parameters. The rest is ours: with P the orthogonal projection onto the rows of S, x ← x + γ·Σⱼ wᵢⱼ·P(xⱼ − x). Both ends of
    a link move by opposite amounts, so the mean of all models stays where it is, and P removes the disagreement that it sees.
    γ is `algorithm.global_rate`.
    """

    @property
    def dbcl(self) -> Dbcl:
        if not isinstance(self.algorithm, Dbcl):
            raise UnresolvedError(f"algorithm '{self.algorithm.name}' does not sketch layers.")
        return self.algorithm

    def form(self, other: int, index: int) -> SketchedModel:
        """The sketches that this node and a neighbour use in a round, which both draw from the seed of their link."""
        return link_form(self.dbcl, self.participant.seed, (self.node, other), self.participant.clients, index)

    def sketched(self, other: int, index: int, weights: Tensor) -> Packet:
        return self.form(other, index).packet(Replica(round=index, weights=weights))

    def read(self, other: int, index: int, packet: Packet) -> Tensor:
        return self.form(other, index).replica(packet, len(self.weights)).weights

    def pulled(self, heard: Mapping[int, Tensor], shares: Mapping[int, float]) -> Tensor:
        total = torch.zeros_like(self.weights)
        for other, told in heard.items():
            sketch = self.form(other, self._index).sketch
            total.add_(projected(sketch, told - sketch.apply(self.weights)), alpha=shares[other])
        return total.mul_(self.dbcl.global_rate or 1.0)


def link_form(algorithm: Dbcl, seed: PublicSeed, ends: Hop, nodes: int, index: int) -> SketchedModel:
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
