"""What every codec is: one client's vector to a packet, and the packets of all clients to their mean."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from sketchfed.codecs.rounding import Parts
from sketchfed.errors import InputError, WireError
from sketchfed.kernels.finite import all_finite
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, expect_kind, number_named


@dataclass(frozen=True, kw_only=True)
class Codec(ABC):
    """n vectors of `dim` numbers become n packets, and n packets one mean.

    The seed is the round's, shared by all clients; `client` tells their own randomness apart. `decode` gets the packets in any
    order and trusts none of them: what does not fit raises `WireError`. A codec implements `_encode`, `_decode` and `norm`.
    """

    dim: int
    clients: int | None = None
    """How many clients a round is planned with; `mse` is for so many."""
    norm_bound: float | None = None
    """A packet whose vector is longer than this is refused."""

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    unbiased: ClassVar[bool]
    """Whether the decoded mean is right in expectation."""
    personal: ClassVar[bool] = True
    """Whether the decoder must know who sent a packet, to draw what that client drew."""
    shares_dice: ClassVar[bool] = False
    """Whether clients' errors cancel if they are numbered by their place in the round, from 0."""
    spreads: ClassVar[bool] = False
    """Whether every coordinate reaches some number that is sent, so that what is not finite shows there."""

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

    @property
    def additive(self) -> bool:
        """Whether the sum of packets decodes to the sum of vectors, as secure sums need."""
        return False

    def encode(self, x: Tensor, seed: PublicSeed, client: int = 0) -> Packet:
        """The packet of one client's vector `(dim,)`."""
        if tuple(x.shape) != (self.dim,):
            raise InputError(f"the codec was made for vectors of {self.dim:,} numbers, got shape {tuple(x.shape)}.")
        x = x.detach()
        if not self.spreads and not all_finite(x.contiguous()):
            raise InputError("the vector holds NaN or infinity. Find where training diverged (a smaller step?).")
        arrays, scalars = self._encode(x, seed, client)
        return Packet(kind=self.name, arrays=arrays, seed=seed, scalars={"client": client, "dim": self.dim, **scalars})

    def decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None = None) -> Tensor:
        """The mean `(dim,)` of the vectors behind the packets of a round; `knowledge` is what `learn` kept of earlier ones."""
        self._check_round(packets, seed)
        return self._decode(packets, seed, knowledge)

    def learn(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None = None) -> Tensor | None:
        """What the server keeps of a round to decode the next one better, if this codec has a use for it."""
        return None

    def check(self, packet: Packet, client: int, seed: PublicSeed | None = None) -> float:
        """Raise `WireError` unless `decode` can use this packet of this client in the round of this seed; else its `norm`."""
        self._check_packet(packet, seed)
        claimed = packet.scalars.get("client")
        if claimed != client and (self.personal or claimed is not None):
            raise WireError(f"client {client} sent a packet that names client {claimed!r}.")
        norm = self.norm(packet, seed or PublicSeed(0))
        if self.norm_bound is not None and not norm <= self.norm_bound:
            raise WireError(
                f"client {client} sent a vector of norm {norm:.3g}, above norm_bound = {self.norm_bound:.3g}. Wild values "
                "would spoil the mean of all; raise the bound if they are meant."
            )
        return norm

    @abstractmethod
    def norm(self, packet: Packet, seed: PublicSeed) -> float:
        """The norm of the vector behind a packet as far as the packet tells; everything in it that can be wrong is checked."""

    def mse(self, total_square: float, correlation: float = 0.0) -> float | None:
        """E‖decoded − mean‖² for `clients` vectors with Σ‖xᵢ‖² = total_square and R = Σ_{i≠l}⟨xᵢ, x_l⟩ / Σ‖xᵢ‖² = correlation.

        R goes from −1 over 0 (orthogonal) to clients − 1 (identical): Jiang et al. 2023, Eq. 7. None where no formula exists.
        """
        return None

    @property
    def shrinkage(self) -> float:
        """What a decoded vector is multiplied with under error feedback, so that less is lost than was sent: 1/(1 + ω).

        ω is the variance E‖decoded − x‖²/‖x‖² of an unbiased codec; biased ones are contractions already (Karimireddy et al.
        2019; Horváth & Richtárik 2021, Sec. 2).
        """
        variance = replace(self, clients=1).mse(1.0) if self.unbiased else None
        return 1.0 if variance is None else 1 / (1 + variance)

    def bare(self, packet: Packet) -> Packet:
        """The packet without what an envelope says already: seed and dim, and its sender unless the decoder must know."""
        return packet.without(seed=True, scalars=("dim",) if self.personal else ("dim", "client"))

    @abstractmethod
    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        """The arrays and scalars of a packet."""

    @abstractmethod
    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        """The mean from packets of the right kind and round, each from another client."""

    def _check_packet(self, packet: Packet, seed: PublicSeed | None) -> None:
        expect_kind(packet, self.name)
        if seed is not None and packet.seed is not None and packet.seed != seed:
            raise WireError(
                f"a packet of client {packet.scalars.get('client')!r} was encoded with another seed than the round's: it is of "
                "another round or run. Decode the packets of one round, with the seed they were encoded with."
            )
        if packet.scalars.get("dim", self.dim) != self.dim:
            raise WireError(
                f"a packet of client {packet.scalars.get('client')!r} was encoded from {packet.scalars['dim']!r} numbers, the "
                f"codec was made for {self.dim:,}. Make both with the same dim."
            )
        if packet.clients > 1 and not self.additive:
            raise WireError(
                f"a packet stands for {packet.clients:,} clients, but packets of codec '{self.name}' cannot be added."
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
                raise WireError(f"client {client} is there twice; a client counts once in a mean. Keep one of its packets.")
            seen.add(client)

    def _planned(self) -> int:
        if self.clients is None:
            raise InputError("the error depends on how many clients there are. Make the codec with clients=..., then ask.")
        return self.clients


def sender(packet: Packet) -> int:
    """The client that a packet names."""
    return int(number_named(packet, "client", least=0, most=2**63))


def count(packets: Sequence[Packet]) -> int:
    """How many clients the packets stand for."""
    return sum(packet.clients for packet in packets)


def check_correlation(correlation: float, clients: int) -> None:
    if not -1 <= correlation <= clients - 1:
        raise InputError(
            f"the correlation of {clients} vectors lies from −1 to {clients - 1} (identical), got {correlation}: it is "
            "Σ⟨xᵢ, x_l⟩ over i ≠ l, divided by Σ‖xᵢ‖²."
        )
