"""A codec with a sketch for each block, and plain coordinates beside."""

from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from sketchfed import PublicSeed
from sketchfed.codecs import BlockedSketchCodec, make_codec
from sketchfed.codecs.rounding import relative_variance
from sketchfed.errors import InputError, WireError
from sketchfed.sketches import Block, make_sketch
from sketchfed.testing import CodecConformance
from sketchfed.testing.suite import only
from sketchfed.wire import Bits, pack

DIM, SEED = 96, PublicSeed(7)
LAYERS = (Block(((0, 32), (80, 96)), 24), Block(((32, 80),), 20))
BESIDE = (Block(((0, 32), (80, 96)), 24), Block(((32, 72),), 12), Block(((72, 80),), 8, plain=True))


def codec(bits: int = 32, blocks: tuple[Block, ...] = BESIDE, **options) -> BlockedSketchCodec:
    return BlockedSketchCodec(dim=DIM, size=44, blocks=blocks, bits=bits, **options)


class TestBlockedSketchCodec(CodecConformance):
    codecs: ClassVar = {
        "layers": codec(blocks=LAYERS),
        "layers, 4 bits": codec(4, blocks=LAYERS),
        "plain": codec(),
        "plain, 8 bits": codec(8),
        "plain, 1 bit, count": codec(1, family="count"),
    }

    def fixed_size(self, codec):
        """The size follows from the blocks."""
        return False

    @only(lambda suite, codec: False)
    def test_a_size_above_dim_is_refused(self, codec):
        """Every other size than that of the blocks is refused: see below."""

    @only(lambda suite, codec: False)
    def test_a_packet_of_another_dim_is_refused(self, codec):
        """The blocks would have to be others too: see below."""


def x() -> torch.Tensor:
    return torch.randn(DIM, generator=torch.Generator().manual_seed(1))


def test_unrounded_packets_are_as_long_as_those_of_one_sketch():
    one = make_codec("sketched", dim=DIM, size=44)
    assert len(pack(codec().encode(x(), SEED))) == len(pack(one.encode(x(), SEED)))


@pytest.mark.parametrize("bits", [16, 8, 4, 1])
def test_rounded_packets_have_a_step_for_each_block_and_plain_numbers_as_they_are(bits):
    packet = codec(bits).encode(x(), SEED, 3)
    values = packet.arrays["values"]
    assert isinstance(values, Bits)
    assert (values.bits, values.shape, packet.arrays["steps"].shape) == (bits, (36,), (2,))
    assert torch.equal(packet.arrays["plain"], x()[72:80])
    assert torch.equal(codec(bits).decode([packet], SEED)[72:80], x()[72:80])


@pytest.mark.parametrize("bits", [32, 8])
def test_each_block_is_sent_by_its_own_sketch(bits):
    sketch = make_sketch("srht", dim=40, size=12, seed=SEED.child("sketch").child("block", 1))
    found = codec(bits).decode([codec(bits).encode(x(), SEED)], SEED)[32:72]
    wanted = sketch.adjoint(sketch.apply(x()[32:72]))
    assert torch.allclose(found, wanted, atol=1e-6 if bits == 32 else 0.3)
    assert torch.equal(found, wanted) == (bits == 32)


def test_a_block_of_small_numbers_keeps_levels_of_its_own():
    """One step for both would be ten thousand times too coarse for the second block."""
    uneven = x()
    uneven[32:72] *= 1e-4
    found = codec(8).decode([codec(8).encode(uneven, SEED)], SEED)
    exact = codec().decode([codec().encode(uneven, SEED)], SEED)
    assert (found - exact)[32:72].norm() < 0.02 * exact[32:72].norm()


def test_error_feedback_shrinks_each_block_by_its_own_factor_and_plain_coordinates_not_at_all():
    known, shares = codec(8), [24 / 48, 12 / 40]
    wanted = [share / (1 + relative_variance(size=size, bits=8)) for share, size in zip(shares, (24, 12), strict=True)]
    for (start, stop), factor in zip([(0, 32), (80, 96), (32, 72), (72, 80)], [wanted[0], *wanted, 1.0], strict=True):
        assert torch.equal(known.shrinkages[start:stop], torch.full((stop - start,), factor))
    assert known.shrinkage == pytest.approx(min(wanted))
    assert known.share == shares[1]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("values", Bits(torch.zeros(35, dtype=torch.int64), bits=8)),
        ("values", Bits(torch.zeros(36, dtype=torch.int64), bits=4)),
        ("values", torch.zeros(36)),
        ("steps", torch.zeros(3)),
        ("steps", torch.zeros(2, dtype=torch.float64)),
        ("steps", torch.tensor([1.0, -1.0])),
        ("steps", torch.tensor([1.0, torch.inf])),
        ("steps", torch.tensor([torch.nan, 1.0])),
        ("steps", torch.tensor([1.0, 3e38])),
        ("plain", torch.zeros(7)),
        ("plain", torch.zeros(9)),
        ("plain", torch.zeros(8, dtype=torch.int32)),
        ("values", None),
        ("steps", None),
        ("plain", None),
    ],
)
def test_packets_with_a_wrong_array_are_refused(name, wrong):
    packet = codec(8).encode(x(), SEED, 3)
    arrays = {key: array for key, array in packet.arrays.items() if key != name} | ({} if wrong is None else {name: wrong})
    with pytest.raises(WireError, match=f"array '{name}'"):
        codec(8).check(replace(packet, arrays=arrays), 3, SEED)


def test_a_packet_of_another_dim_is_refused():
    other = make_codec("sketched", dim=97, size=44).encode(torch.randn(97), SEED, 3)
    with pytest.raises(WireError, match="was encoded from 97 numbers, but the codec was made for 96"):
        codec().check(other, 3, SEED)


def test_blocks_that_do_not_fit_the_codec_are_refused():
    with pytest.raises(InputError, match="hold each of 97 coordinates once"):
        replace(codec(), dim=97)
    with pytest.raises(InputError, match="must add up to 43"):
        replace(codec(), size=43)
