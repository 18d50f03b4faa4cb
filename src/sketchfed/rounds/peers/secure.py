"""The node of algorithm 'gossip_models' under [secure]: it learns the sum of its neighbours' sketches, and no single one."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from torch import Tensor

from sketchfed.algorithms import Replica, round_seed
from sketchfed.errors import SecureSumError, SketchfedError, UnresolvedError
from sketchfed.graphs import Links
from sketchfed.protection import SecureSums
from sketchfed.protection.honest_sums import clipped_to, honest_norm
from sketchfed.rounds.participant import Participant
from sketchfed.rounds.peers.base import GraphPeer, Plan
from sketchfed.rounds.peers.models import SharedPeer
from sketchfed.rounds.secure_clients import Directory, Identities
from sketchfed.secure import STAGES, Identity, SecureClient, SecureServer, Terms, request_kind
from sketchfed.seeds import SecretSeed
from sketchfed.training import Examples
from sketchfed.wire import pack, unpack

log = logging.getLogger("sketchfed")

FEWEST = 3
"""The fewest neighbours whose sum hides something: with two, one of them knows the other's part."""
_LEAST_SHARE = 0.1
"""A neighbour hides others only if it has this share, at least, of the largest weight in the sum."""


def hiding(weights: Iterable[float]) -> int:
    """How many neighbours hide each other in a sum with these weights. One of much weight is not hidden by those of little."""
    known = list(weights)
    return sum(weight > 0 and weight >= _LEAST_SHARE * max(known) for weight in known)


class SecurePeer(SharedPeer):
    """For each node, its neighbours run a secure sum (Bell et al. 2020) that the node opens.

    A neighbour j of node i adds (wᵢⱼ/max wᵢ)·R·xⱼ, clipped and rounded, so the node learns Σⱼ wᵢⱼ·R·xⱼ over the neighbours that
    stayed, which is all that algorithm 'gossip_models' needs. A round takes ten steps instead of one: a request and a reply in
    each stage. **Neighbourhoods overlap.** Two nodes that share what they learn, and whose neighbours are the same but for one,
    know the sketch of that one.
    """

    def __init__(self, node: int, participant: Participant, start: Replica, root: int = 0) -> None:
        super().__init__(node, participant, start, root)
        self._identity: Identity | None = None
        self._directory: Mapping[int, bytes] = {}
        self._links: Links | None = None
        self._server: SecureServer | None = None
        self._answers: dict[int, bytes] = {}
        """What neighbours answered to this node's requests of a stage."""
        self._replies: dict[int, bytes] = {}
        """What this node answers to each neighbour's request of a stage."""
        self._sessions: dict[int, SecureClient] = {}
        """This node's part in the sum of each neighbour."""
        self._joined: set[bytes] = set()
        self._said: Tensor | None = None
        self._warned = False

    @classmethod
    def meet(cls, peers: Mapping[int, GraphPeer]) -> None:
        some = next(iter(peers.values()))
        secret = some.participant.protection.secret(0, "identities")
        identities = Identities(some.participant.clients, lambda node: Identity.of(secret.child("client", node)))
        directory = Directory(identities)
        for node, peer in peers.items():
            if isinstance(peer, SecurePeer):
                peer._identity, peer._directory = identities[node], directory

    @classmethod
    def plan(cls, links: Links, root: int) -> Plan:
        """A request and a reply in each stage, in all neighbourhoods at once."""
        return list(super().plan(links, root)) * 2 * len(STAGES)

    @property
    def sums(self) -> SecureSums:
        protection = self.participant.protection
        if not isinstance(protection, SecureSums):
            raise UnresolvedError("the run's settings have no secure sums.")
        return protection

    def work(self, index: int, examples: Examples, links: Links) -> None:
        super().work(index, examples, links)
        self._links, self._said = links, None
        self._answers, self._replies, self._sessions = {}, {}, {}
        try:
            terms = self._terms(self.node)
        except SketchfedError as error:  # with so few neighbours, no sum meets the run's demands
            log.warning("round %d: node %d does not mix: %s", index + 1, self.node, error)
            terms = None
        self._server = None if terms is None else SecureServer(terms, self._directory)

    def _terms(self, node: int) -> Terms | None:
        """The terms of the sum that a node opens in this round. None if too few of its links work."""
        neighbours = () if self._links is None else self._links.graph.neighbours(node)
        if self._links is None or hiding(self._links.weight(node, each) for each in neighbours) < FEWEST:
            return None
        sums, seed = self.sums, round_seed(self.participant.seed, self._index)
        session = seed.child("neighbourhood", node).to_bytes()
        shape = {"size": sums.mechanism.size, "bits": sums.mechanism.bits}
        terms = sums.settings.terms(neighbours, cohort=len(neighbours), session=session, index=self._index, **shape)
        return terms if terms.least >= FEWEST else replace(terms, least=FEWEST)

    def tell(self, receiver: int, step: int) -> bytes | None:
        if step % 2:
            return self._replies.pop(receiver, None)
        self._settle()
        server = self._server
        is_due = server is not None and server.stage == STAGES[step // 2]
        return server.requests.get(receiver) if server is not None and is_due else None

    def hear(self, sender: int, message: bytes, step: int) -> None:
        if step % 2:
            self._answers[sender] = message
        else:
            self._replies[sender] = self._answer(sender, message)

    def _answer(self, node: int, message: bytes) -> bytes:
        """The answer to a request in the sum that a neighbour opens."""
        packet = unpack(message)
        if packet.kind == request_kind("keys"):
            terms, identity = self._terms(node), self._identity
            if identity is None or terms is None or Terms.from_packet(packet) != terms:
                raise SecureSumError(
                    f"node {node} proposes a sum on other terms than those that follow from the run's settings."
                )
            session, reply = SecureClient.join(terms, self.node, identity, self._directory, SecretSeed(), joined=self._joined)
            self._joined.add(terms.digest)
            self._sessions[node] = session
            return pack(reply)
        if node not in self._sessions:
            raise SecureSumError(f"node {self.node} has not joined the sum of node {node}.")
        values = self._integers(node) if packet.kind == request_kind("masked") else None
        return pack(self._sessions[node].answer(packet, values))

    def _integers(self, node: int) -> Tensor:
        """The node's own sketch as integers, in the proportion in which a neighbour takes it."""
        mechanism, context = self.sums.mechanism, self.context(self._index)
        if self._said is None:
            self._said = self.models.heard(self.models.said(self.weights, context), len(self.weights), context)
            self._look_at_clip(float(self._said.norm()))
        secret = self.sums.client_secret(context).child("neighbour", node)
        row = self._said * self._share(node, self.node)
        return mechanism.noised(mechanism.clipped_sum(row[None], secret, context.shared), secret)

    def _share(self, node: int, neighbour: int) -> float:
        """The weight of a neighbour in a node's sum, as a part of the largest one."""
        if self._links is None:
            raise UnresolvedError("there is no round.")
        return self._links.weight(node, neighbour) / self._largest(node)

    def _largest(self, node: int) -> float:
        links = self._links
        if links is None:
            raise UnresolvedError("there is no round.")
        return max(links.weight(node, each) for each in links.graph.neighbours(node))

    def _look_at_clip(self, norm: float) -> None:
        if norm > self.sums.mechanism.clip and not self._warned:
            self._warned = True
            log.warning(
                "node %d: the sketch of its model has norm %.3g and is scaled down to secure.clip = %g, so its neighbours move "
                "towards a smaller model. Set a larger clip.",
                self.node,
                norm,
                self.sums.mechanism.clip,
            )

    def _settle(self) -> None:
        """Hand the answers of a stage to the sum. A sum that fails is given up, and the node does not mix in this round."""
        if self._server is None or not self._answers:
            return
        answers, self._answers = self._answers, {}
        try:
            self._server.receive(answers)
        except SecureSumError as error:
            log.warning("round %d: node %d does not mix: %s", self._index + 1, self.node, error)
            self._server = None

    def close(self, links: Links) -> None:
        try:
            self._settle()
            result = None if self._server is None else self._server.result
            if result is None:
                return
            context = self.context(self._index)
            largest = self._largest(self.node)
            mechanism = self.sums.mechanism
            longest = honest_norm(mechanism, clients=len(result.survivors))  # one neighbour can mask any integers
            total = clipped_to(mechanism.recovered(result.total, context.shared), longest) * largest
            share = sum(links.weight(self.node, each) for each in result.survivors)
            step = self.models.towards(self.weights, total, share, context)
            self._weights = self._weights + step.mul_(self.models.mixing_rate)
        except SketchfedError as error:
            log.warning("round %d: node %d does not mix: %s", self._index + 1, self.node, error)
        finally:
            self._server, self._links = None, None
