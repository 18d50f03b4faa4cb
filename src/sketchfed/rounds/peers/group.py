"""The nodes of a graph that are in this process, and one round of them."""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sketchfed.algorithms import Replica
from sketchfed.algorithms.replicas import group
from sketchfed.errors import DivergedError, FaultyPartError, InputError, SketchfedError, reason
from sketchfed.graphs import Links, Topology
from sketchfed.rounds.kept import KeptExamples
from sketchfed.rounds.participant import Participant
from sketchfed.rounds.peers.base import GraphPeer, Hop
from sketchfed.rounds.peers.saved import replica, whole_numbers
from sketchfed.rounds.peers.transport import Direct, Transport, weathered
from sketchfed.training import ClientMemory, Examples, Judged

log = logging.getLogger("sketchfed")


@dataclass
class PeerRound:
    """What happened in one round, as far as the nodes of this process know."""

    sent: dict[Hop, int] = field(default_factory=dict)
    """The bytes of the messages from a node to a neighbour."""
    arrived: dict[Hop, int] = field(default_factory=dict)
    lost: int = 0
    """Messages that did not arrive in time."""
    refused: dict[Hop, str] = field(default_factory=dict)
    """Messages that could not be used, with the reason."""
    failed: dict[int, str] = field(default_factory=dict)
    """Nodes whose training failed, with the reason."""
    worked: set[int] = field(default_factory=set)
    """Nodes that trained."""
    spoken: set[int] = field(default_factory=set)
    """The steps in which somebody had something to say."""
    unheard: set[int] = field(default_factory=set)
    """Nodes of which this process does not know what they did in the round."""
    relaying: set[int] = field(default_factory=set)
    """Nodes whose training failed, and that still pass on what others say."""
    said: dict[int, list[tuple[Hop, bytes]]] = field(default_factory=dict)
    """All messages of each step, if they are recorded."""


class PeerGroup:
    """Runs rounds of the nodes that are in this process, all of them or some, over a transport.

    Nodes train in threads, and each uses one thread, so results are bitwise equal for any number of workers.
    """

    def __init__(
        self,
        kind: type[GraphPeer],
        participant: Participant,
        start: Replica,
        topology: Topology,
        examples: Callable[[int], Examples],
        *,
        workers: int,
        nodes: Iterable[int] | None = None,
        transport: Transport | None = None,
        judged: Callable[[int], Judged] | None = None,
    ) -> None:
        self.kind, self.topology, self.participant = kind, topology, participant
        self.clients = topology.nodes
        first, self.root = kind.first(start), topology.graph(0).centre
        self.peers: dict[int, GraphPeer] = {
            node: kind(node, participant, first, self.root) for node in (range(topology.nodes) if nodes is None else nodes)
        }
        kind.meet(self.peers)
        self.recording = False
        self._index = -1
        self.complaints: Mapping[int, str] = {}
        self.directory: Mapping[int, bytes] = {}
        self.agreed = participant.agreed
        self.unheard: Collection[int] = ()
        self.gone: Collection[int] = ()
        """Nodes that were not heard in the last round, because the process in which they run is gone or late."""
        self._examples, self._judged, self._transport = KeptExamples(examples), judged, transport or Direct()
        self._pool = ThreadPoolExecutor(
            1 if participant.trainer.sequential else workers, "node", initializer=torch.set_num_threads, initargs=(1,)
        )

    def ask(self, requests: Mapping[int, bytes], stage: str = "train") -> Mapping[int, bytes]:
        """Refused: nobody sends requests to the nodes of a graph."""
        raise InputError("nodes of a graph take no requests. They run rounds: `round(index)`.")

    def acknowledge(self, rounds: Mapping[int, int]) -> None:
        """Do nothing: nodes know themselves what their neighbours hold."""

    def round(self, index: int) -> PeerRound:
        """Run one round. A node that fails says nothing of its own in it, and the others go on."""
        links, found = self.topology.at(index), PeerRound()
        self._index = index
        present = [node for node in self.peers if node not in links.away]
        for node, why in zip(present, self._pool.map(lambda node: self._work(node, index, links), present), strict=True):
            if why is None:
                found.worked.add(node)
            else:
                found.failed[node] = why
                if self.peers[node].idle(index, links):
                    found.relaying.add(node)
        for step, pairs in enumerate(self.kind.plan(links, self.root)):
            self._pass(index, step, pairs, links, found)
        for node in found.worked | found.relaying:
            self.peers[node].close(links)
        return found

    def _work(self, node: int, index: int, links: Links) -> str | None:
        """Let a node train. Return the reason if it fails."""
        try:
            self.peers[node].work(index, self._examples(node), links)
        except Exception as error:  # a node whose model, loss or data raises must not stop the others
            log.debug("node %d failed", node, exc_info=True)
            return reason(error)
        return None

    def _pass(self, index: int, step: int, pairs: Iterable[Hop], links: Links, found: PeerRound) -> None:
        """Let messages pass once. Whoever has nothing to say to a node elsewhere sends nothing, in zero bytes."""
        outgoing: dict[Hop, bytes] = {}
        expected: list[Hop] = []
        active = found.worked | found.relaying
        for sender, receiver in pairs:
            if receiver in active:
                expected.append((sender, receiver))
            if sender in self.peers:
                outgoing[sender, receiver] = self._word((sender, receiver), step, found) if sender in active else b""
        said = {pair: message for pair, message in outgoing.items() if message}
        if said:
            found.spoken.add(step)
        for pair, message in said.items():
            found.sent[pair] = found.sent.get(pair, 0) + len(message)
        if self.recording:
            found.said[step] = sorted(said.items())
        arriving = weathered(links, said, step)
        passed = {pair: arriving.get(pair) if message else b"" for pair, message in outgoing.items()}
        came = self._transport.exchange(passed, expected, index, step)
        for pair in sorted(came):
            if came[pair]:
                self._hear(pair, came[pair], step, found)
        found.lost += sum(pair not in came for pair in expected if pair in said or pair[0] not in self.peers)

    def _word(self, pair: Hop, step: int, found: PeerRound) -> bytes:
        """What a node says to a neighbour: nothing, if it holds numbers that no packet carries."""
        sender, receiver = pair
        try:
            return self.peers[sender].tell(receiver, step) or b""
        except (DivergedError, FaultyPartError):  # of the step of all nodes together
            raise
        except SketchfedError as error:
            found.failed[sender] = str(error)
            return b""

    def _hear(self, pair: Hop, message: bytes, step: int, found: PeerRound) -> None:
        sender, receiver = pair
        if receiver not in found.worked | found.relaying:
            return
        found.arrived[pair] = found.arrived.get(pair, 0) + len(message)
        try:
            self.peers[receiver].hear(sender, message, step)
        except SketchfedError as error:
            found.refused[pair] = str(error)

    def mean(self) -> tuple[Tensor, float, int]:
        """The mean of the models, their root mean square distance from it, and the node that is farthest from it."""
        return mean_of(self.peers, self.weights)

    def weights(self, node: int) -> Tensor:
        """The model of one node."""
        return self.peers[node].weights

    def judged(self, nodes: Collection[int], index: int) -> tuple[dict[int, bytes], dict[int, str]]:
        """Evaluate the models of nodes on their own data. Return what they measured, and why others did not."""

        def judge(node: int) -> bytes | str:
            peer = self.peers[node]
            replica, memory = Replica(round=index, weights=peer.weights), ClientMemory(kept=peer.kept)
            try:
                if self._judged is None:
                    raise InputError("this group holds no data on which nodes could be evaluated. Pass `judged` to it.")
                return self.participant.judged(replica, self._judged(node), memory, node)
            except Exception as error:  # of the node's model, data or evaluation
                log.debug("node %d could not be evaluated", node, exc_info=True)
                return reason(error)

        found = dict(zip(nodes, self._pool.map(judge, nodes), strict=True))
        replies = {node: reply for node, reply in found.items() if isinstance(reply, bytes)}
        return replies, {node: why for node, why in found.items() if isinstance(why, str)}

    def tensors(self) -> dict[str, Tensor]:
        """What all nodes of this process need to continue."""
        return {f"{node}.{name}": each for node, peer in self.peers.items() for name, each in peer.tensors(self._index).items()}

    def restore(self, tensors: Mapping[str, Tensor], index: int) -> None:
        """Continue after `index` rounds from what `tensors` returned, which may also hold other nodes.

        Raises KeyError, TypeError, ValueError or RuntimeError if it is not that.
        """
        self._index = index - 1
        some = next(iter(self.peers.values()))
        named = {node: group(tensors, str(node)) for node in range(self.clients)}
        estimates = {}
        for node, own in named.items():
            if "spoken" in own:
                spoken = int(whole_numbers(own, "spoken"))
                estimates[node] = replica(group(own, "estimate"), some.told, len(some.start.weights), round=spoken)
        for node, peer in self.peers.items():
            peer.restore(named[node], estimates)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def mean_of(nodes: Collection[int], weights: Callable[[int], Tensor]) -> tuple[Tensor, float, int]:
    """The mean of nodes' models, their root mean square distance from it, and the node that is farthest from it.

    The order of the sum is that of the nodes' numbers, so its bits do not depend on where nodes run.
    """
    ordered = sorted(nodes)
    total = torch.zeros_like(weights(ordered[0]), dtype=torch.float64)
    for node in ordered:
        total += weights(node)
    mean = (total / len(ordered)).float()
    apart = [float((weights(node) - mean).double().square().sum()) for node in ordered]
    return mean, math.sqrt(sum(apart) / len(ordered)), ordered[max(range(len(ordered)), key=apart.__getitem__)]
