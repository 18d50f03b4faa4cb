"""The node of algorithm 'gossip_tracking': it says where its model is, and what it takes for everybody's mean change."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from sketchfed.algorithms import Change, Replica
from sketchfed.algorithms.gossip_tracking import TRACKED, GossipTracking
from sketchfed.errors import UnresolvedError
from sketchfed.graphs import Links
from sketchfed.rounds.participant import Participant
from sketchfed.rounds.peers.gossip import GossipPeer, wanted
from sketchfed.rounds.peers.saved import vector
from sketchfed.training import ClientMemory, Examples
from sketchfed.wire import pack


class TrackingPeer(GossipPeer):
    """Holds estimates of models and of tracked changes. Its own are `estimate + owed`, and `tracked + owed_tracked`."""

    extras: ClassVar[tuple[str, ...]] = (f"moments.{TRACKED}",)

    def __init__(self, node: int, participant: Participant, start: Replica, root: int = 0) -> None:
        super().__init__(node, participant, start, root)
        self.owed_tracked = torch.zeros_like(self.owed)
        """u − û: what the node has not said yet of the change that it tracks."""
        self._last = torch.zeros_like(self.owed)
        """Its own change in the round before."""
        self._towards = torch.zeros_like(self.owed)
        """The next step of u towards the neighbours. The model's next step still goes along u without it, as in the paper."""

    @classmethod
    def first(cls, start: Replica) -> Replica:
        return Replica(round=0, weights=start.weights, moments={TRACKED: torch.zeros_like(start.weights)})

    @property
    def tracking(self) -> GossipTracking:
        if not isinstance(self.algorithm, GossipTracking):
            raise UnresolvedError(f"algorithm '{self.algorithm.name}' does not track changes.")
        return self.algorithm

    def work(self, index: int, examples: Examples, links: Links) -> None:
        before, context = self.voice.estimate, self.context(index)
        tracked = _tracked(before)
        step = self.owed + self.tracking.tracking_rate * (tracked + self.owed_tracked)
        model, _ = self.algorithm.client(Change(step), None, context)
        replica = Replica(round=index, weights=before.weights + step)
        owed = self.owed_tracked + self._towards - self._last
        said, after = self.participant.answer(replica, examples, ClientMemory(owed=owed, kept=self.kept), self.node)
        self._say(pack(model.stamped(round=index)) + said, index)
        estimate = self.voice.estimate
        self.kept, self._last = after.kept, wanted(after) - owed
        self.owed = replica.weights - estimate.weights
        self.owed_tracked = tracked + wanted(after) - _tracked(estimate)
        self._listen(index)

    def close(self, links: Links) -> None:
        super().close(links)
        self._towards = self.gossip.mixing_rate * self.pulled(links, _tracked)

    def tensors(self, index: int) -> dict[str, Tensor]:
        return {**super().tensors(index), "owed_tracked": self.owed_tracked, "last": self._last, "towards": self._towards}

    def restore(self, tensors: Mapping[str, Tensor], estimates: Mapping[int, Replica]) -> None:
        super().restore(tensors, estimates)
        dim = len(self.owed)
        self.owed_tracked, self._last, self._towards = (
            vector(tensors, name, dim) for name in ("owed_tracked", "last", "towards")
        )


def _tracked(estimate: Replica) -> Tensor:
    return estimate.moments[TRACKED]
