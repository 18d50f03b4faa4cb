"""A few coordinates at random."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchfed.codecs.base import Codec, check_correlation, sender
from sketchfed.codecs.rounding import Parts, check_width, from_packet, relative_variance, to_parts
from sketchfed.kernels import draws
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, expect_kind


@dataclass(frozen=True, kw_only=True)
class RandK(Codec):
    """`size` coordinates, drawn without replacement by each client for itself and multiplied by dim/size.

    Paper: Konečný & Richtárik 2018; Jiang et al. 2023, Eq. 1. Unbiased. The decoder draws the same coordinates from the seed
    and the client's number, so none is sent. Its error grows with dim/size: it suits many clients, whose errors average out.
    """

    size: int
    bits: int = 32

    name = "rand_k"
    summary = "coordinates drawn at random by each client, rebuilt from a seed"
    source = "Konečný & Richtárik 2018"
    unbiased = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_width(self.bits)

    def mse(self, total_square: float, correlation: float = 0.0) -> float | None:
        """(dim/size − 1)·Σ‖xᵢ‖²/n², whatever the correlation: clients draw independently (Jiang et al. 2023, Eq. 1).

        Rounding adds to it what depends on the largest number of each packet.
        """
        clients = self._planned()
        check_correlation(correlation, clients)
        return (self.dim / self.size - 1) * total_square / clients**2 if self.bits == 32 else None

    @property
    def shrinkage(self) -> float:
        """size/dim, less what rounding takes: 1 + ω = (dim/size)·(1 + its relative variance)."""
        return self.size / self.dim / (1 + relative_variance(size=self.size, bits=self.bits))

    def norm(self, packet: Packet, seed: PublicSeed) -> float:
        """√(dim/size) times that of what was sent: its square is right in expectation."""
        values = self._values(expect_kind(packet, self.name), seed)
        return float(values.double().norm()) * math.sqrt(self.dim / self.size)

    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        rows = rows_of(seed, client, dim=self.dim, size=self.size)
        return to_parts(x[rows], bits=self.bits, seed=seed.child("client", client))

    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        total = torch.zeros(self.dim)
        for packet in packets:
            rows = rows_of(seed, sender(packet), dim=self.dim, size=self.size)
            total[rows] += self._values(packet, seed)
        return total * (self.dim / (self.size * len(packets)))

    def _values(self, packet: Packet, seed: PublicSeed) -> Tensor:
        return from_packet(packet, size=self.size, bits=self.bits, seed=seed.child("client", sender(packet)))


def rows_of(seed: PublicSeed, client: int, *, dim: int, size: int) -> Tensor:
    """The coordinates that a client draws in the round of this seed, `(size,)`, ascending."""
    stream = seed.child("client", client).child("rows").stream
    return torch.from_numpy(draws.subset(stream, dim=dim, size=size)).long()
