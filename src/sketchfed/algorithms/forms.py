"""The form in which clients get the model in a round: the packet, the replica that they hold, and what they train."""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from sketchfed.algorithms.replicas import from_tensors
from sketchfed.algorithms.state import Replica
from sketchfed.nn.model_sketch import ModelSketch
from sketchfed.training import Trainer
from sketchfed.wire import Packet, expect_kind, number_named, tensor_named


class Form(Protocol):
    """The model as clients get it in one round."""

    @property
    def sketch(self) -> ModelSketch | None:
        """The sketches that clients see instead of the weights. None if they see the weights."""

    @property
    def trains(self) -> bool:
        """Whether the round trains the weights. A round can ask for something else, such as the mean input."""

    def packet(self, replica: Replica) -> Packet:
        """Everything that a client needs to take part in the round."""

    def replica(self, packet: Packet, dim: int) -> Replica:
        """The replica that a client makes from such a packet, for a model of `dim` parameters. The packet is not trusted."""

    def trainer(self, trainer: Trainer) -> Trainer:
        """What a client trains, made from the trainer of the whole model."""


@dataclass(frozen=True)
class WholeModel:
    """The weights, and the names of other tensors of the replica that clients need, such as `velocity` or `moments.mean`."""

    extras: tuple[str, ...] = ()

    sketch = None
    trains = True

    def packet(self, replica: Replica) -> Packet:
        held = replica.to_tensors()
        arrays = {name: held[name] for name in ("weights", *self.extras)}
        return Packet(kind="snapshot", arrays=arrays, scalars={"round": replica.round})

    def replica(self, packet: Packet, dim: int) -> Replica:
        expect_kind(packet, "snapshot")
        tensors = {name: tensor_named(packet, name, shape=(dim,)) for name in ("weights", *self.extras)}
        return from_tensors(tensors, round=round_of(packet))

    def trainer(self, trainer: Trainer) -> Trainer:
        return trainer


def seen(form: Form, replica: Replica) -> Replica:
    """What a client holds that is sent the whole model. The server's replica may hold more, such as its own momentum.

    If it holds no more, this is the same object, so that the server and the clients of its process share what follows.
    """
    found = form.replica(form.packet(replica), len(replica.weights))
    shown, held = found.to_tensors(), replica.to_tensors()
    return replica if shown.keys() == held.keys() and all(shown[name] is held[name] for name in held) else found


def unified(found: Replica, held: Replica) -> Replica:
    """A replica that somebody in this process built from a packet, in the memory of one that is held here anyway.

    The result is the very object that is held, if both hold the same numbers, bit for bit. If it holds more, such as the
    server's own momentum, only the weights share their memory.
    """
    if found is held or found.round != held.round or not _same_bits(found.weights, held.weights):
        return found
    own, theirs = found.to_tensors(), held.to_tensors()
    if own.keys() == theirs.keys() and all(name == "weights" or _same_bits(own[name], theirs[name]) for name in own):
        return held
    return replace(found, weights=held.weights)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two contiguous tensors hold the same bytes. (To `torch.equal`, 0 and -0 are the same number.)"""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return one is other or torch.equal(_bytes_of(one), _bytes_of(other))


def _bytes_of(t: Tensor) -> Tensor:
    flat = t.reshape(-1)
    flat = flat.new_empty(len(flat)).copy_(flat) if len(flat) < 2 else flat  # a single number may have any stride
    return flat.view(torch.uint8)


def round_of(packet: Packet) -> int:
    """The round that a packet names."""
    return int(number_named(packet, "round", least=0, most=2**63))
