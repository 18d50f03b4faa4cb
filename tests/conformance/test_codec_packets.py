"""What every codec must do with packets: refuse those that do not fit, screen wild ones, and decode all others."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codec_variants import DIM, SEED, VARIANTS, codec_of, encoded, every_codec, vectors
from sketchfed.codecs import CODECS
from sketchfed.errors import WireError
from sketchfed.wire import Bits, Packet, Scalar, pack, unpack

# Packets that do not fit ----------------------------------------------------------------------------------------------


def misfit_arrays(array: torch.Tensor | Bits) -> Iterator[torch.Tensor | Bits]:
    """Arrays that are not of the kind or not of the shape of this one."""
    shape = tuple(array.shape)
    longer = (shape[0] + 1, *shape[1:]) if shape else (1,)
    yield torch.zeros(shape, dtype=torch.float64)
    yield torch.zeros(shape, dtype=torch.int64)
    yield torch.zeros(1, *shape)
    yield torch.zeros(())[(None,) * (not shape)]
    if isinstance(array, Bits):
        yield torch.zeros(shape)
        yield Bits(torch.zeros(longer).long(), bits=array.bits)
        yield Bits(torch.zeros(shape).long(), bits=array.bits + 1)
        yield Bits(torch.zeros(shape).long(), bits=array.bits, signed=True)
    else:
        yield Bits(torch.zeros(shape).long(), bits=32)
        yield torch.zeros(longer, dtype=array.dtype)
        yield torch.zeros(shape, dtype=torch.float16 if array.dtype != torch.float16 else torch.float32)


def misfits(packet: Packet) -> Iterator[Packet]:
    """A good packet, each of its parts spoilt in all ways that the wire lets through."""
    yield replace(packet, kind="other")
    yield replace(packet, arrays={})
    for name, array in packet.arrays.items():
        others = {other: value for other, value in packet.arrays.items() if other != name}
        yield replace(packet, arrays=others)
        yield replace(packet, arrays={**others, f"{name}-": array})
        for bad in misfit_arrays(array):
            yield replace(packet, arrays={**others, name: bad})
    for name in packet.scalars:
        if name != "client":
            if name != "dim":  # which an envelope may say instead
                yield packet.without(scalars=[name])
            for bad in ("1", True, -1.0, -1e300, 1e300):
                yield replace(packet, scalars={**packet.scalars, name: bad})


@every_codec
def test_packets_that_do_not_fit_are_refused_by_check_and_by_decode(variant):
    codec, x = codec_of(variant), vectors(2)
    x[1, 5] = 20.0  # so that some parts that only outliers have are there
    first, good = codec.encode(x[0], SEED, 3), codec.encode(x[1], SEED, 4)
    codec.check(good, 4)
    for bad in misfits(good):
        with pytest.raises(WireError):
            codec.check(bad, 4)
        with pytest.raises(WireError):
            codec.decode([first, bad], SEED)


@every_codec
def test_a_packet_of_another_round_is_refused(variant):
    codec, x = codec_of(variant), vectors(2)
    now, before = codec.encode(x[0], SEED, 0), codec.encode(x[1], SEED.child("before"), 1)
    for refused in (lambda: codec.decode([now, before], SEED), lambda: codec.check(before, 1, SEED)):
        with pytest.raises(WireError, match=r"client 1 was encoded with another seed than the round's"):
            refused()


@every_codec
def test_a_packet_of_another_codec_is_refused(variant):
    codec, x = codec_of(variant), vectors(1)[0]
    for name in CODECS:
        if name != codec.name:
            other = codec_of(name).encode(x, SEED, 1)
            for refused in (lambda p=other: codec.decode([codec.encode(x, SEED), p], SEED), lambda p=other: codec.check(p, 1)):
                with pytest.raises(WireError, match=f"kind '{codec.name}' was expected, '{name}' arrived"):
                    refused()


@every_codec
def test_a_packet_of_another_dim_is_refused(variant):
    codec, x = codec_of(variant), torch.cat([vectors(1)[0], vectors(2)[1]])
    good, longer = codec.encode(x[:DIM], SEED, 0), codec_of(variant, dim=2 * DIM).encode(x, SEED, 1)
    for refused in (lambda: codec.decode([good, longer], SEED), lambda: codec.check(longer, 1)):
        with pytest.raises(WireError, match=f"was encoded from {2 * DIM} numbers, the codec was made for {DIM}"):
            refused()


@pytest.mark.parametrize("variant", [variant for variant, (name, o) in VARIANTS.items() if "size" in o and name != "wangni"])
def test_a_packet_of_another_size_is_refused(variant):
    """But for wangni, which sends a random number of coordinates, and decodes whatever their number was meant to be."""
    size = 4 if codec_of(variant).size != 4 else 8
    codec, other, x = codec_of(variant), codec_of(variant, size=size), vectors(1)[0]
    for refused in (
        lambda: codec.decode([codec.encode(x, SEED, 0), other.encode(x, SEED, 1)], SEED),
        lambda: codec.check(other.encode(x, SEED, 1), 1),
    ):
        with pytest.raises(WireError, match="should carry an array"):
            refused()


@every_codec
def test_a_client_that_is_there_twice_is_refused(variant):
    codec, x = codec_of(variant), vectors(2)
    packets = [codec.encode(row, SEED, 3) for row in x]
    with pytest.raises(WireError, match="client 3 is there twice"):
        codec.decode(packets, SEED)


@every_codec
def test_a_packet_that_names_another_sender_is_refused(variant):
    codec = codec_of(variant)
    packet = codec.encode(vectors(1)[0], SEED, 3)
    with pytest.raises(WireError, match="client 4 sent a packet that names client 3"):
        codec.check(packet, 4)
    for nobody in ("3", -1, 1.5, True, 2**62):
        forged = replace(packet, scalars={**packet.scalars, "client": nobody})
        with pytest.raises(WireError):
            codec.check(forged, 3)
    if codec.personal:
        with pytest.raises(WireError, match="names client None"):
            codec.check(packet.without(scalars=["client"]), 3)
        with pytest.raises(WireError, match="should carry a number 'client'"):
            codec.decode([packet.without(scalars=["client"])], SEED)


@every_codec
def test_bare_packets_decode_to_the_same(variant):
    codec, x = codec_of(variant), vectors()
    packets = encoded(codec, x)
    bare = [unpack(pack(codec.bare(packet))) for packet in packets]
    assert sum(len(pack(packet)) for packet in bare) < sum(len(pack(packet)) for packet in packets)
    for client, packet in enumerate(bare):
        assert codec.check(packet, client, SEED) == codec.check(packets[client], client, SEED)
    assert torch.equal(codec.decode(bare, SEED), codec.decode(packets, SEED))


# Wild values ----------------------------------------------------------------------------------------------------------


@every_codec
def test_a_wild_packet_is_screened_by_its_norm_and_an_honest_one_is_not(variant):
    """An estimate of a norm from few numbers, or from one bit each, is not that exact: hence the room."""
    x = vectors()
    codec = codec_of(variant, norm_bound=6 * float(x.norm(dim=1).max()))
    encoded(codec, x)
    for client, row in enumerate(x):
        wild = codec.encode(1_000 * row, SEED, client)
        with pytest.raises(WireError, match=rf"client {client} sent a vector of norm \S+, above norm_bound"):
            codec.check(wild, client, SEED)


@every_codec
def test_the_norm_scales_with_the_vector(variant):
    codec, x = codec_of(variant), vectors(1)[0]
    once, twice = (codec.check(codec.encode(scale * x, SEED), 0, SEED) for scale in (1, 2))
    assert twice == pytest.approx(2 * once, rel=1e-4)
    assert codec.check(codec.encode(0 * x, SEED), 0, SEED) == 0


@every_codec
@settings(deadline=None, max_examples=8)
@given(data=st.data())
def test_a_packet_that_passes_its_check_decodes(variant, data):
    """Packets whose parts have the right form and any content; finite, if the norm is such that sums and scales are."""
    codec = codec_of(variant, norm_bound=1e30)
    x = vectors(1)[0]
    x[5] = data.draw(st.sampled_from([0.0, 20.0]), label="outlier")
    good = codec.encode(x, SEED)
    arrays = {name: data.draw(st.just(array) | contents(array), label=name) for name, array in good.arrays.items()}
    scalars = {name: data.draw(st.just(value) | SCALARS, label=name) for name, value in good.scalars.items()}
    packet = replace(good, arrays=arrays, scalars={**scalars, "client": 0})
    try:
        norm = codec.check(packet, 0, SEED)
    except WireError:
        return
    assert math.isfinite(norm)
    assert torch.isfinite(codec.decode([packet], SEED)).all()


def contents(array: torch.Tensor | Bits) -> st.SearchStrategy[torch.Tensor | Bits]:
    """Arrays of the same form."""
    if isinstance(array, Bits):
        most = 2**array.bits - 1
        seeds = st.integers(0, 2**32 - 1)
        drawn = seeds.map(lambda seed: torch.from_numpy(np.random.default_rng(seed).integers(0, most + 1, array.shape)))
        same = st.sampled_from([0, most]).map(lambda value: torch.full(array.shape, value))
        return (drawn | same).map(lambda values: Bits(values, bits=array.bits))
    limit = float(torch.finfo(array.dtype).max)
    values = st.sampled_from([0.0, -1.0, 1e-30, 1e4, 2.0**80, 3e38, -3e38])
    return values.map(lambda value: torch.full(array.shape, max(-limit, min(value, limit)), dtype=array.dtype))


SCALARS: st.SearchStrategy[Scalar] = st.one_of(
    st.sampled_from([0, 0.0, 1.0, 1e-3, 1e30, 3e38, 1e300]),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.text(),
)
PARTS = {variant: codec_of(variant).encode(vectors(1)[0], SEED) for variant in VARIANTS}
FORMS = [array for packet in PARTS.values() for array in packet.arrays.values()]
PACKETS = st.builds(
    Packet,
    kind=st.sampled_from([*CODECS, "begin"]),
    arrays=st.dictionaries(
        st.sampled_from(sorted({name for packet in PARTS.values() for name in packet.arrays})),
        st.sampled_from(FORMS) | st.sampled_from(FORMS).flatmap(contents) | st.just(torch.tensor(1.0)),
        max_size=4,
    ),
    clients=st.sampled_from([1, 1, 1, 7, 2**32 - 1]),
    scalars=st.dictionaries(
        st.sampled_from(sorted({n for p in PARTS.values() for n in p.scalars})), SCALARS | st.just(0), max_size=4
    ),
)


@settings(deadline=None, max_examples=200)
@given(PACKETS)
def test_any_packet_is_decoded_or_is_a_wire_error(packet):
    for variant, (name, _) in VARIANTS.items():
        if name == packet.kind:
            codec = codec_of(variant, norm_bound=1e30)
            try:
                codec.check(packet, 0)
            except WireError:
                continue
            assert torch.isfinite(codec.decode([packet], SEED)).all()
