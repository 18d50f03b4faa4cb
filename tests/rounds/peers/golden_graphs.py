"""What nodes say in two rounds, as digests that do not depend on the processor: training is replaced by fixed numbers."""

from hashlib import sha256

import torch
from graphs_of_tiny import KINDS, network

CASES = list(KINDS)


def digests(kind: str) -> list[str]:
    """A digest of the messages of each step in two rounds on a path of three nodes."""
    server = network(kind, {"name": "path"}, nodes=3)
    first = server.group.weights(0)
    numbers = (torch.arange(len(first)) * 7919 % 129 - 64).float() / 1024  # float32 adds these without rounding
    for peer in server.group.peers.values():
        peer.participant.trainer.train = lambda weights, data, work, turn: weights + numbers * (turn.client + 1)
        _begin_at(peer, torch.zeros_like(first))
    server.group.recording, found = True, []
    for index in range(2):
        for step, messages in sorted(server.group.round(index).said.items()):
            said = sha256()
            for (sender, receiver), message in messages:
                said.update(f"{sender} {receiver} {len(message)};".encode() + message)
            found.append(f"{index}.{step} {len(messages)} {said.hexdigest()[:24]}")
    return found


def _begin_at(peer, weights) -> None:
    """Let a node begin at other weights: torch draws the first ones, and other versions draw others."""
    for holder in (getattr(peer, "voice", None), getattr(peer, "_updates", None)):
        if holder is not None:
            holder.estimate.weights.zero_()
    if hasattr(peer, "_weights"):
        peer._weights = weights
