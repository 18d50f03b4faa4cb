"""The vector as it is."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchfed.codecs.base import Codec, check_some, check_vector
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, expect_kind, tensor_named


@dataclass(frozen=True, kw_only=True)
class Dense(Codec):
    """All coordinates in float32: what every other codec is compared with."""

    name = "dense"
    summary = "all coordinates in float32"
    source = "—"
    additive = True
    unbiased = True

    def encode(self, x: Tensor, seed: PublicSeed, client: int = 0) -> Packet:
        check_vector(x, self.dim)
        return Packet(kind="dense", arrays={"values": x})

    def decode(self, packets: Sequence[Packet], seed: PublicSeed) -> Tensor:
        check_some(packets)
        total = torch.zeros(self.dim)
        for packet in packets:
            total += self._values(packet)
        return total / sum(packet.clients for packet in packets)

    def check(self, packet: Packet, client: int) -> None:
        self._values(packet)

    def _values(self, packet: Packet) -> Tensor:
        return tensor_named(expect_kind(packet, "dense"), "values", shape=(self.dim,))
