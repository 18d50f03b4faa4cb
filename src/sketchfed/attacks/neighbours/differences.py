"""Replays of gossip, in which nodes say compressed differences to estimates that their neighbours hold as well."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from sketchfed.algorithms import Replica
from sketchfed.algorithms.gossip import Gossip
from sketchfed.algorithms.gossip_tracking import TRACKED, GossipTracking
from sketchfed.attacks.knowledge.base import Heard
from sketchfed.attacks.neighbours.replay import Path, Replay, mapped
from sketchfed.attacks.neighbours.scene import NeighbourChange, Scene
from sketchfed.codecs.linear import LinearCode, LinearMap, RoundTrip
from sketchfed.errors import WireError
from sketchfed.rounds.peers import peer_of
from sketchfed.wire import Packet, split, unpack

Of = Callable[[Replica], Tensor]


class GossipReplay(Replay):
    """The estimates of the neighbours' models are known, so a message A(x + Δ − x̂) shows A(x + Δ).

    What is not known are the models of the neighbours' other neighbours, which enter x one round later.
    """

    def __init__(self, scene: Scene, algorithm: Gossip) -> None:
        super().__init__(scene)
        self.gossip = algorithm
        self.code = cache(self._code)
        to = dict.fromkeys(scene.neighbours, scene.node) | {scene.node: min(scene.neighbours)}
        self.packets = {node: self._packets(node, other) for node, other in to.items()}
        first = peer_of(scene.protection).first(scene.start)
        self.estimates = {node: self._estimated(node, first, said) for node, said in self.packets.items()}
        """What nodes told of themselves before each round and after the last one, for this node and its neighbours."""

    def _packets(self, sender: int, to: int) -> list[list[Packet]]:
        each, found = self.gossip.packets_each, []
        for index in self.rounds:
            parts = [unpack(part) for part in split(self.scene.message(index, sender, to), most=each)]
            if len(parts) != each:
                raise WireError(f"node {sender}'s message of round {index + 1} is no update of algorithm '{self.gossip.name}'.")
            found.append(parts)
        return found

    def _estimated(self, node: int, first: Replica, said: Sequence[list[Packet]]) -> list[Replica]:
        found = [first]
        for index, packets in zip(self.rounds, said, strict=True):
            found.append(self.gossip.moved(found[-1], packets, self.scene.context(index, node)))
        return found

    def _code(self, index: int, node: int) -> LinearCode | None:
        context = self.scene.context(index, node)
        return self.gossip.codec.codec(self.scene.dim, self.gossip.sketch).linear(context.shared, node)

    def map(self, index: int, node: int) -> LinearMap | None:
        code = self.code(index, node)
        return None if code is None else code.map

    @property
    def linear(self) -> bool:
        """Whether the codec is linear. If not, only single messages are read."""
        return self.code(0, self.scene.node) is not None

    @property
    def heard(self) -> list[Tensor]:
        return self._shown(0, _weights)

    def _shown(self, place: int, of: Of) -> list[Tensor]:
        """What the packets at one place of the messages show: A·(x + Δ), as a difference from the first model."""
        found = []
        for index, node in self.order:
            code, before = self.code(index, node), self._known(node, index, of)
            values = before if code is None else code.decoded(self.packets[node][index][place]).double()
            found.append(values + (before if code is None or code.map is None else code.map.apply(before)))
        return found

    def _known(self, node: int, index: int, of: Of) -> Tensor:
        return of(self.estimates[node][index]).double() - of(self.estimates[node][0]).double()

    def run(self, changes: Tensor, *, known: bool) -> Path:
        path, voices = Path(), self._voices(_weights, known)
        models = [torch.zeros(self.scene.dim, dtype=torch.float64) for _ in self.nodes]
        for index in self.rounds:
            path.models += models[: len(self.scene.neighbours)]
            path.before += models[: len(self.scene.neighbours)]
            models = [model + change for model, change in zip(models, changes[index], strict=True)]
            path.heard += self._told_of(index, models)
            models = voices.mixed(index, models)
        return path

    def _told_of(self, index: int, vectors: Sequence[Tensor]) -> list[Tensor]:
        return [mapped(self.map(index, node), x) for node, x in zip(self.scene.neighbours, vectors, strict=False)]

    def _voices(self, of: Of, known: bool) -> "Voices":
        return Voices(
            self, {node: [self._known(node, index + 1, of) * known for index in self.rounds] for node in self.packets}
        )

    def single(self) -> list[NeighbourChange]:
        """What single messages show if the codec is not linear: what it keeps of the change and of what was not said before."""
        codec, found = self.gossip.codec.codec(self.scene.dim, self.gossip.sketch), []
        for index, node in self.order:
            decoded = codec.decode([self.packets[node][index][-1]], self.scene.context(index, node).shared)
            weights = self.estimates[node][index].weights
            found.append(
                NeighbourChange(round=index, nodes=(node,), weights=weights, heard=Heard(decoded, None), direct=index == 0)
            )
        return found


class Voices:
    """What nodes told of a vector, in a replay. For nodes that are heard it is known; for others it follows from the vector."""

    def __init__(self, replay: GossipReplay, known: Mapping[int, list[Tensor]]) -> None:
        self.replay, self.known = replay, known
        zero = torch.zeros(replay.scene.dim, dtype=torch.float64)
        self.estimates = dict.fromkeys(replay.scene.unseen, zero)

    def mixed(self, index: int, vectors: Sequence[Tensor]) -> list[Tensor]:
        """The vectors after one mixing step. Links to nodes that are too far away count as if they pulled at nothing."""
        replay, own = self.replay, dict(zip(self.replay.nodes, vectors, strict=True))
        for node, estimate in self.estimates.items():
            self.estimates[node] = estimate + _kept(replay, index, node, own[node] - estimate)
        now = {node: known[index] for node, known in self.known.items()} | self.estimates
        found, scene = [], replay.scene
        for node, vector in own.items():
            pulls = [
                scene.weight(node, other) * (now[other] - now[node]) for other in scene.graph.neighbours(node) if other in now
            ]
            found.append(vector + replay.gossip.mixing_rate * torch.stack(pulls).sum(0))
        return found


class TrackingReplay(GossipReplay):
    """The second packet of a message shows A(u + Δ − Δ of the round before), and the first the model after a step along u."""

    def run(self, changes: Tensor, *, known: bool) -> Path:
        path, zero = Path(), torch.zeros(self.scene.dim, dtype=torch.float64)
        of_models, of_tracked = self._voices(_weights, known), self._voices(_tracked, known)
        models, tracked, shown, last = ([zero for _ in self.nodes] for _ in range(4))
        rate, count = self.tracking_rate, len(self.scene.neighbours)
        first: list[Tensor] = []
        for index in self.rounds:
            models = [model + rate * each for model, each in zip(models, tracked, strict=True)]
            path.models += models[:count]
            first += self._told_of(index, models)
            before = [each - old for each, old in zip(shown, last, strict=True)]  # the model's step went without this mixing
            path.before += before[:count]
            last = list(changes[index])
            tracked = [each + new for each, new in zip(before, last, strict=True)]
            path.heard += self._told_of(index, tracked)
            models, shown = of_models.mixed(index, models), of_tracked.mixed(index, tracked)
        path.heard += first
        return path

    @property
    def tracking_rate(self) -> float:
        return self.gossip.tracking_rate if isinstance(self.gossip, GossipTracking) else 0.0

    @property
    def heard(self) -> list[Tensor]:
        return self._shown(1, _tracked) + self._shown(0, _weights)


def _weights(replica: Replica) -> Tensor:
    return replica.weights


def _tracked(replica: Replica) -> Tensor:
    found: Tensor = replica.moments[TRACKED]
    return found


def _kept(replay: GossipReplay, index: int, node: int, x: Tensor) -> Tensor:
    """What the codec keeps of a vector: its estimate moves by that."""
    known, codec = replay.map(index, node), replay.gossip.codec.codec(replay.scene.dim, replay.gossip.sketch)
    return x if known is None else codec.shrinkages * mapped(RoundTrip.of(known), x)
