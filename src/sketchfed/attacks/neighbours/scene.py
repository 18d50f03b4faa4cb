"""Who is where on the graph, and what passed between one node and its neighbours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from sketchfed.algorithms import Algorithm, Replica, RoundContext
from sketchfed.attacks.knowledge.base import Heard
from sketchfed.errors import InputError
from sketchfed.graphs import Failures, Graph, Topology
from sketchfed.protection import Protection
from sketchfed.rounds import Exchange
from sketchfed.rounds.network import receiver
from sketchfed.seeds import PublicSeed
from sketchfed.vectors import Layout

REACH = 2
"""How many links away from a neighbour a node may be for its changes to be estimated as well. Those farther away matter less
with every link."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NeighbourChange:
    """What one node learned about the local change of a neighbour, or about the mean change of several nodes."""

    round: int
    nodes: tuple[int, ...]
    weights: Tensor
    """The model from which the change was made, as far as it is known, `(dim,)`."""
    heard: Heard
    change: Tensor | None = None
    """The most likely change, given all messages, `(dim,)`. None if the messages of one round are all there is."""
    direct: bool = True
    """Whether a message shows this change alone. Otherwise, what is not known of the model before it is in the values too."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """A node, its neighbours, what they said to each other, and what is public."""

    protection: Protection
    topology: Topology
    layout: Layout
    """The parameters of the model."""
    seed: PublicSeed
    start: Replica
    """What all nodes hold before the first round."""
    node: int
    exchanges: Sequence[Exchange]

    @property
    def algorithm(self) -> Algorithm:
        return self.protection.algorithm

    @property
    def dim(self) -> int:
        return len(self.start.weights)

    @cached_property
    def graph(self) -> Graph:
        """The graph of all rounds. Raises `InputError` if rounds have different graphs, or if messages are lost."""
        graph = self.topology.graph(0)
        steady = all(self.topology.graph(index) == graph for index in self.rounds)
        if not steady or self.topology.failures != Failures():
            raise InputError(
                "a neighbour's view follows what nodes know of each other, and cannot do so where the graph changes or where "
                "messages fail. Audit the same run without that: remove redraw, node_failures, link_failures, stragglers, "
                "losses and spoiled from [graph]."
            )
        return graph

    @property
    def rounds(self) -> range:
        """The rounds of which there are messages, from the first one on."""
        return range(1 + max((each.round for each in self.exchanges), default=-1))

    @cached_property
    def neighbours(self) -> tuple[int, ...]:
        return self.graph.neighbours(self.node)

    @cached_property
    def unseen(self) -> tuple[int, ...]:
        """Nodes that do not speak to this one, and whose models reach its neighbours in a few rounds."""
        found, edge = {self.node, *self.neighbours}, set(self.neighbours)
        for _ in range(REACH):
            edge = {other for each in edge for other in self.graph.neighbours(each)} - found
            found |= edge
        return tuple(sorted(found - {self.node, *self.neighbours}))

    @cached_property
    def said(self) -> Mapping[tuple[int, int, int], list[bytes]]:
        """The messages of each round, sender and receiver, step by step. All of them are from this node or to it."""
        found: dict[tuple[int, int, int], list[bytes]] = {}
        for each in self.exchanges:
            to = receiver(each)
            if each.reply is not None and to is not None and self.node in (each.client, to):
                found.setdefault((each.round, each.client, to), []).append(each.reply)
        return found

    def message(self, index: int, sender: int, to: int) -> bytes:
        """What was said over a link in a round, all steps together."""
        return b"".join(self.said.get((index, sender, to), []))

    def weight(self, a: int, b: int) -> float:
        """The weight with which node `a` takes what node `b` says."""
        return self.topology.at(0).weight(a, b)

    def context(self, index: int, node: int) -> RoundContext:
        return RoundContext(round=index, seed=self.seed, client=node, population=self.graph.nodes)
