"""The rounds of a run without a server: nodes of a graph that speak to their neighbours only."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from sketchfed.algorithms import Replica, State
from sketchfed.errors import DivergedError, NoReplyError, StorageError, WireError
from sketchfed.graphs import Topology
from sketchfed.kernels.finite import all_finite
from sketchfed.protection import Protection
from sketchfed.rounds.engine import Engine
from sketchfed.rounds.peers import Hop, PeerRound
from sketchfed.rounds.peers.saved import everywhere, once, whole_numbers
from sketchfed.rounds.recorder import Exchange, OnExchange
from sketchfed.rounds.server import Server
from sketchfed.rounds.tally import Answers
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, expect_kind, number_named, pack, unpack

log = logging.getLogger("sketchfed")

RECEIVER = "receiver"
"""The kind of packet that names, in recorded messages, to whom a node spoke."""


class NodeGroup(Engine, Protocol):
    """All nodes of a graph, in this process or in several."""

    topology: Topology
    recording: bool
    gone: Collection[int]

    def round(self, index: int) -> PeerRound:
        """Run one round."""

    def mean(self) -> tuple[Tensor, float, int]:
        """The mean of the models, their root mean square distance from it, and the node that is farthest from it."""

    def weights(self, node: int) -> Tensor:
        """The model of one node."""

    def judged(self, nodes: Sequence[int], index: int) -> tuple[dict[int, bytes], dict[int, str]]:
        """Evaluate the models of nodes on their own data."""

    def tensors(self) -> dict[str, Tensor]:
        """What the nodes need to continue."""

    def restore(self, tensors: Mapping[str, Tensor], index: int) -> None:
        """Continue after `index` rounds from what `tensors` returned."""


class Network(Server):
    """Lets the nodes run their rounds, and counts what passes between them. It takes no part in learning.

    `state` holds the mean of the nodes' models, which exists only here, to be evaluated. It is made only in rounds for
    which it is `wanted`.
    """

    def __init__(
        self, protection: Protection, group: NodeGroup, state: State, seed: PublicSeed, *, tell: OnExchange | None = None
    ) -> None:
        super().__init__(protection, group, state, seed, shared_start=True)
        self.group, self._tell_exchanges = group, tell
        group.recording = tell is not None
        self.farthest = 0
        """The node whose model is farthest from the mean."""
        self.traffic: dict[Hop, int] = {}
        """The bytes that each node sent to each neighbour since the start."""
        self.wanted: Callable[[int], bool] = lambda number: True
        """Whether the mean after that many rounds will be looked at."""
        self._consensus: float | None = None
        self._lost, self._steps = 0, 0
        self._can_go_on = True

    def cohort(self) -> list[int]:
        """The nodes that are there in the next round."""
        away = self.group.topology.at(self.round).away
        return [node for node in range(self.group.clients) if node not in away]

    @property
    def measured(self) -> dict[str, float | None]:
        """How far nodes are apart, and what passed between them."""
        nodes = [0] * self.group.clients
        edges: dict[Hop, int] = {}
        for (sender, receiver), sent in self.traffic.items():
            nodes[sender] += sent
            edge = (min(sender, receiver), max(sender, receiver))
            edges[edge] = edges.get(edge, 0) + sent
        return {
            "consensus": self._consensus,
            "node_bytes": max(nodes),
            "edge_bytes": max(edges.values(), default=0),
            "lost": self._lost,
            "refused": self.tally.refused,
            "steps": self._steps,
            "nodes_gone": len(self.group.gone),
        }

    def advance(self) -> None:
        """Run one round. A node's largest possible privacy cost is written down before it says anything."""
        if not self._can_go_on:
            raise StorageError(
                "the last checkpoint was saved at the end of the run, when some nodes were gone, so it does not say what they "
                "held. Start the run anew in another folder."
            )
        chosen, index, weights = self.cohort(), self.round, self.state.replica.weights
        if not chosen:
            self.group.round(index)
            self.state = State(replica=Replica(round=index + 1, weights=weights))
            return
        draw = self._intended("", chosen)
        found = self.group.round(index)
        self._settled(draw, sorted({sender for sender, _ in found.sent} | found.worked | found.unheard))
        self._count(found)
        if self._tell_exchanges is not None:
            self._record(found, index, self._tell_exchanges)
        self._tell(found.failed)
        for (sender, receiver), why in found.refused.items():
            log.warning("round %d: node %d cannot use what node %d said: %s", index + 1, receiver, sender, why)
        if not found.worked:
            raise self._unusable(found.failed) if found.failed else NoReplyError(f"no node took part in round {index + 1}.")
        self._consensus = None
        if self.wanted(index + 1):
            weights, self._consensus, self.farthest = self.group.mean()
            if not all_finite(weights):
                raise DivergedError(f"the mean of the models after round {index + 1} is no longer finite")
        self.state = State(replica=Replica(round=index + 1, weights=weights))

    def _count(self, found: PeerRound) -> None:
        tally = self.tally
        tally.uplink_bytes += sum(found.sent.values())
        tally.downlink_bytes += sum(found.arrived.values())
        tally.broadcast_bytes += sum(found.arrived.values()) // self.group.clients
        tally.replies += len(found.worked)
        tally.refused += len(found.refused)
        self._lost += found.lost
        self._steps += len(found.spoken)
        for pair, sent in found.sent.items():
            self.traffic[pair] = self.traffic.get(pair, 0) + sent

    def _record(self, found: PeerRound, index: int, tell: OnExchange) -> None:
        for step, messages in found.said.items():
            tell([_exchange(index, step, pair, message) for pair, message in messages])

    def survey(self, clients: Sequence[int]) -> Answers:
        """Evaluate each node's own model on its own data. Nothing of that passes between nodes."""
        replies, reasons = self.group.judged(list(clients), self.round)
        return Answers(replies, reasons, set())

    def under_way(self) -> dict[str, Tensor] | None:
        """Everything that the nodes hold, and what passed so far. None if nodes are gone, since nobody knows what they held."""
        tensors = {} if self.group.gone else self.group.tensors()
        if self.group.gone:
            return None
        rows = [(*pair, sent) for pair, sent in sorted(self.traffic.items())]
        counts = torch.tensor([self._lost, self._steps, self.farthest])
        named = {"traffic": torch.tensor(rows, dtype=torch.int64).reshape(-1, 3), "counts": counts}
        mine = self.state.replica.weights.data_ptr()  # before round 1, it is the very tensor that the nodes hold
        held = {name: each.clone() if each.data_ptr() == mine else each for name, each in once(tensors).items()}
        return named | {f"node.{name}": each for name, each in held.items()}

    def go_on(self, under_way: Mapping[str, Tensor]) -> None:
        if not under_way:
            self._can_go_on = False
            return
        try:
            rows, nodes = whole_numbers(under_way, "traffic", -1, 3), self.group.clients
            if rows.numel() and int(rows[:, :2].max()) >= nodes:
                raise ValueError(f"it counts messages of node {int(rows[:, :2].max()):,}, and there are {nodes:,} nodes")
            self.traffic = {(a, b): sent for a, b, sent in rows.tolist()}
            self._lost, self._steps, farthest = whole_numbers(under_way, "counts", 3).tolist()
            if farthest >= nodes:
                raise ValueError(f"it names node {farthest:,}, and there are {nodes:,} nodes")
            self.farthest = farthest
            held = {name.removeprefix("node."): each for name, each in under_way.items() if name.startswith("node.")}
            for name, each in held.items():
                if name.endswith(".spoken") and int(each) > self.round:
                    raise ValueError(f"'{name}' is round {int(each):,}, and {self.round:,} rounds are over")
            self.group.restore(everywhere(held), self.round)
        except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise StorageError(
                f"the checkpoint does not say what the nodes of the graph hold: {error}. It was damaged or replaced; start the "
                "run anew in another folder."
            ) from error


def receiver(exchange: Exchange) -> int | None:
    """The node to which a recorded message between neighbours was sent. None if it is no such message."""
    try:
        return int(number_named(expect_kind(unpack(exchange.request), RECEIVER), "node", least=0, most=2**62))
    except WireError:
        return None


def _exchange(index: int, step: int, pair: Hop, message: bytes) -> Exchange:
    """A message between neighbours, as an exchange whose request names the receiver."""
    to = pack(Packet(kind=RECEIVER, arrays={}, scalars={"node": pair[1]}))
    return Exchange(round=index, stage=f"step {step}", client=pair[0], request=to, reply=message)
