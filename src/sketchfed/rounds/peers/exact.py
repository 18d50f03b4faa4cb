"""The node of algorithm 'gossip_exact': sums of sketches go up a spanning tree, and the update comes down."""

from collections.abc import Collection, Mapping
from functools import lru_cache

import torch
from torch import Tensor

from sketchfed.algorithms import Replica, State, cohort
from sketchfed.algorithms.gossip_exact import SUM, GossipExact
from sketchfed.algorithms.replicas import group
from sketchfed.errors import UnresolvedError, WireError
from sketchfed.graphs import Links, Tree
from sketchfed.rounds.participant import MOST_UPDATES, BehindError, Participant, behind
from sketchfed.rounds.peers.base import GraphPeer, Hop, Plan
from sketchfed.rounds.peers.saved import whole_numbers
from sketchfed.rounds.peers.voice import Voice
from sketchfed.rounds.stepping import checked_step
from sketchfed.training import ClientMemory, Examples
from sketchfed.wire import Packet, kind_of, number_named, pack, split, unpack

RESCUE = 2
"""The steps at the start of a round in which nodes that missed an update ask their neighbours for it, and get it."""


@lru_cache(maxsize=8)
def tree_of(links: Links, root: int) -> Tree:
    """The tree of a round, over all nodes that the root can reach."""
    return links.graph.tree(root)


class ExactPeer(GraphPeer):
    """Holds the same replica as all other nodes.

    Paper: Song et al. 2023, Sec. 4, "Decentralization". Each node adds the sums of its children to its own sketch and passes
    the result to its parent. The root takes Algorithm 1's step, and the update travels down. A node that misses an update asks
    all its neighbours in the next round. One node is the root in all rounds, because two roots could take different steps from
    the same round. While it is away, the others wait.

    **Nodes trust those above them.** A parent can send its children another update than its own, and so can a neighbour that is
    asked for what was missed. Nobody notices, and the nodes below stay on a model of their own.
    """

    rooted = True

    def __init__(self, node: int, participant: Participant, start: Replica, root: int = 0) -> None:
        super().__init__(node, participant, start, root)
        self.replica = start
        self._updates = Voice(start, self.algorithm.carried)
        self._total: Tensor | None = None
        self._count = 0
        self._sum_round = 0
        """The round to which the sum belongs."""
        self._norm: float | None = None
        """The norm of its own integers in this round. None if it does not train in it."""
        self._held: dict[int, int] = {}
        """The rounds of neighbours' replicas, as far as they said."""
        self._asked: set[int] = set()
        """Neighbours that asked for what they missed."""
        self._lacking = False
        """Whether this node may have missed an update."""
        self._asks = False
        """Whether it asks its neighbours in this round for what it missed."""
        self._last = -1
        """The round in which it last took part."""
        self._tree: Tree | None = None

    @property
    def told(self) -> tuple[str, ...]:
        return ("weights", *self.algorithm.carried)

    @property
    def exact(self) -> GossipExact:
        if not isinstance(self.algorithm, GossipExact):
            raise UnresolvedError(f"algorithm '{self.algorithm.name}' does not add up integers.")
        return self.algorithm

    @classmethod
    def plan(cls, links: Links, root: int) -> Plan:
        """Two steps for those that missed something, then up the tree, level by level, and down again."""
        graph, tree = links.graph, tree_of(links, root)
        everybody = [(node, other) for node in range(graph.nodes) for other in graph.neighbours(node)]
        level = {tree.root: 0}
        for node in tree.order[1:]:
            level[node] = level[tree.parent[node]] + 1
        up: list[list[Hop]] = [[] for _ in range(tree.depth)]
        for node in tree.order[1:]:
            up[level[node] - 1].append((node, tree.parent[node]))
        down = [[(parent, child) for child, parent in pairs] for pairs in up]
        return [everybody] * RESCUE + up[::-1] + down

    @property
    def weights(self) -> Tensor:
        return self.replica.weights

    def idle(self, index: int, links: Links) -> bool:
        """A node whose training fails still adds up what its children say, or all below it would be lost."""
        self._begin(index, links)
        return True

    def _begin(self, index: int, links: Links) -> None:
        self._tree = tree_of(links, self.root)
        self._total, self._count, self._norm, self._held, self._asked = None, 0, None, {}, set()
        self._lacking |= self._last not in (index - 1, index)
        self._asks = self._lacking and self.node != self.root  # the root takes all steps itself, so it has missed none
        self._last = index
        self._sum_round = self.replica.round

    def work(self, index: int, examples: Examples, links: Links) -> None:
        self._begin(index, links)
        if self.node not in self._cohort(self.replica.round):
            return
        memory = ClientMemory(kept=self.kept)
        said, after = self.participant.answer(self.replica, examples, memory, self.node)
        self.kept = after.kept
        self._total = self.exact.integers(unpack(said), len(self.weights), self.context(self.replica.round))
        self._count, self._norm = 1, float(self._total.double().norm())

    def _cohort(self, index: int) -> Collection[int]:
        population = self.participant.clients
        count = self.algorithm.planned(population)
        if count == population:
            return range(population)
        return cohort(self.participant.seed, index, population=population, count=count)

    def tell(self, receiver: int, step: int) -> bytes | None:
        if step == 0:
            return BehindError("", self.replica.round).reply if self._asks else None
        if step == 1:
            return self._missed_by(receiver) if receiver in self._asked else None
        if self._is_up(receiver):
            return self._sum()
        self._step_at_root()
        return self._missed_by(receiver)

    def _is_up(self, other: int) -> bool:
        return self._tree is not None and self._tree.parent.get(self.node) == other

    def _sum(self) -> bytes:
        """The sum so far, or only the round of this node's replica, if there is nothing to add."""
        held = {"held": self.replica.round}
        if self._total is None:
            return pack(Packet(kind="begin", arrays={}, scalars={"round": self._sum_round, **held}))
        return pack(self.exact.summed(self._total, self._count).stamped(round=self._sum_round, **held))

    def _missed_by(self, neighbour: int) -> bytes | None:
        """The updates that a neighbour lacks. None if it holds as much as this node."""
        held = self._held.get(neighbour, self._sum_round)
        return self._updates.since(held) if held < self.replica.round else None

    def _step_at_root(self) -> None:
        """Take the step of the round, if this is the root and has not done so."""
        if self.node != self.root or self._total is None or self._sum_round != self.replica.round:
            return
        summed = self.exact.summed(self._total, self._count)
        noise = self.participant.protection.variance(self._count)
        state = State(replica=self.replica)
        _, update = checked_step(self.exact, state, [summed], self.participant.seed, noise=noise)
        if update is not None:
            self._follow(pack(update.stamped(round=self.replica.round)), most=self._last + 1)

    def _follow(self, task: bytes, *, most: int) -> None:
        """Go on to the round of a task, which is updates or a whole model. `most` is the last round that there can be."""
        after = self.participant.receive(self.replica, task)
        if after.round > most:
            raise WireError(f"it leads to round {after.round:,}, and at most {most:,} rounds can be over.")
        if after.round <= self.replica.round:
            return
        parts = [bytes(part) for part in split(task, most=MOST_UPDATES)][self.replica.round - after.round :]
        if kind_of(parts[-1]) == "snapshot":
            self._updates = Voice(after, self.algorithm.carried)
        else:
            at = self.replica
            for part in parts:
                if number_named(unpack(part), "round") == at.round:
                    at = after if at.round + 1 == after.round else self.participant.receive(at, part)
                    self._updates.say(part, at)
        self.replica = after
        self._lacking = False

    def hear(self, sender: int, message: bytes, step: int) -> None:
        if step == 0:
            if (held := behind(message)) is None:
                raise WireError("a neighbour may only ask for what it missed at the start of a round.")
            self._held[sender] = held[0] or 0
            self._asked.add(sender)
        elif step == 1:
            if not self._asks:
                raise WireError("nobody asked for what it sends. Send updates to those that missed them.")
            self._catch_up(message)
        elif self._is_child(sender):
            self._add(sender, unpack(message))
        elif self._is_up(sender):
            self._follow(message, most=self._last + 1)
        else:
            raise WireError(f"node {sender} is no neighbour of node {self.node} in the tree of this round.")

    def _catch_up(self, task: bytes) -> None:
        """Follow what was missed. What this node trained before belongs to an earlier round, so it does not count."""
        self._follow(task, most=self._last)
        if self.replica.round > self._sum_round:
            self._total, self._count, self._sum_round = None, 0, self.replica.round

    def _is_child(self, other: int) -> bool:
        return self._tree is not None and self._tree.parent.get(other) == self.node

    def _add(self, sender: int, packet: Packet) -> None:
        """Add a child's sum. If children are at different rounds, the sums of the latest round count."""
        index = int(number_named(packet, "round", least=0, most=2**62))
        held = int(number_named(packet, "held", least=0, most=2**62))
        if packet.kind == SUM:
            total = self.exact.total(packet, len(self.weights))
            self._check_round(index)
            if packet.clients > (most := self._most_below(sender, index)):
                raise WireError(
                    f"it claims to be a sum over {packet.clients:,} nodes, and node {sender} and those below it are at most "
                    f"{most:,} in the round."
                )
            self.check_norm(float(total.double().norm()) / packet.clients, self._norm)
            if self._total is None or index > self._sum_round:
                self._total, self._count, self._sum_round = total, packet.clients, max(index, self._sum_round)
            elif index == self._sum_round:
                self._total, self._count = self._total + total, self._count + packet.clients
        elif packet.kind != "begin":
            raise WireError(f"a child in the tree sends a '{SUM}' or a 'begin', got '{packet.kind}'.")
        self._held[sender] = held

    def _check_round(self, index: int) -> None:
        """Refuse sums of a round that cannot have begun. They would displace the sums of all others.

        A node that has missed nothing is at the latest round, and so is the root, which takes the steps.
        """
        latest = self._last if self._asks and self._lacking else self.replica.round
        if index > latest:
            raise WireError(f"it is a sum of round {index + 1:,}, and round {latest + 1:,} is the latest that can have begun.")

    def _most_below(self, child: int, index: int) -> int:
        """How many nodes a child can speak for: those of the round that are below it, and itself."""
        below = () if self._tree is None else self._tree.below(child)
        return len(set(below).intersection(self._cohort(index)))

    def close(self, links: Links) -> None:
        self._step_at_root()
        self._lacking = self.replica.round <= self._sum_round
        self._tree = None

    def tensors(self, index: int) -> dict[str, Tensor]:
        named = {f"kept.{name}": each for name, each in ClientMemory(kept=self.kept).to_tensors().items()}
        return {**named, **self._updates.tensors(), "last": torch.tensor([self._last, self._lacking])}

    def restore(self, tensors: Mapping[str, Tensor], estimates: Mapping[int, Replica]) -> None:
        self._updates.restore(tensors, estimates[self.node])
        self.replica = self._updates.estimate
        self.kept = ClientMemory.from_tensors(group(tensors, "kept")).kept
        last, lacking = whole_numbers(tensors, "last", 2, least=-1).tolist()
        self._last, self._lacking = int(last), bool(lacking)
