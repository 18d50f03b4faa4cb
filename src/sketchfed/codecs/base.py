"""The interface of a codec: it turns one client's vector into a packet, and the packets of all clients into their mean."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from sketchfed.codecs.linear import LinearCode, RoundTrip
from sketchfed.codecs.rounding import Parts
from sketchfed.errors import InputError, WireError
from sketchfed.kernels.finite import all_finite
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, expect_kind, number_named


@dataclass(frozen=True, kw_only=True)
class Codec(ABC):
    """A codec turns n vectors of `dim` numbers into n packets, and n packets into one mean.

    All clients of a round share the round's seed. The number `client` gives each of them its own randomness. `decode` accepts
    packets in any order and trusts none of them: a packet that does not fit raises `WireError`. A subclass implements
    `_encode`, `_decode` and `norm`.
    """

    dim: int
    clients: int | None = None
    """The planned number of clients per round. `mse` assumes this number."""
    norm_bound: float | None = None
    """Packets are refused if the norm of their vector exceeds this bound."""

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    unbiased: ClassVar[bool]
    """Whether the expectation of the decoded mean is the true mean."""
    personal: ClassVar[bool] = True
    """Whether the decoder must know which client sent a packet, so that it can repeat that client's random draws."""
    shares_dice: ClassVar[bool] = False
    """Whether clients share random draws so that their errors cancel. The clients of a round are then numbered from 0."""
    joint: ClassVar[bool] = False
    """Whether packets are decoded together, so that the decoded mean is not the mean of what single packets decode to."""
    spreads: ClassVar[bool] = False
    """Whether every coordinate contributes to some number that is sent. Then NaN and infinity show up in the packet."""

    anywhere: ClassVar[bool] = False
    """Whether `_encode` takes vectors on any device. If not, they are moved to the CPU."""

    def __post_init__(self) -> None:
        for name in ("dim", "size", "clients"):
            value = getattr(self, name, None)
            if value is not None and (type(value) is not int or value < 1):
                raise InputError(f"a codec's {name} must be a positive integer, got {value!r}.")
        size = getattr(self, "size", None)
        if size is not None and size > self.dim:
            raise InputError(
                f"size {size:,} exceeds dim {self.dim:,}: codec '{self.name}' sends no more numbers than a vector has. Use "
                f"size <= {self.dim:,}."
            )
        if self.norm_bound is not None and not 0 < self.norm_bound < float("inf"):
            raise InputError(f"a codec's norm_bound must be a positive number, got {self.norm_bound!r}.")

    def linear(self, seed: PublicSeed, client: int = 0) -> LinearCode | None:
        """The linear map from a client's vector to its packet in the round with this seed. None if there is no such map.

        A codec whose code is `shared` and `exact` can be used with noise and secure sums. Its packets are then made by
        `LinearCode.packet`, and `decode` must accept a packet that stands for several clients. A codec should also declare
        its map if it rounds the numbers, or if each client draws its own map: audits attack through this map.
        """
        return None

    def encode(self, x: Tensor, seed: PublicSeed, client: int = 0) -> Packet:
        """Encode one client's vector `(dim,)` as a packet. The vector may be on any device; the packet is on the CPU."""
        if tuple(x.shape) != (self.dim,):
            raise InputError(f"the codec was made for vectors of {self.dim:,} numbers, got shape {tuple(x.shape)}.")
        x = x.detach() if self.anywhere else x.detach().cpu()
        if not self.spreads and not all_finite(x.contiguous()):
            raise InputError("the vector holds NaN or infinity. Find where training diverged; a smaller step may help.")
        arrays, scalars = self._encode(x, seed, client)
        arrays = {name: array.cpu() if isinstance(array, Tensor) else array for name, array in arrays.items()}
        return Packet(kind=self.name, arrays=arrays, seed=seed, scalars={"client": client, "dim": self.dim, **scalars})

    def decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None = None) -> Tensor:
        """Estimate the mean `(dim,)` of the vectors in a round's packets. `knowledge` is what `learn` returned before."""
        self._check_round(packets, seed)
        return self._decode(packets, seed, knowledge)

    def learn(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None = None) -> Tensor | None:
        """Return what the server remembers of this round to decode the next round better. None if the codec needs nothing."""
        return None

    def check(self, packet: Packet, client: int, seed: PublicSeed | None = None) -> float:
        """Raise `WireError` unless `decode` can use this client's packet in the round with this seed. Return its `norm`."""
        self._check_packet(packet, seed)
        claimed = packet.scalars.get("client")
        if claimed != client and (self.personal or claimed is not None):
            raise WireError(f"client {client} sent a packet that names client {claimed!r}.")
        norm = self.norm(packet, seed or PublicSeed(0))
        if self.norm_bound is not None and not norm <= self.norm_bound:
            raise WireError(
                f"client {client} sent a vector of norm {norm:.3g}, above norm_bound = {self.norm_bound:.3g}. Such values "
                "would spoil the mean; raise the bound if they are intended."
            )
        return norm

    @abstractmethod
    def norm(self, packet: Packet, seed: PublicSeed) -> float:
        """Estimate the norm of the encoded vector from its packet. This also checks everything in the packet."""

    def mse(self, total_square: float, correlation: float = 0.0) -> float | None:
        """E‖decoded − mean‖² for `clients` vectors with Σ‖xᵢ‖² = total_square and R = Σ_{i≠l}⟨xᵢ, x_l⟩ / Σ‖xᵢ‖² = correlation.

        R lies between −1 and clients − 1. It is 0 for orthogonal vectors and clients − 1 for identical vectors (Jiang et al.
        2023, Eq. 7). None if there is no formula.
        """
        return None

    @property
    def shrinkage(self) -> float:
        """The factor 1/(1 + ω) for decoded vectors under error feedback. With it, the error is smaller than the vector.

        ω is the variance E‖decoded − x‖²/‖x‖² of an unbiased codec. Biased codecs are contractions already, so their factor is
        1 (Karimireddy et al. 2019; Horváth & Richtárik 2021, Sec. 2).
        """
        variance = replace(self, clients=1).mse(1.0) if self.unbiased else None
        return 1.0 if variance is None else 1 / (1 + variance)

    @property
    def shrinkages(self) -> float | Tensor:
        """What `shrinkage` is for every coordinate, `(dim,)`, if a codec treats them differently. Else `shrinkage`."""
        return self.shrinkage

    def bare(self, packet: Packet) -> Packet:
        """Remove what the envelope already contains: the seed, dim and, unless the decoder needs it, the sender."""
        return packet.without(seed=True, scalars=("dim",) if self.personal else ("dim", "client"))

    @abstractmethod
    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        """Return the arrays and scalars of a packet."""

    @abstractmethod
    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        """Return the mean. The packets have the right kind and round, and no two of them come from the same client."""

    def _check_packet(self, packet: Packet, seed: PublicSeed | None) -> None:
        expect_kind(packet, self.name)
        if seed is not None and packet.seed is not None and packet.seed != seed:
            raise WireError(
                f"a packet of client {packet.scalars.get('client')!r} was not encoded with the round's seed, so it belongs to "
                "another round or run. Decode the packets of one round, with the seed they were encoded with."
            )
        if packet.scalars.get("dim", self.dim) != self.dim:
            raise WireError(
                f"a packet of client {packet.scalars.get('client')!r} was encoded from {packet.scalars['dim']!r} numbers, but "
                f"the codec was made for {self.dim:,}. Use the same dim for both."
            )
        if packet.clients > 1 and not self._adds(seed):
            raise WireError(
                f"a packet stands for {packet.clients:,} clients, but packets of codec '{self.name}' cannot be added."
            )

    def _adds(self, seed: PublicSeed | None) -> bool:
        code = self.linear(PublicSeed(0) if seed is None else seed)
        return code is not None and code.additive

    def _through(self, exact: "Codec", seed: PublicSeed, client: int, *, rounded: bool) -> LinearCode:
        """The code of a codec in which each client makes its own choice of what to send, independently of the vector.

        `exact` is a codec that makes the same choice but does not round.
        """

        def through(x: Tensor) -> Tensor:
            rows = [exact.decode([exact.encode(row, seed, client)], seed) for row in x.reshape(-1, self.dim)]
            return torch.stack(rows).to(x).reshape(x.shape)

        def read(packet: Packet) -> Tensor:
            return self.decode([packet], seed)

        return LinearCode(
            kind=self.name,
            shape=(self.dim,),
            map=RoundTrip(through, 1 / exact.shrinkage - 1),
            shared=False,
            exact=not rounded,
            reader=read,
        )

    def _check_round(self, packets: Sequence[Packet], seed: PublicSeed) -> None:
        if not packets:
            raise InputError("a mean needs at least one packet, got none.")
        seen = set()
        for packet in packets:
            self._check_packet(packet, seed)
            if "client" not in packet.scalars and not self.personal:
                continue
            client = sender(packet)
            if client in seen:
                raise WireError(f"client {client} appears twice, but counts only once in a mean. Keep one of its packets.")
            seen.add(client)

    def _planned(self) -> int:
        if self.clients is None:
            raise InputError("the error depends on the number of clients. Make the codec with clients=...")
        return self.clients


def sender(packet: Packet) -> int:
    """The number of the client that a packet names as its sender."""
    return int(number_named(packet, "client", least=0, most=2**63))


def count(packets: Sequence[Packet]) -> int:
    """The total number of clients that the packets stand for."""
    return sum(packet.clients for packet in packets)


def check_correlation(correlation: float, clients: int) -> None:
    if not -1 <= correlation <= clients - 1:
        raise InputError(
            f"the correlation of {clients} vectors must be from −1 to {clients - 1} (identical vectors), got {correlation}. It "
            "is Σ⟨xᵢ, x_l⟩ over i ≠ l, divided by Σ‖xᵢ‖²."
        )
