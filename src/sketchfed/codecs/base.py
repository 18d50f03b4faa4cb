"""What every codec is: one client's vector to a packet, and the packets of all clients to their mean."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet


@dataclass(frozen=True, kw_only=True)
class Codec(ABC):
    """n vectors of `dim` numbers become n packets, and n packets one mean.

    The seed is the round's, shared by all clients; `client` tells their own randomness apart. `decode` gets the packets in any
    order and trusts none of them: what does not fit raises `WireError`.
    """

    dim: int

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    unbiased: ClassVar[bool]
    """Whether the decoded mean is right in expectation."""

    @property
    @abstractmethod
    def additive(self) -> bool:
        """Whether the sum of packets decodes to the sum of vectors, as secure sums need."""

    @abstractmethod
    def encode(self, x: Tensor, seed: PublicSeed, client: int = 0) -> Packet:
        """The packet of one client's vector `(dim,)`."""

    @abstractmethod
    def decode(self, packets: Sequence[Packet], seed: PublicSeed) -> Tensor:
        """The mean `(dim,)` of the vectors behind the packets of a round."""

    @abstractmethod
    def check(self, packet: Packet, client: int) -> None:
        """Raise `WireError` unless `decode` can use this packet, which came from this client."""


def check_vector(x: Tensor, dim: int) -> None:
    if tuple(x.shape) != (dim,):
        raise InputError(f"the codec was made for vectors of {dim:,} numbers, got shape {tuple(x.shape)}.")


def check_some(packets: Sequence[Packet]) -> None:
    if not packets:
        raise InputError("a mean needs at least one packet, got none.")
