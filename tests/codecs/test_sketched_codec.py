"""What is particular to the codec that sends sketches."""

from dataclasses import replace

import pytest
import torch

from sketchfed import PublicSeed
from sketchfed.codecs import SketchCodec
from sketchfed.errors import InputError, UnknownNameError, WireError
from sketchfed.wire import pack

SEED = PublicSeed(7)


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_the_mean_of_sketches_is_the_sketch_of_the_mean():
    codec, x = SketchCodec(dim=100, size=30), normal(6, 100)
    packets = [codec.encode(row, SEED, client) for client, row in enumerate(x)]
    assert torch.allclose(codec.mean(packets, SEED), codec.sketch(SEED).apply(x.mean(0)), atol=1e-5)
    assert torch.equal(codec.decode(packets, SEED), codec.sketch(SEED).adjoint(codec.mean(packets, SEED)))


def test_all_clients_of_a_round_use_one_sketch_and_another_round_has_another():
    codec = SketchCodec(dim=100, size=30)
    assert codec.sketch(SEED) is SketchCodec(dim=100, size=30, bits=4).sketch(SEED)
    assert codec.sketch(SEED) != codec.sketch(SEED.child("round", 1))


@pytest.mark.parametrize("bits", [32, 16, 8, 4, 3, 2, 1])
def test_a_packet_takes_its_bits_and_less_than_a_hundred_bytes_more(bits):
    codec = SketchCodec(dim=10_000, size=1_000, bits=bits)
    assert 0 < len(pack(codec.bare(codec.encode(normal(10_000), SEED, 12)))) - 1_000 * bits // 8 < 100


def test_clients_round_with_dithers_of_their_own():
    codec, x = SketchCodec(dim=100, size=30, bits=2), normal(100)
    one, other = codec.encode(x, SEED, 0), codec.encode(x, SEED, 1)
    assert one.scalars["step"] == other.scalars["step"]
    assert one.arrays["values"] != other.arrays["values"]


def test_a_rounded_packet_must_name_the_client_it_came_from():
    codec = SketchCodec(dim=100, size=30, bits=4)
    packet = codec.encode(normal(100), SEED, 3)
    codec.check(packet, 3)
    with pytest.raises(WireError, match="client 4 sent a packet that names client 3"):
        codec.check(packet, 4)
    for other in (-1, "3", True, 2.0**63 * 4):
        with pytest.raises(WireError):
            codec.check(replace(packet, scalars={**packet.scalars, "client": other}), 3)
        with pytest.raises(WireError):
            codec.decode([replace(packet, scalars={**packet.scalars, "client": other})], SEED)
    nameless = replace(packet, scalars={"step": packet.scalars["step"]})
    with pytest.raises(WireError, match="names client None"):
        codec.check(nameless, 3)
    with pytest.raises(WireError, match=r"number 'client' .* it is missing"):
        codec.decode([nameless], SEED)


def test_few_bits_cost_little_where_coefficients_are_alike():
    """Dithered rounding adds step²/12 to each coefficient: at four bits well below a tenth of their variance."""
    x = normal(20, 4_096)
    exact, rounded = SketchCodec(dim=4_096, size=400), SketchCodec(dim=4_096, size=400, bits=4)
    for client, row in enumerate(x):
        wanted = exact.read(exact.encode(row, SEED, client), SEED)
        got = rounded.read(rounded.encode(row, SEED, client), SEED)
        assert (got - wanted).square().mean() < 0.1 * wanted.square().mean()


def test_what_cannot_work_is_refused_when_the_codec_is_made():
    with pytest.raises(UnknownNameError, match="no sketch named 'counts'"):
        SketchCodec(dim=100, size=30, family="counts")
    with pytest.raises(InputError, match="got bits = 5"):
        SketchCodec(dim=100, size=30, bits=5)
    with pytest.raises(InputError, match="size 101 exceeds dim 100"):
        SketchCodec(dim=100, size=101)
    with pytest.raises(InputError, match="'srht' has no option 'nonzeros'"):
        SketchCodec(dim=100, size=30, options=(("nonzeros", 3),))
