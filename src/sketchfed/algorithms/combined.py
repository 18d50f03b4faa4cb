"""Packets that are decoded one by one and combined by a rule, for algorithms whose packets cannot be added."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from sketchfed.algorithms.state import RoundContext
from sketchfed.wire import Packet, tensor_named

_COMBINED = "combined"


@runtime_checkable
class DecodesAlone(Protocol):
    """An algorithm that decodes single packets, although their sum does not decode. Combine rules other than the mean need it.

    The rule works on what `decoded_alone` returns, and `server` then gets one packet, from which `combined_values` reads the
    result. Algorithms with a linear code do not need any of this, because rules work on the encoded numbers.
    """

    def decoded_alone(self, packet: Packet, dim: int, context: RoundContext) -> Tensor:
        """Decode the packet of one client, `(size,)`. All packets of a round have the same size."""


@runtime_checkable
class TellsDecoded(Protocol):
    """An algorithm of which a client knows what the server decodes of its own vector. Corrections of local steps need it."""

    def decoded(self, x: Tensor, context: RoundContext) -> Tensor:
        """What the server decodes of one client's vector `(dim,)`."""


def combined_packet(values: Tensor, clients: int) -> Packet:
    """Make the packet that stands for all clients of a round from their combined vector `(size,)`."""
    return Packet(kind=_COMBINED, arrays={"values": values}, clients=clients)


def combined_values(packets: Sequence[Packet], size: int) -> Tensor | None:
    """The combined vector `(size,)`. None if no rule was applied, so that the packets are those of the clients."""
    if len(packets) != 1 or packets[0].kind != _COMBINED:
        return None
    return tensor_named(packets[0], "values", shape=(size,))
