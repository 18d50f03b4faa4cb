"""What a receiver expects of a packet, and packets that follow each other."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sketchfed.errors import WireError
from sketchfed.wire import Bits, Packet, bits_named, expect_kind, number_named, pack, split, tensor_named, unpack

PACKET = Packet(
    kind="table",
    arrays={"codes": Bits(torch.tensor([[1, 5], [7, 0]]), bits=3), "values": torch.tensor([1.0, 2.0])},
    scalars={"flag": True, "name": "x", "rate": 0.5, "round": 3},
)


def test_what_is_expected_is_handed_over():
    assert expect_kind(PACKET, "table") is PACKET
    assert tensor_named(PACKET, "values", shape=(2,)) is PACKET.arrays["values"]
    assert torch.equal(bits_named(PACKET, "codes", shape=(2, 2), bits=3), torch.tensor([[1, 5], [7, 0]]))
    assert number_named(PACKET, "rate") == 0.5
    assert number_named(PACKET, "round", least=3, most=3) == 3


def test_another_kind_is_refused():
    with pytest.raises(WireError, match="a packet of kind 'sketched' was expected, 'table' arrived"):
        expect_kind(PACKET, "sketched")


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "found"),
    [
        ("value", (2,), torch.float32, "of float32\\[2\\], it is missing"),
        ("values", (3,), torch.float32, "of float32\\[3\\], it is float32\\[2\\]"),
        ("values", (2, 1), torch.float32, "of float32\\[2, 1\\], it is float32\\[2\\]"),
        ("values", (), torch.float32, "of float32\\[\\], it is float32\\[2\\]"),
        ("values", (2,), torch.float64, "of float64\\[2\\], it is float32\\[2\\]"),
        ("codes", (2, 2), torch.float32, "of float32\\[2, 2\\], it is 3-bit\\[2, 2\\]"),
    ],
)
def test_other_tensors_are_refused(name, shape, dtype, found):
    with pytest.raises(WireError, match=f"packet 'table' should carry an array .*{found}"):
        tensor_named(PACKET, name, shape=shape, dtype=dtype)


@pytest.mark.parametrize(
    "wanted",
    [
        {"name": "code", "shape": (2, 2), "bits": 3},
        {"name": "codes", "shape": (4,), "bits": 3},
        {"name": "codes", "shape": (2, 2), "bits": 4},
        {"name": "codes", "shape": (2, 2), "bits": 3, "signed": True},
        {"name": "values", "shape": (2,), "bits": 32},
    ],
)
def test_other_packed_integers_are_refused(wanted):
    with pytest.raises(WireError, match=r"packet 'table' should carry an array .* it is"):
        bits_named(PACKET, **wanted)


@pytest.mark.parametrize(
    ("name", "bounds", "found"),
    [
        ("rat", {}, "it is missing"),
        ("name", {}, "it is 'x'"),
        ("flag", {}, "it is True"),
        ("round", {"least": 4}, "from 4 to inf, it is 3"),
        ("round", {"most": 2.5}, "from -inf to 2.5, it is 3"),
        ("rate", {"least": 1.0, "most": 2.0}, "from 1 to 2, it is 0.5"),
    ],
)
def test_other_numbers_are_refused(name, bounds, found):
    with pytest.raises(WireError, match=f"packet 'table' should carry a number '{name}' .*{found}"):
        number_named(PACKET, name, **bounds)


def small(index: int) -> Packet:
    return Packet(kind="update", arrays={"values": torch.full((index,), 1.0)}, scalars={"round": index})


def test_packets_that_follow_each_other_are_split_without_being_read():
    parts = split(b"".join(pack(small(index)) for index in range(5)), most=5)
    assert [unpack(part) for part in parts] == [small(index) for index in range(5)]
    assert split(b"", most=0) == []


def test_more_packets_than_expected_are_refused():
    with pytest.raises(WireError, match="more than 4 packets arrived together"):
        split(pack(small(1)) * 5, most=4)


def test_a_cut_sequence_is_refused_wherever_it_is_cut():
    data = pack(small(1)) + pack(small(2))
    whole = len(pack(small(1)))
    for size in set(range(1, len(data))) - {whole}:
        with pytest.raises(WireError, match=f"packet {int(size > whole)} is truncated: it takes"):
            split(data[:size], most=9)


def test_what_is_not_bytes_is_refused():
    with pytest.raises(WireError, match="got list"):
        split([1, 2], most=2)


@settings(deadline=None)
@given(st.binary(max_size=300), st.integers(0, 3))
def test_splitting_any_bytes_loses_none_or_is_a_wire_error(noise, honest):
    data = pack(small(1)) * honest + noise
    try:
        parts = split(data, most=20)
    except WireError:
        return
    assert b"".join(parts) == data
    assert len(parts) >= honest
