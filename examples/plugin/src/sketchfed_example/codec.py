"""A codec that folds a vector onto itself."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from sketchfed.codecs import Codec, LinearCode, Parts, check_correlation
from sketchfed.draws import uniform
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet


@dataclass(frozen=True, eq=False)
class Folding:
    """Number j is the sum of the coordinates j, j + size, j + 2·size and so on, each with a random sign."""

    signs: Tensor
    size: int

    def apply(self, x: Tensor) -> Tensor:
        """Fold vectors: `(..., dim)` to `(..., size)`."""
        layers = -(-len(self.signs) // self.size)
        padded = functional.pad(x * self.signs, (0, layers * self.size - len(self.signs)))
        return padded.reshape(*x.shape[:-1], layers, self.size).sum(-2)

    def adjoint(self, y: Tensor) -> Tensor:
        """Unfold them again: `(..., size)` to `(..., dim)`."""
        layers = -(-len(self.signs) // self.size)
        return torch.cat([y] * layers, dim=-1)[..., : len(self.signs)] * self.signs


@dataclass(frozen=True, kw_only=True)
class Fold(Codec):
    """Sums of every size-th coordinate, with signs that all parties draw from the round's seed.

    Unbiased: the signs of other coordinates average out. The mean of folded vectors is the folded mean, so the packets of
    all clients can be added, and the codec runs under noise and secure sums.
    """

    size: int

    name = "fold"
    summary = "sums of every size-th coordinate, with random signs"
    source = "the tutorial"
    unbiased = True
    personal = False  # all clients of a round draw the same signs
    spreads = True  # every coordinate reaches some number that is sent

    def linear(self, seed: PublicSeed, client: int = 0) -> LinearCode:
        signs = uniform(seed.child("fold"), (self.dim,), bound=1.0).sign()
        return LinearCode(kind=self.name, shape=(self.size,), map=Folding(signs, self.size))

    def mse(self, total_square: float, correlation: float = 0.0) -> float | None:
        """Each coordinate is disturbed by the others in its sum. Exact if `size` divides `dim`, else an upper bound."""
        clients = self._planned()
        check_correlation(correlation, clients)
        mean_square = total_square * (1 + correlation) / clients**2
        return (-(-self.dim // self.size) - 1) * mean_square

    def norm(self, packet: Packet, seed: PublicSeed) -> float:
        return float(self.linear(seed).values(packet).norm())

    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        return Parts({"values": self.linear(seed).apply(x.float())}, {})

    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        code = self.linear(seed)
        total = torch.stack([code.values(packet) for packet in packets]).sum(0)
        return code.adjoint(total / sum(packet.clients for packet in packets))
