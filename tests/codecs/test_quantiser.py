"""What the codecs that round to few bits have in common."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from sketchfed import PublicSeed
from sketchfed.codecs import CODECS, Codec
from sketchfed.codecs.quantiser import LARGEST, rounded_up
from sketchfed.errors import InputError, WireError
from sketchfed.wire import Bits, Packet, pack

SEED = PublicSeed(7)
OPTIONS: dict[str, dict[str, object]] = {"qsgd": {}, "sign": {}, "eden": {}, "correlated": {"clients": 4}}
BITS = {"qsgd": range(2, 17), "eden": range(1, 9), "correlated": range(1, 17)}

every_quantiser = pytest.mark.parametrize("name", OPTIONS)


def made(name: str, dim: int = 100, **options: object) -> Codec:
    return CODECS[name](dim=dim, **OPTIONS[name], **options)


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sent(codec: Codec, x: torch.Tensor, seed: PublicSeed = SEED) -> list[Packet]:
    return [codec.encode(row, seed, client) for client, row in enumerate(x)]


@pytest.mark.parametrize(("name", "bits"), [(name, bits) for name, widths in BITS.items() for bits in widths])
def test_every_width_works_and_takes_its_bits(name, bits):
    codec, x = made(name, 1_000, bits=bits), normal(1_000)
    packet = codec.encode(x, SEED)
    assert 0 <= len(pack(codec.bare(packet))) - -(-1_000 * bits // 8) <= 96
    assert torch.isfinite(codec.decode([packet], SEED)).all()


@every_quantiser
def test_more_bits_make_smaller_errors(name):
    if name not in BITS:
        return
    x = normal(1_000)
    errors = []
    for bits in BITS[name]:
        codec = made(name, 1_000, bits=bits)
        errors.append(float((codec.decode([codec.encode(x, SEED)], SEED) - x).norm() / x.norm()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < (0.01 if name == "eden" else 1e-3)


@pytest.mark.parametrize("name", BITS)
def test_other_widths_are_refused(name):
    least, most = BITS[name][0], BITS[name][-1]
    for bits in (least - 1, most + 1, 2.0, "2", None):
        with pytest.raises(InputError, match=f"codec '{name}' sends numbers with {least} to {most} bits, got bits = "):
            made(name, bits=bits)


@every_quantiser
def test_all_coordinates_are_sent_unless_fewer_are_wanted(name):
    x = normal(100)
    assert pack(made(name, size=100).encode(x, SEED)) == pack(made(name).encode(x, SEED))
    assert made(name, size=30).encode(x, SEED).arrays["values"].shape == (30,)
    with pytest.raises(InputError, match="size 101 exceeds dim 100"):
        made(name, size=101)


@every_quantiser
def test_what_is_not_sent_is_made_up_for(name):
    """Without the factor dim/size the mean would be ¼. 0.12 is five standard errors of the worst of them."""
    codec, x, seeds = made(name, size=25), torch.ones(100), [SEED.child("round", t) for t in range(200)]
    means = [float(codec.decode([codec.encode(x, seed)], seed).mean()) for seed in seeds]
    assert np.mean(means) == pytest.approx(1, abs=0.12)


@every_quantiser
def test_who_sent_a_packet_matters_only_where_the_decoder_must_draw_alike(name):
    assert made(name).personal == (name == "eden")
    assert made(name, size=30).personal == (name != "correlated")
    codec = made(name)
    if not codec.personal:
        packets = sent(codec, normal(3, 100))
        nameless = [packet.without(scalars=("client",)) for packet in packets]
        assert torch.equal(codec.decode(nameless, SEED), codec.decode(packets, SEED))


@every_quantiser
@pytest.mark.parametrize("size", [None, 30])
def test_zeros_arrive_as_zeros(name, size):
    codec = made(name, size=size)
    assert torch.equal(codec.decode([codec.encode(torch.zeros(100), SEED)], SEED), torch.zeros(100))


@every_quantiser
@pytest.mark.parametrize("dim", [1, 2, 3, 64, 65])
def test_short_vectors_arrive(name, dim):
    codec, x = made(name, dim), normal(2, dim)
    assert codec.decode(sent(codec, x), SEED).shape == (dim,)


@every_quantiser
@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e10, 1e22])
def test_the_unit_does_not_matter(name, scale):
    codec, x = made(name), normal(2, 100)
    expected = codec.decode(sent(codec, x), SEED)
    got = codec.decode(sent(codec, x * scale), SEED) / scale
    assert (got - expected).norm() <= 0.05 * expected.norm()  # some number at the edge of two levels may go to the other


@every_quantiser
def test_double_precision_is_taken_too(name):
    codec, x = made(name), normal(100)
    assert codec.encode(x.double(), SEED) == codec.encode(x, SEED)


@every_quantiser
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_absurdly_long_vectors_are_refused(name, dtype):
    with pytest.raises(InputError, match=r"norm must be at most 1.2e\+24 .* this one's is"):
        made(name).encode(torch.full((100,), 1e37, dtype=dtype), SEED)
    codec, x = made(name), torch.full((100,), LARGEST / 20)
    assert torch.isfinite(codec.decode(sent(codec, x.repeat(4, 1)), SEED)).all()


@every_quantiser
@pytest.mark.parametrize("size", [None, 30])
def test_the_norm_is_about_that_of_the_vector(name, size):
    codec, x = made(name, 2_000, size=size), normal(2_000)
    norms = [codec.norm(codec.encode(x, s), s) for s in (SEED.child("round", t) for t in range(20))]
    assert 0.5 * x.norm() <= np.mean(norms) <= 1.1 * x.norm()


@every_quantiser
def test_a_wild_packet_is_screened(name):
    codec, x = replace(made(name), norm_bound=20.0), normal(100)
    assert codec.check(codec.encode(x, SEED, 3), 3, SEED) <= 20
    with pytest.raises(WireError, match=r"client 3 sent a vector of norm .*, above norm_bound = 20"):
        codec.check(codec.encode(x * 1_000, SEED, 3), 3, SEED)


SCALE_ARRAYS = {"qsgd": "norms", "eden": "scales", "correlated": "reaches"}


@pytest.mark.parametrize("name", SCALE_ARRAYS)
def test_scales_that_cannot_be_are_refused(name):
    codec = made(name)
    good = codec.encode(normal(100), SEED, 3)
    array = SCALE_ARRAYS[name]
    right = good.arrays[array]
    for wrong, complaint in (
        (-right, "must hold numbers from 0 to 1.2e"),
        (right * 1e30, "must hold numbers from 0 to 1.2e"),
        (torch.cat([right, right]), rf"should carry an array '{array}' of float32\[{len(right)}\]"),
        (right.double(), "should carry an array .* of float32"),
    ):
        bad = replace(good, arrays={**good.arrays, array: wrong})
        with pytest.raises(WireError, match=complaint):
            codec.check(bad, 3)
        with pytest.raises(WireError, match=complaint):
            codec.decode([bad], SEED)


@pytest.mark.parametrize("scale", [-1.0, 1e30, True, "1", None])
def test_a_scale_of_signs_that_cannot_be_is_refused(scale):
    codec = made("sign")
    good = codec.encode(normal(100), SEED, 3)
    scalars = {"client": 3} if scale is None else {"client": 3, "scale": scale}
    with pytest.raises(WireError, match="should carry a number 'scale'"):
        codec.check(replace(good, scalars=scalars), 3)


@every_quantiser
def test_the_worst_packets_that_pass_decode_to_finite_numbers(name):
    codec = made(name, size=1)
    good = codec.encode(normal(100), SEED, 0)
    width = good.arrays["values"].bits
    arrays = {"values": Bits(torch.full((1,), 2**width - (2 if name == "qsgd" else 1)), bits=width)}
    if name in SCALE_ARRAYS:
        arrays[SCALE_ARRAYS[name]] = torch.full_like(good.arrays[SCALE_ARRAYS[name]], LARGEST)
    packets = [
        replace(good, arrays=arrays, scalars={"client": client} | ({"scale": LARGEST} if name == "sign" else {}))
        for client in range(50)
    ]
    assert torch.isfinite(codec.decode(packets, SEED)).all()


@every_quantiser
def test_decoding_holds_a_few_vectors_however_many_clients_there_are(name):
    dim = 100_000
    codec, x = made(name, dim), normal(dim)
    packets = [codec.encode(x, SEED, client) for client in range(30)]
    codec.decode(packets[:2], SEED)
    tracemalloc.start()
    codec.decode(packets, SEED)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * 4 * dim


def test_rounding_up_never_rounds_down():
    numbers = np.array([0, 1e-46, 1e-30, 1 / 3, 1.0, 16_777_217.0])
    assert (rounded_up(numbers) >= numbers).all()
    assert np.allclose(rounded_up(numbers), numbers, rtol=2e-7, atol=2e-45)
