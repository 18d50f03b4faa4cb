"""The node of algorithm 'gossip': it says differences to an estimate of its model that its neighbours hold as well."""

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from sketchfed.algorithms import Replica
from sketchfed.algorithms.gossip import Gossip
from sketchfed.algorithms.replicas import followed, group
from sketchfed.errors import UnresolvedError, WireError
from sketchfed.graphs import Links
from sketchfed.rounds.participant import MOST_UPDATES, BehindError, Participant
from sketchfed.rounds.peers.base import GraphPeer, Plan
from sketchfed.rounds.peers.saved import replica, vector, whole_numbers
from sketchfed.rounds.peers.voice import Voice
from sketchfed.training import ClientMemory, Examples
from sketchfed.wire import Packet, kind_of, number_named, pack, split, unpack


class GossipPeer(GraphPeer):
    """Holds an estimate of its own model and of each neighbour's, and what it has not said yet of its own.

    Its model is `voice.estimate + owed`. A message holds the updates that the neighbour lacks, as far as this node knows. A
    node that has missed something begins its next message with a packet 'behind', and gets it one round later.
    """

    extras: ClassVar[tuple[str, ...]] = ()
    """The tensors of an estimate besides `weights`."""

    def __init__(self, node: int, participant: Participant, start: Replica, root: int = 0) -> None:
        super().__init__(node, participant, start, root)
        self.voice = Voice(start, self.extras)
        self.owed = torch.zeros_like(start.weights)
        """x − x̂: what the node has not said yet."""
        self.copies: dict[int, Replica] = {}
        """The estimates of neighbours' models. Those that never said anything are at the start."""
        self._held: dict[int, int] = {}
        """The round of each neighbour's copy of this node's estimate, if all messages have arrived."""
        self._held_before: dict[int, int] = {}
        """The same before this round's messages."""
        self._norm: float | None = None
        """The norm of what it said last."""
        self._missed: set[int] = set()
        """Neighbours of whose updates this node may lack some."""
        self._worked = -1
        """The round in which it last took part."""
        self._fresh: set[int] = set()
        """Neighbours whose message of this round was understood."""
        self._heard: set[int] = set()
        """Neighbours whose message of this round arrived."""

    @property
    def told(self) -> tuple[str, ...]:
        return ("weights", *self.extras)

    @property
    def gossip(self) -> Gossip:
        if not isinstance(self.algorithm, Gossip):
            raise UnresolvedError(f"algorithm '{self.algorithm.name}' is no gossip.")
        return self.algorithm

    @classmethod
    def plan(cls, links: Links, root: int) -> Plan:
        """All neighbours speak to each other at once."""
        graph = links.graph
        return [[(node, other) for node in range(graph.nodes) for other in graph.neighbours(node)]]

    @property
    def weights(self) -> Tensor:
        return self.voice.estimate.weights + self.owed

    def work(self, index: int, examples: Examples, links: Links) -> None:
        replica, memory = Replica(round=index, weights=self.weights), ClientMemory(owed=self.owed, kept=self.kept)
        said, after = self.participant.answer(replica, examples, memory, self.node)
        self.kept, before = after.kept, self.voice.estimate
        self._say(said, index)
        self._listen(index)
        self.owed = before.weights + wanted(after) - self.voice.estimate.weights

    def _listen(self, index: int) -> None:
        """Begin to hear what is said in a round."""
        self._worked = index
        self._heard, self._fresh, self._held_before = set(), set(), {}

    def _say(self, update: bytes, index: int) -> None:
        """Make an update this node's latest word. It names the one before, unless that was in the round before."""
        after = self.voice.spoken
        if after != index:
            *others, last = (bytes(part) for part in split(update, most=self.gossip.packets_each))
            update = b"".join([*others, pack(unpack(last).stamped(after=after))])
        self.voice.say(update, self._moved(self.voice.estimate, update, self.node))

    def _moved(self, estimate: Replica, update: bytes, node: int) -> Replica:
        """The estimate of a node's model after an update, which is checked."""
        said = [unpack(part) for part in split(update, most=self.gossip.packets_each)]
        context, dim = self.context(int(number_named(said[-1], "round", least=0, most=2**62)), node), len(estimate.weights)
        for packet in said:
            if packet.clients != 1:
                raise WireError(f"it claims to stand for {packet.clients:,} nodes; a message must stand for one node.")
            norm = self.algorithm.check(packet, dim, context)
            self.check_norm(norm, None if node == self.node else self._norm)
        self._norm = norm if node == self.node else self._norm
        data = torch.frombuffer(bytearray(update), dtype=torch.uint8)
        return followed(estimate, node, context.shared, data, lambda: self.gossip.moved(estimate, said, context))

    def tell(self, receiver: int, step: int) -> bytes:
        held = self._held.get(receiver, 0)
        self._held_before[receiver], self._held[receiver] = held, self.voice.spoken
        request = BehindError("", self._copy(receiver).round).reply if receiver in self._missed else b""
        return request + self.voice.since(held)

    def hear(self, sender: int, message: bytes, step: int) -> None:
        parts = [bytes(part) for part in split(message, most=MOST_UPDATES)]
        lacks = None
        if parts and kind_of(parts[0]) == "behind":
            lacks = int(number_named(unpack(parts.pop(0)), "round", least=0, most=2**62))
        found = self._caught_up(sender, parts)
        if found is not None:
            self.copies[sender] = found
            self._fresh.add(sender)
        self._heard.add(sender)
        if lacks is not None and lacks < self._held_before.get(sender, 0):
            self._held[sender] = lacks

    def _caught_up(self, sender: int, parts: list[bytes]) -> Replica | None:
        """The copy of a neighbour's estimate after its message. None if something in between is missing."""
        copy, each = self._copy(sender), self.gossip.packets_each
        if len(parts) == 1 and kind_of(parts[0]) == "snapshot":
            found = self.voice.whole(unpack(parts[0]), len(copy.weights))
            self._check_whole(found)
            return found if found.round > copy.round else copy
        if not parts or len(parts) % each:
            raise WireError(f"{len(parts)} packets are not a whole number of updates; each update has {each}.")
        for start in range(0, len(parts), each):
            update = parts[start : start + each]
            if (after := self._after(unpack(update[-1]))) == copy.round:
                copy = self._moved(copy, b"".join(update), sender)
            elif after > copy.round:
                return None
        return copy

    def _after(self, update: Packet) -> int:
        """The round of the estimate on which an update builds. Refused unless it is of a round from there to this one."""
        after, index = _after(update), int(number_named(update, "round", least=0, most=2**62))
        if not after <= index <= self._worked:
            raise WireError(
                f"it is of round {index + 1:,} and builds on what was said before round {after + 1:,}. An update builds on "
                f"earlier ones, and this is round {self._worked + 1:,}."
            )
        return after

    def _check_whole(self, found: Replica) -> None:
        """Raise `WireError` if no honest neighbour can have this estimate of its own model in this round."""
        if found.round > self._worked + 1:
            raise WireError(
                f"it is an estimate after round {found.round:,}, and this is round {self._worked + 1:,}. A node sends the one "
                "that it has."
            )
        own = self.voice.estimate.to_tensors()
        for name, tensor in found.to_tensors().items():
            self.check_norm(float(tensor.norm()), float(own[name].norm()) or float(own["weights"].norm()))

    def _copy(self, node: int) -> Replica:
        return self.copies.get(node, self.start)

    def close(self, links: Links) -> None:
        self.owed = self.owed + self.gossip.mixing_rate * self.pulled(links, lambda estimate: estimate.weights)
        self._missed = (self._missed | set(links.graph.neighbours(self.node))) - self._fresh

    def pulled(self, links: Links, part: Callable[[Replica], Tensor]) -> Tensor:
        """Σⱼ wᵢⱼ(x̂ⱼ − x̂ᵢ) over the neighbours that were heard in this round, in the order of their numbers."""
        mine = part(self.voice.estimate)
        total = torch.zeros_like(mine)
        for other in sorted(self._heard.intersection(links.graph.neighbours(self.node))):
            total.add_(part(self._copy(other)) - mine, alpha=links.weight(self.node, other))
        return total

    def tensors(self, index: int) -> dict[str, Tensor]:
        held = torch.tensor(sorted(self._held.items()), dtype=torch.int64).reshape(-1, 2)
        missed = torch.tensor(sorted(self._missed), dtype=torch.int64)
        named = {f"kept.{name}": each for name, each in ClientMemory(kept=self.kept).to_tensors().items()}
        for other, copy in self.copies.items():
            fresh = self._worked == index and other in self._fresh  # then it is what the neighbour itself holds
            named[f"copy.{other}.round"] = torch.tensor([copy.round, fresh])
            if not fresh:
                named |= {f"copy.{other}.replica.{name}": each for name, each in copy.to_tensors().items()}
        return {**named, **self.voice.tensors(), "owed": self.owed, "held": held, "missed": missed}

    def restore(self, tensors: Mapping[str, Tensor], estimates: Mapping[int, Replica]) -> None:
        self.voice.restore(tensors, estimates[self.node])
        self.owed = vector(tensors, "owed", len(self.owed))
        self.kept = ClientMemory.from_tensors(group(tensors, "kept")).kept
        self._held = {int(node): int(held) for node, held in whole_numbers(tensors, "held", -1, 2).tolist()}
        self._missed = set(whole_numbers(tensors, "missed", -1).tolist())
        for other, named in _by_number(group(tensors, "copy")).items():
            index, fresh = whole_numbers(named, "round", 2).tolist()
            saved = group(named, "replica")
            self.copies[other] = estimates[other] if fresh else replica(saved, self.told, len(self.owed), round=index)
            if self.copies[other].round != index:
                raise ValueError(
                    f"node {self.node} holds node {other}'s estimate of round {index}, and node {other} another one"
                )


def wanted(after: ClientMemory) -> Tensor:
    """What a node wanted to say, of which its message is a compressed form."""
    if after.owed is None:
        raise UnresolvedError("the algorithm does not return what a node wanted to say.")
    return after.owed


def _after(update: Packet) -> int:
    """The round of the estimate on which an update builds."""
    name = "after" if "after" in update.scalars else "round"
    return int(number_named(update, name, least=0, most=2**62))


def _by_number(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Named tensors by the number with which their names begin."""
    found: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, _, rest = name.partition(".")
        found.setdefault(int(number), {})[rest] = tensor
    return found
