"""Vectors and packets that codecs are tried with."""

from dataclasses import replace
from random import Random

import torch
from torch import Tensor

from sketchfed.codecs import Codec
from sketchfed.seeds import PublicSeed
from sketchfed.testing.suite import Suite
from sketchfed.wire import Bits, Packet, Scalar, pack, unpack

SEED = PublicSeed(7)
TRIALS = 80
"""Rounds of a statistical check. A bias of 0.9 standard deviations is then found with probability 0.99."""


class CodecSuite(Suite):
    """Checks over `codecs`, and what a codec's author can say about them."""

    argument, attribute, kind, example = "codec", "codecs", Codec, "[Mine(dim=256, size=32)]"

    def draws(self, codec: Codec) -> bool:
        """Whether a codec draws anything at random. Override it for a codec that does not."""
        return True

    def unbiased(self, codec: Codec) -> bool:
        """Whether the mean is right in expectation up to rounding of float32. Override it if a codec is only nearly so."""
        return codec.unbiased

    def most_trials(self, codec: Codec) -> int:
        """The most trials that show that a mean has the right length. Lower it, to 80 or more, if a codec decodes slowly."""
        return 5 * TRIALS

    def told(self, codec: Codec, correlation: float) -> Codec:
        """The codec, told what its decoder would estimate, to compare it with a formula. Override it if it estimates."""
        return codec

    def fixed_size(self, codec: Codec) -> bool:
        """Whether all packets carry `size` numbers. Override it for a codec that sends a random number of them."""
        return getattr(codec, "size", None) is not None


def vectors(codec: Codec, count: int = 5) -> Tensor:
    """Vectors of different lengths around a common one."""
    noise = torch.randn(count + 1, codec.dim, generator=torch.Generator().manual_seed(1))
    return noise[0] + torch.linspace(0.1, 2, count)[:, None] * noise[1:]


def encoded(codec: Codec, x: Tensor, seed: PublicSeed = SEED) -> list[Packet]:
    """The packets of a round, after they went over the wire and were checked there."""
    packets = [unpack(pack(codec.encode(row, seed, client))) for client, row in enumerate(x)]
    for client, packet in enumerate(packets):
        codec.check(packet, client, seed)
    return packets


def summed(packets: list[Packet]) -> Packet:
    """One packet for several clients, as a secure sum makes it: arrays are added, and nothing else is looked at."""
    arrays = {name: torch.stack([_tensor(packet, name) for packet in packets]).sum(0) for name in packets[0].arrays}
    return replace(packets[0], arrays=arrays, clients=len(packets))


def _tensor(packet: Packet, name: str) -> Tensor:
    array = packet.arrays[name]
    assert isinstance(array, Tensor), f"a linear code sends tensors, and '{name}' is none"
    return array


def contents(array: Tensor | Bits, random: Random) -> Tensor | Bits:
    """An array of the same form with any content."""
    if isinstance(array, Bits):
        most = 2**array.bits - 1
        generator = torch.Generator().manual_seed(random.getrandbits(32))
        drawn = torch.randint(0, most + 1, tuple(array.shape), generator=generator)
        return Bits(random.choice([drawn, torch.zeros_like(drawn), torch.full_like(drawn, most)]), bits=array.bits)
    limit = float(torch.finfo(array.dtype).max)
    value = random.choice([0.0, -1.0, 1e-30, 1e4, 2.0**80, 3e38, -3e38])
    return torch.full(array.shape, max(-limit, min(value, limit)), dtype=array.dtype)


def scalar(random: Random) -> Scalar:
    """Any number or text that the wire lets through."""
    some: list[Scalar] = [
        *(0, 0.0, 1.0, 1e-3, 1e30, 3e38, 1e300, -1.0, 5e-324, True, False, "", "1", "ü"),
        random.randint(-(2**63), 2**63 - 1),
        random.uniform(-1, 1) * 10.0 ** random.randint(-300, 300),
    ]
    return random.choice(some)
