"""Several codecs, each for its own part of a vector, do what is demanded of one codec."""

from typing import ClassVar

import pytest
import torch

from sketchfed.codecs import Codec, JoinedCodec, make_codec
from sketchfed.errors import WireError
from sketchfed.seeds import PublicSeed
from sketchfed.testing.codecs import CodecConformance
from sketchfed.wire import Packet, pack, unpack

DIM, PLAIN, SEED = 48, 5, PublicSeed(7)


def joined(name: str, **options: object) -> JoinedCodec:
    """Two parts with this codec, and the rest as it is, in the middle and at the end."""
    part = make_codec(name, dim=20, **options)
    rest = make_codec("dense", dim=8)
    return JoinedCodec(dim=DIM, parts=(part, part, rest), spans=(((0, 20),), ((25, 45),), ((20, 25), (45, 48))))


class TestJoinedCodecs(CodecConformance):
    codecs: ClassVar = {
        "sketched": joined("sketched", size=12),
        "sketched, 4 bits": joined("sketched", size=12, bits=4),
        "qsgd": joined("qsgd"),
        "rand_k": joined("rand_k", size=8),
        "top_k": joined("top_k", size=8),
        "eden": joined("eden"),
    }

    def draws(self, codec: Codec) -> bool:
        return codec.parts[0].name != "top_k"


def test_parts_come_back_as_if_each_were_alone():
    codec = joined("rand_k", size=8)
    x = torch.randn(DIM, generator=torch.Generator().manual_seed(1))
    decoded = codec.decode([codec.encode(x, SEED, 3)], SEED)
    alone = codec.parts[0].decode([codec.parts[0].encode(x[:20], SEED, 3)], SEED)
    assert torch.equal(decoded[:20], alone)
    assert torch.equal(decoded[20:25], x[20:25])
    assert torch.equal(decoded[45:], x[45:])
    assert codec.last(codec.encode(x, SEED, 3), SEED) == x[-1]


def test_two_parts_with_the_same_codec_draw_differently():
    codec = joined("rand_k", size=8)
    decoded = codec.decode([codec.encode(torch.ones(DIM), SEED)], SEED)
    assert not torch.equal(decoded[:20], decoded[25:45])


def test_a_packet_that_lacks_a_part_is_refused():
    codec = joined("top_k", size=8)
    packet = unpack(pack(codec.encode(torch.ones(DIM), SEED)))
    for name in packet.arrays:
        arrays = {other: array for other, array in packet.arrays.items() if other != name}
        with pytest.raises(WireError):
            codec.check(Packet(kind=packet.kind, arrays=arrays, scalars=packet.scalars, seed=SEED), 0, SEED)


@pytest.mark.parametrize("name", ["qsgd", "sign", "eden"])
@pytest.mark.parametrize("lie", [{"p0.dim": 3}, {"p2.dim": 3}, {"p0.client": 9}, {"p2.client": 9}, {"p2.client": "me"}])
def test_a_part_takes_its_sender_and_its_length_from_the_whole_packet(name, lie):
    codec, x = joined(name), torch.ones(DIM)
    packets = [codec.encode(x, SEED, client) for client in (1, 2)]
    lying = [packet.stamped(**lie) for packet in packets]
    for client, packet in zip((1, 2), lying, strict=True):
        codec.check(packet, client, SEED)
    assert torch.equal(codec.decode(lying, SEED), codec.decode(packets, SEED))
