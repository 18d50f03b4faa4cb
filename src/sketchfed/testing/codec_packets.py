"""What every codec must do with packets: refuse those that do not fit, screen wild ones, and decode all others."""

import math
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
import torch
from torch import Tensor

from sketchfed.codecs import CODECS, Codec, make_codec
from sketchfed.errors import WireError
from sketchfed.testing.codec_vectors import SEED, CodecSuite, contents, encoded, scalar, vectors
from sketchfed.testing.suite import only
from sketchfed.wire import Bits, Packet, Scalar, pack, unpack

DRAWN = 12
"""Packets of any content that each codec is given."""


def misfit_arrays(array: Tensor | Bits) -> Iterator[Tensor | Bits]:
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
    wrong: tuple[Scalar, ...] = ("1", True, -1.0, -1e300, 1e300)
    for name in packet.scalars:
        if name != "client":
            if name != "dim":  # which an envelope may say instead
                yield packet.without(scalars=[name])
            for value in wrong:
                yield replace(packet, scalars={**packet.scalars, name: value})


class CodecPackets(CodecSuite):
    """Packets come from strangers."""

    def test_packets_that_do_not_fit_are_refused_by_check_and_by_decode(self, codec: Codec) -> None:
        """A packet with a missing, renamed or wrong array or number raises `WireError`, from `check` as from `decode`."""
        x = vectors(codec, 2)
        x[1, 5] = 20.0  # so that some parts that only outliers have are there
        first, good = codec.encode(x[0], SEED, 3), codec.encode(x[1], SEED, 4)
        codec.check(good, 4)
        for bad in misfits(good):
            with pytest.raises(WireError):
                codec.check(bad, 4)
            with pytest.raises(WireError):
                codec.decode([first, bad], SEED)

    def test_a_packet_of_another_round_is_refused(self, codec: Codec) -> None:
        """A packet of another round is refused."""
        x = vectors(codec, 2)
        now, before = codec.encode(x[0], SEED, 0), codec.encode(x[1], SEED.child("before"), 1)
        for refuse in (lambda: codec.decode([now, before], SEED), lambda: codec.check(before, 1, SEED)):
            with pytest.raises(WireError, match=r"client 1 was not encoded with the round's seed"):
                refuse()

    def test_a_packet_of_another_codec_is_refused(self, codec: Codec) -> None:
        """A packet of another codec is refused."""
        x = vectors(codec, 1)[0]
        for name in CODECS.built_in:
            if name == codec.name:
                continue
            other = make_codec(name, dim=codec.dim, size=max(1, codec.dim // 2), clients=5).encode(x, SEED, 1)
            good = codec.encode(x, SEED)
            with pytest.raises(WireError, match=f"kind '{codec.name}' was expected, '{name}' arrived"):
                codec.decode([good, other], SEED)
            with pytest.raises(WireError, match=f"kind '{codec.name}' was expected, '{name}' arrived"):
                codec.check(other, 1)

    def test_a_packet_of_another_dim_is_refused(self, codec: Codec) -> None:
        """A packet of vectors with another number of coordinates is refused."""
        dim = codec.dim
        x = torch.cat([vectors(codec, 1)[0], vectors(codec, 2)[1]])
        good, longer = codec.encode(x[:dim], SEED, 0), replace(codec, dim=2 * dim).encode(x, SEED, 1)
        for refuse in (lambda: codec.decode([good, longer], SEED), lambda: codec.check(longer, 1)):
            with pytest.raises(WireError, match=f"was encoded from {2 * dim} numbers, but the codec was made for {dim:,}"):
                refuse()

    @only(lambda suite, codec: suite.fixed_size(codec))
    def test_a_packet_of_another_size_is_refused(self, codec: Codec) -> None:
        """A packet of another `size` is refused, unless its size is random (`fixed_size` of the test class)."""
        other = replace(codec, size=4 if getattr(codec, "size", None) != 4 else 8)  # type: ignore[call-arg]
        x = vectors(codec, 1)[0]
        with pytest.raises(WireError):
            codec.decode([codec.encode(x, SEED, 0), other.encode(x, SEED, 1)], SEED)
        with pytest.raises(WireError):
            codec.check(other.encode(x, SEED, 1), 1)

    def test_a_client_that_is_there_twice_is_refused(self, codec: Codec) -> None:
        """Two packets of one client are refused."""
        packets = [codec.encode(row, SEED, 3) for row in vectors(codec, 2)]
        with pytest.raises(WireError, match="client 3 appears twice"):
            codec.decode(packets, SEED)

    def test_a_packet_that_names_another_sender_is_refused(self, codec: Codec) -> None:
        """A packet that names another sender than the one it came from is refused."""
        packet = codec.encode(vectors(codec, 1)[0], SEED, 3)
        with pytest.raises(WireError, match="client 4 sent a packet that names client 3"):
            codec.check(packet, 4)
        nobodies: tuple[Scalar, ...] = ("3", -1, 1.5, True, 2**62)
        for nobody in nobodies:
            forged = replace(packet, scalars={**packet.scalars, "client": nobody})
            with pytest.raises(WireError):
                codec.check(forged, 3)
        if codec.personal:
            with pytest.raises(WireError, match="names client None"):
                codec.check(packet.without(scalars=["client"]), 3)
            with pytest.raises(WireError, match="should carry a number 'client'"):
                codec.decode([packet.without(scalars=["client"])], SEED)

    def test_bare_packets_decode_to_the_same(self, codec: Codec) -> None:
        """A packet without what its envelope says (`bare`) is smaller and decodes to the same bits."""
        packets = encoded(codec, vectors(codec))
        bare = [unpack(pack(codec.bare(packet))) for packet in packets]
        assert sum(len(pack(packet)) for packet in bare) < sum(len(pack(packet)) for packet in packets)
        for client, packet in enumerate(bare):
            assert codec.check(packet, client, SEED) == codec.check(packets[client], client, SEED)
        assert torch.equal(codec.decode(bare, SEED), codec.decode(packets, SEED))

    def test_a_wild_packet_is_screened_by_its_norm_and_an_honest_one_is_not(self, codec: Codec) -> None:
        """A vector 1,000 times as long as usual exceeds `norm_bound`; an honest one does not exceed 6 times its norm.

        An estimate of a norm from few numbers, or from one bit each, is not that exact: hence the room.
        """
        x = vectors(codec)
        codec = replace(codec, norm_bound=6 * float(x.norm(dim=1).max()))
        encoded(codec, x)
        for client, row in enumerate(x):
            wild = codec.encode(1_000 * row, SEED, client)
            with pytest.raises(WireError, match=rf"client {client} sent a vector of norm \S+, above norm_bound"):
                codec.check(wild, client, SEED)

    def test_the_norm_scales_with_the_vector(self, codec: Codec) -> None:
        """`norm` is proportional to the vector, and 0 for zeros."""
        x = vectors(codec, 1)[0]
        once, twice = (codec.check(codec.encode(scale * x, SEED), 0, SEED) for scale in (1, 2))
        assert twice == pytest.approx(2 * once, rel=1e-4)
        assert codec.check(codec.encode(0 * x, SEED), 0, SEED) == 0

    def test_a_packet_that_passes_its_check_decodes(self, codec: Codec) -> None:
        """A packet of any content raises `WireError`, or its norm and what it decodes to are finite.

        Finite, if the norm is such that sums and scales are.
        """
        codec = replace(codec, norm_bound=1e30)
        for number in range(DRAWN):
            random, x = Random(number), vectors(codec, 1)[0]
            x[5] = random.choice([0.0, 20.0])
            good = codec.encode(x, SEED)
            arrays = {name: random.choice([array, contents(array, random)]) for name, array in good.arrays.items()}
            scalars = {name: random.choice([value, scalar(random)]) for name, value in good.scalars.items()}
            packet = replace(good, arrays=arrays, scalars={**scalars, "client": 0})
            try:
                norm = codec.check(packet, 0, SEED)
            except WireError:
                continue
            assert math.isfinite(norm)
            assert torch.isfinite(codec.decode([packet], SEED)).all()
