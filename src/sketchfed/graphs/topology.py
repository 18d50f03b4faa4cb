"""The graph of each round, and what of it works: nodes that are away or late, links that fail, messages that are damaged."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from sketchfed.errors import InputError
from sketchfed.graphs.graph import Edge, Graph
from sketchfed.graphs.weights import Weights
from sketchfed.seeds import PublicSeed

Fate = Literal["arrives", "late", "lost", "spoiled"]


@dataclass(frozen=True, kw_only=True)
class Failures:
    """How often nodes, links and messages fail: the keys of [graph] of the same names."""

    node_failures: float = 0.0
    link_failures: float = 0.0
    outage: int = 1
    stragglers: float = 0.0
    losses: float = 0.0
    spoiled: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Links:
    """What works in one round. Everybody who has the public seed knows it, so that processes agree without messages."""

    graph: Graph
    """The links that work, between nodes that are there."""
    away: frozenset[int]
    """Nodes that take no part in the round."""
    late: frozenset[int]
    """Nodes that hear the others, and whose own messages come too late for the round."""
    failures: Failures = field(repr=False)
    seed: PublicSeed = field(repr=False)
    mixing: Weights = field(repr=False, compare=False)
    """The weights of the round's full graph, without failures."""

    def weight(self, a: int, b: int) -> float:
        """The weight with which node `a` takes what node `b` sends.

        A link that does not work has weight 0, and what it had goes to each of its two nodes itself. Weights then are still
        symmetric and doubly stochastic.
        """
        near = self.graph.neighbours(a)
        if a != b:
            return float(self.mixing[a, b]) if b in near else 0.0
        return max(0.0, 1.0 - sum(float(self.mixing[a, each]) for each in near))

    def fate(self, sender: int, receiver: int, *, number: int = 0) -> Fate:
        """What becomes of a message between neighbours. `number` counts those of this link and direction in the round."""
        if receiver not in self.graph.neighbours(sender):
            raise InputError(f"no link from node {sender} to node {receiver} works in this round. Ask graph.neighbours.")
        if sender in self.late:
            return "late"
        if not (self.failures.losses or self.failures.spoiled):
            return "arrives"
        place = 2 * (sender * self.graph.nodes + receiver)
        lost, spoiled = self.seed.child("fates", number).words(2, start=place).tolist()
        if lost < _bound(self.failures.losses):
            return "lost"
        return "spoiled" if spoiled < _bound(self.failures.spoiled) else "arrives"

    def spoil(self, message: bytes, sender: int, receiver: int, *, number: int = 0) -> bytes:
        """The message as it arrives if it is spoiled: with some bytes changed, cut short, or with bytes added."""
        own = self.seed.child("spoil", number).child("link", sender * self.graph.nodes + receiver)
        way, place, count, *words = own.words(11).tolist()
        if way % 3 == 0 and message:
            return message[: place % len(message)]
        if way % 3 == 1 or not message:
            return message + bytes(word & 255 for word in words[: 1 + count % 8])
        changed = bytearray(message)
        for word in words[: 1 + count % 8]:
            where = word % len(message)
            if changed[where] == message[where]:  # a second change could undo the first
                changed[where] ^= 1 + (word >> 16) % 255
        return bytes(changed)


class Topology:
    """The graph of each round of a run, drawn from the public seed.

    `draw` makes a graph from a seed, and `weigh` its mixing weights. With `redraw`, it is drawn anew after that many rounds.
    """

    def __init__(
        self,
        nodes: int,
        seed: PublicSeed,
        draw: Callable[[PublicSeed], Graph],
        weigh: Callable[[Graph], Weights],
        *,
        redraw: int = 0,
        failures: Failures | None = None,
    ) -> None:
        self.nodes, self.failures = nodes, failures or Failures()
        self._seed, self._draw, self._weigh, self._redraw = seed, draw, weigh, redraw
        self._full = lru_cache(maxsize=2)(self._drawn)
        self._working = lru_cache(maxsize=2)(self._links)

    def graph(self, round: int) -> Graph:
        """The graph of a round, as if nothing failed."""
        return self._full(self._epoch(round))[0]

    def weights(self, round: int) -> Weights:
        """The mixing weights of a round, `(nodes, nodes)`, as if nothing failed."""
        return self._full(self._epoch(round))[1]

    def at(self, round: int) -> Links:
        """What works in a round."""
        return self._working(round)

    def _epoch(self, round: int) -> int:
        return round // self._redraw if self._redraw else 0

    def _drawn(self, epoch: int) -> tuple[Graph, Weights]:
        graph = self._draw(self._seed.child("graph", epoch))
        weights = self._weigh(graph)
        weights.flags.writeable = False
        return graph, weights

    def _links(self, round: int) -> Links:
        full, weights = self._full(self._epoch(round))
        failures, block, own = self.failures, round // self.failures.outage, self._seed.child("round", round)
        away = self._nodes(self._seed.child("away", block), failures.node_failures)
        late = self._nodes(own.child("late"), failures.stragglers) - away
        broken = self._pairs(full, self._seed.child("links", block), failures.link_failures)
        graph = full.without(away, broken) if away or broken else full
        return Links(graph=graph, away=away, late=late, failures=failures, seed=own, mixing=weights)

    def _nodes(self, seed: PublicSeed, share: float) -> frozenset[int]:
        if not share:
            return frozenset()
        return frozenset(node for node, word in enumerate(seed.words(self.nodes).tolist()) if word < _bound(share))

    def _pairs(self, graph: Graph, seed: PublicSeed, share: float) -> frozenset[Edge]:
        """The edges that fail. What becomes of an edge depends on its ends, not on the other edges of the graph."""
        if not share:
            return frozenset()
        words = seed.words(self.nodes**2)
        return frozenset((a, b) for a, b in graph.edges if int(words[a * self.nodes + b]) < _bound(share))


def _bound(share: float) -> int:
    """A word below this bound is drawn with this probability."""
    return round(share * 2**32)
