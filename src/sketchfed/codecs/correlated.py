"""Stochastic rounding in which clients share dice, so that their errors cancel."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sketchfed.codecs.quantiser import Floats, Quantiser, check_bits, scales_named, to_bits, to_codes, to_numbers
from sketchfed.codecs.rotation import Rotation
from sketchfed.codecs.rounding import Parts
from sketchfed.errors import InputError
from sketchfed.kernels import draws, levels, philox
from sketchfed.seeds import PublicSeed, Words
from sketchfed.wire import Packet, bits_named


@dataclass(frozen=True, kw_only=True)
class Correlated(Quantiser):
    """Each number goes to the level below or above it by a uniform number Uᵢ = (πᵢ + γᵢ)/n, π a permutation of n clients.

    Paper: Suresh et al. 2022, for one bit and for k = 2^bits levels, which start at a random place, shared by all, for each
    coordinate. Unbiased, since every Uᵢ alone is uniform; and as there is one of them in each n-th of (0, 1), clients that
    hold nearly the same number round up just as often as they should: the error falls like 1/n² and not like 1/n.

    πᵢ of coordinate j is σ(i) + bⱼ mod n, with one permutation σ a round and a shared uniform bⱼ: (σ(i), σ(l)) is uniform over
    the pairs of different places, and moving both on by bⱼ leaves it so. Each pair of clients thus has the law of a
    uniformly random permutation in every coordinate, and the mean square error is a sum over pairs and coordinates.

    Client i has place i mod `clients`, so number the clients of a round from 0: two at one place round alike, which is
    unbiased but does not cancel. Departs from the paper: levels reach as far as each client's own largest number, not an
    interval known to all, and there is a random rotation first, the same for all (`rotate`), which keeps largest numbers
    small. `size` coordinates are drawn for all clients alike.
    """

    bits: int = 2
    rotate: bool = True

    name = "correlated"
    summary = "levels between the largest numbers, rounded with shared dice"
    source = "Suresh et al. 2022"
    unbiased = True
    personal = False
    shares_dice = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bits(self, self.bits, least=1, most=16)
        if self.clients is None:
            raise InputError(f"codec '{self.name}' shares dice between the clients of a round: say how many, clients=...")

    @property
    def shrinkage(self) -> float:
        """From a variance of at most (spacing·largest)² a number. Rotated, largest² is some 2·ln(2·size)/size of ‖x‖²."""
        largest = min(self.sent, 2 * math.log(2 * self.sent)) if self.rotate else self.sent
        energy = largest if self.bits == 1 else 1 + self._spacing**2 * largest
        return 1 / (self.gain * energy)

    @property
    def _spacing(self) -> float:
        """Between levels, as a share of the interval that they cover: the paper's β."""
        count = 1 << self.bits
        return 1.0 if self.bits == 1 else (count + 1) / (count * (count - 1))

    @property
    def _shift(self) -> float:
        """How far levels may start below the smallest number. Levels of one bit have no room for it."""
        return 0.0 if self.bits == 1 else 1 / (1 << self.bits)

    def _shared(self, seed: PublicSeed) -> "Shared":
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
class Shared:
    """What all clients of a round draw alike."""

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
        """The coordinates that are sent, or None for all."""
        return None if self.sent == self.dim else draws.subset(self.seed.child("rows").stream, dim=self.dim, size=self.sent)

    @cached_property
    def edges(self) -> list[int]:
        """Where pieces that have a largest number of their own begin among the numbers that are sent, and their count."""
        edges = [0, self.dim] if self.rotation is None else self.rotation.edges
        return edges if self.rows is None else np.searchsorted(self.rows, edges).tolist()

    @cached_property
    def order(self) -> npt.NDArray[np.int32]:
        """σ, the places of the clients."""
        return draws.permutation(self.seed.child("order").stream, dim=self.clients)

    @cached_property
    def ranks(self) -> Words:
        """What b of each number is drawn from."""
        return philox.words(self.seed.child("ranks").stream, self.sent)

    @cached_property
    def starts(self) -> Words:
        """What the first level of each number is drawn from."""
        return philox.words(self.seed.child("starts").stream, self.sent)

    @cached_property
    def offsets(self) -> Floats:
        """The same words as uniform numbers."""
        return ((self.starts[: self.sent] + 0.5) * 2.0**-32).astype(np.float32)

    def taken(self, x: Floats) -> Floats:
        """The numbers of a vector that are sent."""
        rotated = x if self.rotation is None else self.rotation.apply(x)
        return rotated if self.rows is None else rotated[self.rows]

    def restored(self, values: Floats) -> Floats:
        """The vector of which these numbers were taken, if all others were zero."""
        if self.rows is not None:
            spread = np.zeros(self.dim, np.float32)
            spread[self.rows] = values
            values = spread
        return values if self.rotation is None else self.rotation.inverse(values)


@lru_cache(maxsize=2)
def _shared(dim: int, sent: int, clients: int, rotate: bool, seed: PublicSeed) -> Shared:
    """All clients of a round use one object, so what it draws is drawn once."""
    return Shared(dim, sent, clients, rotate, seed)
