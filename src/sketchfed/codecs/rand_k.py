"""A random sample of the coordinates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sketchfed.codecs.base import Codec, check_correlation, sender
from sketchfed.codecs.linear import LinearCode
from sketchfed.codecs.rounding import Parts, check_width, from_packet, relative_variance, to_parts
from sketchfed.kernels import draws
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, expect_kind


@dataclass(frozen=True, kw_only=True)
class RandK(Codec):
    """Each client sends its own `size` coordinates, drawn without replacement. The decoder multiplies them by dim/size.

    Paper: Konečný & Richtárik 2018; Jiang et al. 2023, Eq. 1. Unbiased. The decoder draws the same coordinates from the seed
    and the client's number, so packets do not name them. The error grows with dim/size, so Rand-k suits rounds with many
    clients, whose errors average out.
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
        """(dim/size − 1)·Σ‖xᵢ‖²/n² for every correlation, because clients draw independently (Jiang et al. 2023, Eq. 1).

        None with rounding, which adds an error that depends on the largest number of each packet.
        """
        clients = self._planned()
        check_correlation(correlation, clients)
        return (self.dim / self.size - 1) * total_square / clients**2 if self.bits == 32 else None

    def linear(self, seed: PublicSeed, client: int = 0) -> LinearCode:
        """The selection of the coordinates that this client draws."""
        return self._through(replace(self, bits=32), seed, client, rounded=self.bits < 32)

    @property
    def shrinkage(self) -> float:
        """1/(1 + ω) with 1 + ω = (dim/size)·(1 + the relative variance of rounding). It is size/dim without rounding."""
        return self.size / self.dim / (1 + relative_variance(size=self.size, bits=self.bits))

    def norm(self, packet: Packet, seed: PublicSeed) -> float:
        """√(dim/size) times the norm of the sent numbers. The expectation of its square is ‖x‖²."""
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
    """The coordinates that a client draws in the round with this seed, `(size,)`, in ascending order."""
    stream = seed.child("client", client).child("rows").stream
    return torch.from_numpy(draws.subset(stream, dim=dim, size=size)).long()
