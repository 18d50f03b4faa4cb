"""What every codec must do: a new one is tested by being registered, and by a line in OPTIONS if it needs options."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from odds import mean_interval
from sketchfed import PublicSeed
from sketchfed.codecs import CODECS, Codec
from sketchfed.errors import InputError, SketchfedError, WireError
from sketchfed.wire import Bits, Packet, pack, unpack

DIM = 96
SEED = PublicSeed(7)
OPTIONS = {"sketched": {"size": 48}}
VARIANTS = {name: (name, OPTIONS.get(name, {})) for name in CODECS} | {
    **{f"sketched, {family}": ("sketched", {"size": 32, "family": family}) for family in ("count", "gaussian")},
    **{f"sketched, {bits} bits": ("sketched", {"size": 48, "bits": bits}) for bits in (16, 4, 1)},
    "sketched, blocks": ("sketched", {"size": 48, "bits": 8, "options": (("block", 32),)}),
}

every_codec = pytest.mark.parametrize("variant", VARIANTS)


def codec_of(variant: str) -> Codec:
    name, options = VARIANTS[variant]
    return CODECS[name](dim=DIM, **options)


def vectors(count: int = 5) -> torch.Tensor:
    """Vectors of different lengths around a common one."""
    noise = torch.randn(count + 1, DIM, generator=torch.Generator().manual_seed(1))
    return noise[0] + torch.linspace(0.1, 2, count)[:, None] * noise[1:]


def encoded(codec: Codec, x: torch.Tensor, seed: PublicSeed = SEED) -> list[Packet]:
    """The packets of a round, after they went over the wire and were checked there."""
    packets = [unpack(pack(codec.encode(row, seed, client))) for client, row in enumerate(x)]
    for client, packet in enumerate(packets):
        codec.check(packet, client)
    return packets


def summed(packets: list[Packet]) -> Packet:
    """One packet for several clients, as a secure sum makes it: arrays are added, and nothing else is looked at."""
    arrays = {name: sum(packet.arrays[name] for packet in packets) for name in packets[0].arrays}
    return replace(packets[0], arrays=arrays, clients=len(packets))


@every_codec
def test_packets_survive_the_wire_and_decode_to_a_mean(variant):
    codec, x = codec_of(variant), vectors()
    mean = codec.decode(encoded(codec, x), SEED)
    assert (mean.shape, mean.dtype) == ((DIM,), torch.float32)
    assert torch.equal(mean, codec.decode([codec.encode(row, SEED, client) for client, row in enumerate(x)], SEED))


@every_codec
def test_encoding_leaves_the_vector_alone(variant):
    codec, x = codec_of(variant), vectors(1)[0]
    before = x.clone()
    codec.decode([codec.encode(x, SEED)], SEED)
    assert torch.equal(x, before)


@pytest.mark.parametrize("size", [1, 3, 20])
def test_the_dense_mean_is_exact(size):
    codec, x = codec_of("dense"), vectors(size)
    assert torch.allclose(codec.decode(encoded(codec, x), SEED), x.double().mean(0).float(), atol=1e-6)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if codec_of(name).unbiased])
def test_the_decoded_mean_is_unbiased(variant):
    """Along six directions, from packets of one client each and from packets of several.

    False alarm below 1.2e-5 a variant, by Student's t.
    """
    codec, x = codec_of(variant), vectors(3)
    directions = torch.cat([torch.randn(5, DIM, generator=torch.Generator().manual_seed(2)), torch.eye(DIM)[[17]]])
    apart, together = [], []
    for trial in range(250):
        seed = PublicSeed(1).child("trial", trial)
        packets = [codec.encode(row, seed, client) for client, row in enumerate(x)]
        apart.append(directions @ codec.decode(packets, seed))
        if codec.additive:
            pair = replace(codec.encode(x[0] + x[1], seed, 0), clients=2)
            together.append(directions @ codec.decode([pair, packets[2]], seed))
    for estimates in filter(None, (apart, together)):
        for samples, expected in zip(torch.stack(estimates).T, directions @ x.mean(0), strict=True):
            low, high = mean_interval(samples, false_alarm=1e-6)
            assert low - 1e-5 <= float(expected) <= high + 1e-5


@every_codec
def test_the_order_of_packets_does_not_matter(variant):
    codec, x = codec_of(variant), vectors()
    packets = encoded(codec, x)
    assert torch.allclose(codec.decode(packets[::-1], SEED), codec.decode(packets, SEED), atol=1e-5)


@every_codec
def test_additive_codecs_decode_sums_of_packets_and_others_do_not_claim_it(variant):
    codec, x = codec_of(variant), vectors(5)
    packets = encoded(codec, x)
    if not codec.additive:
        assert any(isinstance(array, Bits) for array in packets[0].arrays.values()), "why can its packets not be added?"
        return
    parts = [summed(packets[:3]), packets[3], packets[4]]
    assert torch.allclose(codec.decode(parts, SEED), codec.decode(packets, SEED), atol=1e-5)
    assert torch.allclose(codec.decode([summed(packets)], SEED), codec.decode(packets, SEED), atol=1e-5)


@every_codec
def test_equal_seeds_and_clients_give_equal_bytes(variant):
    x = vectors(1)[0]
    assert pack(codec_of(variant).encode(x, SEED, 3)) == pack(codec_of(variant).encode(x, SEED, 3))


@every_codec
def test_what_is_random_differs_between_rounds(variant):
    codec, x = codec_of(variant), vectors(1)[0]
    one, other = (codec.decode([codec.encode(x, seed)], seed) for seed in (SEED, SEED.child("next")))
    assert torch.equal(one, other) == (codec.name == "dense")


@every_codec
def test_what_cannot_be_encoded_is_refused(variant):
    codec = codec_of(variant)
    for bad in (torch.ones(DIM + 1), torch.ones(1, DIM), torch.ones(DIM - 1), torch.tensor(1.0)):
        with pytest.raises(InputError, match=f"made for vectors of {DIM} numbers, got shape"):
            codec.encode(bad, SEED)
    for bad in (torch.nan, torch.inf):
        with pytest.raises(SketchfedError, match="NaN or infini"):
            codec.encode(torch.full((DIM,), bad), SEED)
    with pytest.raises(InputError, match="needs at least one packet"):
        codec.decode([], SEED)


def misfits(packet: Packet) -> dict[str, Packet]:
    """A good packet, spoilt in all ways that the wire lets through."""
    bits = packet.arrays["values"].bits if isinstance(packet.arrays["values"], Bits) else 0
    size = packet.arrays["values"].shape[0]
    longer = Bits(torch.zeros(size + 1).long(), bits=bits) if bits else torch.zeros(size + 1)
    return {
        "kind": replace(packet, kind="other"),
        "empty": replace(packet, arrays={}),
        "renamed": replace(packet, arrays={"value": packet.arrays["values"]}),
        "float64": replace(packet, arrays={"values": torch.zeros(size, dtype=torch.float64)}),
        "float16": replace(packet, arrays={"values": torch.zeros(size, dtype=torch.float16)}),
        "integers": replace(packet, arrays={"values": torch.zeros(size, dtype=torch.int64)}),
        "other width": replace(packet, arrays={"values": Bits(torch.zeros(size).long(), bits=bits + 1)}),
        "longer": replace(packet, arrays={"values": longer}),
        "matrix": replace(packet, arrays={"values": torch.zeros(1, size)}),
        "scalar": replace(packet, arrays={"values": torch.tensor(1.0)}),
    }


@every_codec
def test_packets_that_do_not_fit_are_refused_by_check_and_by_decode(variant):
    codec = codec_of(variant)
    good = codec.encode(vectors(1)[0], SEED, 4)
    codec.check(good, 4)
    for bad in misfits(good).values():
        with pytest.raises(WireError):
            codec.check(bad, 4)
        with pytest.raises(WireError):
            codec.decode([good, bad], SEED)


ARRAYS = st.one_of(
    st.builds(torch.full, st.sampled_from([(), (0,), (48,), (DIM,), (1, DIM)]), st.sampled_from([0.0, -1.0, 3e38])),
    st.builds(lambda n, bits: Bits(torch.zeros(n).long(), bits=bits), st.sampled_from([0, 47, 48]), st.integers(1, 63)),
)
SCALARS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.text()
)
PACKETS = st.builds(
    Packet,
    kind=st.sampled_from([*CODECS, "begin"]),
    arrays=st.dictionaries(st.sampled_from(["values", "indices"]), ARRAYS, max_size=2),
    clients=st.sampled_from([1, 7, 2**32 - 1]),
    scalars=st.dictionaries(st.sampled_from(["client", "step"]), SCALARS | st.sampled_from([0, 1.0, 1e-3]), max_size=2),
)


@settings(deadline=None, max_examples=200)
@given(PACKETS)
def test_any_packet_is_decoded_or_is_a_wire_error(packet):
    for variant in ("dense", "sketched", "sketched, 4 bits"):
        codec = codec_of(variant)
        try:
            codec.check(packet, 0)
        except WireError:
            continue
        read = codec.read(packet, SEED) if hasattr(codec, "read") else codec.decode([packet], SEED)
        assert torch.isfinite(read).all()
