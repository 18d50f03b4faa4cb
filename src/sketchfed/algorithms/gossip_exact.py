"""Algorithm 1 of Song et al. 2023 with sums that are exact in any order, so that they can be made along a tree."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchfed.algorithms.cohorts import round_seed
from sketchfed.algorithms.iterative import Iterative
from sketchfed.algorithms.state import RoundContext, State
from sketchfed.codecs import SketchCodec
from sketchfed.codecs.base import count
from sketchfed.errors import InputError, WireError
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Bits, Packet, expect_kind

SUM = "sum"
"""The kind of packet that carries a sum of coefficients as integers, for however many nodes."""
_EACH_BITS = 40
"""The integers of one client have at most this many bits, so that sums over a million clients fit."""


@dataclass(frozen=True, kw_only=True)
class GossipExact(Iterative):
    """Iterative sketching in which the coefficients of sketches are integers, multiples of 2^-grid.

    Paper: Song et al. 2023, Sec. 4, "Decentralization": the sketches of a round can be added up on their way through a graph,
    in a number of steps proportional to its diameter. Sums of floating-point numbers depend on their order, and so on the
    graph. Sums of integers do not: with a server, or on any graph, the same clients give the same model, bit for bit. Rounding
    to a multiple of 2^-grid changes a coefficient by at most half of it, which is less than float32 loses above 2^(24 - grid).

    On a graph, sums travel up a spanning tree, and the update travels down. Without [graph], a server adds up.
    """

    grid: int = 24
    """Coefficients are rounded to multiples of 2^-grid."""

    name = "gossip_exact"
    summary = "algorithm 1 without a server: sums of sketches along a tree"
    source = "Song et al. 2023, Sec. 4"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.grid <= 40:
            raise InputError(
                f"algorithm.grid must be from 1 to 40, got {self.grid}. 24 keeps what float32 holds of numbers near 1."
            )
        if self.form != "unbiased":
            raise InputError(
                "algorithm 'gossip_exact' adds up sketches of changes alone, and form = 'projection' adds errors of earlier "
                "rounds. Use form = 'unbiased', or algorithm 'gossip'."
            )
        if self.sketch.bits != 32:
            raise InputError(
                f"sketch.bits = {self.sketch.bits}: algorithm 'gossip_exact' adds up coefficients as integers on one grid, and "
                "packets of few bits have levels of their own. Use bits = 32; down may have few bits."
            )
        if not self.combine.averages:
            raise InputError(
                f"algorithm.combine = '{self.combine.name}' looks at single updates, and algorithm 'gossip_exact' adds them "
                "up on their way. Remove it, or use algorithm 'iterative' with a server."
            )

    def integers(self, packet: Packet, dim: int, context: RoundContext) -> Tensor:
        """The coefficients of one client's packet as integers, `(size,)` of int64."""
        return self._rounded(self._codec(dim).read(packet, context.shared))

    def summed(self, total: Tensor, clients: int) -> Packet:
        """The packet of a sum of integers over this many clients, in as few bits as they need."""
        largest = int(total.abs().max()) if total.numel() else 0
        values = Bits(total, bits=largest.bit_length() + 1, signed=True)
        return Packet(kind=SUM, arrays={"values": values}, clients=clients)

    def total(self, packet: Packet, dim: int) -> Tensor:
        """The integers of a sum, `(size,)` of int64."""
        found = expect_kind(packet, SUM).arrays.get("values")
        size, most = self._codec(dim).size, _EACH_BITS + packet.clients.bit_length() + 1
        if not isinstance(found, Bits) or not found.signed or found.shape != (size,) or found.bits > most:
            raise WireError(
                f"a sum of sketches of {packet.clients:,} clients must hold {size:,} signed integers of at most {most} bits as "
                "'values'."
            )
        values = found.values
        largest = int(values.abs().max()) if size else 0
        if largest > packet.clients << _EACH_BITS:
            raise WireError(
                f"each client adds integers of at most 2^{_EACH_BITS}, and a sum over {packet.clients:,} of them holds "
                f"{largest:,}."
            )
        return values

    def server(self, state: State, packets: Sequence[Packet], seed: PublicSeed, *, noise: float = 0.0) -> tuple[State, Packet]:
        dim, shared = len(state.replica.weights), round_seed(seed, state.replica.round)
        return super().server(state, [self._exact(packets, self._codec(dim), shared)], seed, noise=noise)

    def _exact(self, packets: Sequence[Packet], codec: SketchCodec, shared: PublicSeed) -> Packet:
        """One packet of the exact sum, whatever the order of the packets and of the sums in them."""
        total = torch.zeros(codec.size, dtype=torch.int64)
        for packet in packets:
            total += self.total(packet, codec.dim) if packet.kind == SUM else self._rounded(codec.read(packet, shared))
        return codec.linear(shared).packet((total.double() * 2.0**-self.grid).float(), clients=count(packets))

    def _rounded(self, values: Tensor) -> Tensor:
        scaled = values.double() * 2.0**self.grid
        if not bool((scaled.abs() < 2.0**_EACH_BITS).all()):
            raise WireError(
                f"a sketch has coefficients above 2^{_EACH_BITS - self.grid}, which is more than integers on a grid of "
                f"2^-{self.grid} hold. If training has not diverged, set a smaller algorithm.grid."
            )
        return scaled.round().long()
