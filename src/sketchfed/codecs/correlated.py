"""Stochastic rounding with randomness that the clients share, so that their errors cancel."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sketchfed.caches import cached
from sketchfed.codecs.quantiser import Floats, Quantiser, check_bits, scales_named, to_bits, to_codes, to_numbers
from sketchfed.codecs.rotation import Rotation
from sketchfed.codecs.rounding import Parts
from sketchfed.errors import InputError
from sketchfed.kernels import draws, levels, philox
from sketchfed.seeds import PublicSeed, Words
from sketchfed.wire import Packet, bits_named


@dataclass(frozen=True, kw_only=True)
class Correlated(Quantiser):
    """Rounds each number up or down with the uniform number Uᵢ = (πᵢ + γᵢ)/n, where π is a permutation of the n clients.

    Paper: Suresh et al. 2022, for one bit and for k = 2^bits levels. The levels of each coordinate start at a random place
    that all clients share. The codec is unbiased, because every Uᵢ is uniform. Exactly one Uᵢ lies in each n-th of (0, 1), so
    clients with nearly equal numbers round up exactly as often as they should: the error falls like 1/n² instead of 1/n.

    For coordinate j, πᵢ is σ(i) + bⱼ mod n, with one permutation σ per round and a shared uniform bⱼ. The pair (σ(i), σ(l)) is
    uniform over all pairs of different places, and it stays so when bⱼ is added to both. In every coordinate, each pair of
    clients therefore has the law of a uniformly random permutation, and the mean square error is a sum over pairs and
    coordinates.

    Client i has place i mod `clients`, so number the clients of a round from 0. Two clients at the same place round in the
    same way. This is unbiased, but their errors do not cancel. Departure from the paper: the levels cover the range up to each
    client's own largest number, not an interval known to all. With `rotate`, all clients first apply the same random
    rotation, which keeps the largest numbers small. All clients send the same randomly drawn `size` coordinates.
    """

    bits: int = 2
    rotate: bool = True

    name = "correlated"
    summary = "levels between the largest numbers, rounded with shared dice"
    source = "Suresh et al. 2022"
    unbiased = True
    personal = False
    shares_dice = True
    joint = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bits(self, self.bits, least=1, most=16)
        if self.clients is None:
            raise InputError(
                f"codec '{self.name}' shares random draws between the clients of a round, so it needs their number. Make the "
                "codec with clients=..."
            )

    @property
    def shrinkage(self) -> float:
        """1/(1 + ω) from a variance of at most (spacing·largest)² per number.

        After rotation, largest² is about 2·ln(2·size)/size of ‖x‖².
        """
        largest = min(self.sent, 2 * math.log(2 * self.sent)) if self.rotate else self.sent
        energy = largest if self.bits == 1 else 1 + self._spacing**2 * largest
        return 1 / (self.gain * energy)

    @property
    def _spacing(self) -> float:
        """The distance between levels as a share of the interval that they cover: the paper's β."""
        count = 1 << self.bits
        return 1.0 if self.bits == 1 else (count + 1) / (count * (count - 1))

    @property
    def _shift(self) -> float:
        """How far below the smallest number the levels may start. With one bit, the levels leave no room for a shift."""
        return 0.0 if self.bits == 1 else 1 / (1 << self.bits)

    def _shared(self, seed: PublicSeed) -> "SharedDice":
        return _shared(self.dim, self.sent, self._planned(), self.rotate, seed)

    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        shared, numbers = self._shared(seed), to_numbers(x)
        drawn = shared.taken(numbers)
        words = philox.words(seed.child("client", client).child("rounding").stream, self.sent)
        codes, place = to_codes(self.sent, self.bits), int(shared.order[client % shared.clients])
        reaches = np.zeros(len(shared.edges) - 1, np.float32)
        for number, (a, b) in enumerate(pairwise(shared.edges)):
            reaches[number] = np.abs(drawn[a:b]).max(initial=0)
            levels.correlated(
                drawn[a:b],
                reaches[number],
                self._spacing,
                self._shift,
                shared.starts[a:b],
                shared.ranks[a:b],
                words[a:b],
                shared.clients,
                place,
                (1 << self.bits) - 1,
                codes[a:b],
            )
        return Parts({"reaches": torch.from_numpy(reaches), "values": to_bits(codes, self.bits)}, {})

    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        shared, total = self._shared(seed), np.zeros(self.sent, np.float32)
        for packet in packets:
            total += self._read(packet, seed)
        return torch.from_numpy(shared.restored(total * np.float32(self.gain / len(packets))))

    def _read(self, packet: Packet, seed: PublicSeed) -> Floats:
        shared = self._shared(seed)
        reaches = np.repeat(scales_named(packet, "reaches", len(shared.edges) - 1), np.diff(shared.edges))
        codes = bits_named(packet, "values", shape=(self.sent,), bits=self.bits).numpy()
        heights = np.float32(2 * self._spacing) * codes.astype(np.float32)
        heights -= 1
        if self._shift:
            heights -= np.float32(2 * self._shift) * shared.offsets
        return reaches * heights


@dataclass(frozen=True)
class SharedDice:
    """The random draws that all clients of a round share."""

    dim: int
    sent: int
    clients: int
    rotate: bool
    seed: PublicSeed

    @cached_property
    def rotation(self) -> Rotation | None:
        return Rotation(dim=self.dim, seed=self.seed.child("rotation")) if self.rotate else None

    @cached_property
    def rows(self) -> npt.NDArray[np.int32] | None:
        """The coordinates that are sent. None means all of them."""
        return None if self.sent == self.dim else draws.subset(self.seed.child("rows").stream, dim=self.dim, size=self.sent)

    @cached_property
    def edges(self) -> list[int]:
        """Where each piece begins among the numbers that are sent, and their count. Each piece has its own largest number."""
        edges = [0, self.dim] if self.rotation is None else self.rotation.edges
        return edges if self.rows is None else np.searchsorted(self.rows, edges).tolist()

    @cached_property
    def order(self) -> npt.NDArray[np.int32]:
        """The permutation σ: the place of each client."""
        return draws.permutation(self.seed.child("order").stream, dim=self.clients)

    @cached_property
    def ranks(self) -> Words:
        """The random words from which each number's b is drawn."""
        return philox.words(self.seed.child("ranks").stream, self.sent)

    @cached_property
    def starts(self) -> Words:
        """The random words from which each number's first level is drawn."""
        return philox.words(self.seed.child("starts").stream, self.sent)

    @cached_property
    def offsets(self) -> Floats:
        """`starts` as uniform numbers on (0, 1)."""
        return ((self.starts[: self.sent] + 0.5) * 2.0**-32).astype(np.float32)

    def taken(self, x: Floats) -> Floats:
        """Rotate a vector, if required, and return the numbers that are sent."""
        rotated = x if self.rotation is None else self.rotation.apply(x)
        return rotated if self.rows is None else rotated[self.rows]

    def restored(self, values: Floats) -> Floats:
        """Undo `taken`: the vector with these numbers, if all other numbers were zero."""
        if self.rows is not None:
            spread = np.zeros(self.dim, np.float32)
            spread[self.rows] = values
            values = spread
        return values if self.rotation is None else self.rotation.inverse(values)


@cached(maxsize=2)
def _shared(dim: int, sent: int, clients: int, rotate: bool, seed: PublicSeed) -> SharedDice:
    """All clients of a round use the same object, so its random numbers are drawn only once."""
    return SharedDice(dim, sent, clients, rotate, seed)
