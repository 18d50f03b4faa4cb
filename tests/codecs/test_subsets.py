"""Sets of coordinates on the wire: few bits, each set one string of bits, and no other string is a set."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sketchfed.codecs import subsets
from sketchfed.errors import WireError
from sketchfed.wire import Bits, Packet


def packet(bits: Bits) -> Packet:
    return Packet(kind="set", arrays={"rows": bits})


def sent(rows: list[int], dim: int) -> Bits:
    return subsets.to_bits(np.array(rows, np.int64), dim=dim)


def received(bits: Bits, dim: int, size: int) -> list[int]:
    return subsets.from_packet(packet(bits), "rows", dim=dim, size=size).tolist()


def spoilt(bits: Bits, **places: list[int]) -> Bits:
    """The same bits with some of them set to one, and others to zero."""
    values = bits.values
    values[places.get("on", [])] = 1
    values[places.get("off", [])] = 0
    return Bits(values, bits=1)


@pytest.mark.parametrize("dim", range(1, 8))
def test_every_set_arrives_and_no_two_look_alike(dim):
    for size in range(dim + 1):
        sets = [[i for i in range(dim) if chosen >> i & 1] for chosen in range(2**dim) if chosen.bit_count() == size]
        strings = [sent(rows, dim) for rows in sets]
        assert [received(bits, dim, size) for bits in strings] == sets
        assert len({bits.packed for bits in strings}) == len(sets) == math.comb(dim, size)


@given(st.data())
def test_sets_of_any_size_arrive(data):
    dim = data.draw(st.integers(1, 5_000) | st.integers(2**20, 2**31))
    rows = sorted(data.draw(st.sets(st.integers(0, dim - 1), max_size=60)))
    assert received(sent(rows, dim), dim, len(rows)) == rows


@pytest.mark.parametrize("dim", [9, 12, 16])
def test_every_string_of_bits_is_one_set_or_is_refused(dim):
    """All strings of the right length: as many are accepted as there are sets, and what was read is written the same."""
    for size in (1, 2, 3):
        length = sent(list(range(size)), dim).shape[0]
        good = 0
        for string in range(2**length):
            bits = Bits.from_packed(string.to_bytes((length + 7) // 8, "little"), shape=(length,), bits=1)
            try:
                rows = received(bits, dim, size)
            except WireError:
                continue
            assert sent(rows, dim) == bits
            good += 1
        assert good == math.comb(dim, size)


@pytest.mark.parametrize(("dim", "size"), [(1024, 20), (1024, 1), (200_000, 2_000), (10**6, 10**5), (10**6, 240_000)])
def test_a_coordinate_takes_about_two_bits_more_than_the_logarithm_of_its_gap(dim, size):
    """Between what C(dim, size) sets need at least and size·(2 + log2(dim/size))."""
    bits = sent(list(range(size)), dim).shape[0]
    least = (math.lgamma(dim + 1) - math.lgamma(size + 1) - math.lgamma(dim - size + 1)) / math.log(2)
    assert least <= bits <= size * (2 + math.log2(dim / size)) + 1


@pytest.mark.parametrize("size", [26, 50, 99, 100])
def test_no_set_takes_more_than_a_bitmap(size):
    assert sent(list(range(size)), 100).shape == (100,)


def test_the_empty_set_takes_nothing():
    assert sent([], 50).shape == (0,)
    assert received(sent([], 50), 50, 0) == []


def test_all_coordinates_arrive():
    assert received(sent(list(range(50)), 50), 50, 50) == list(range(50))


@pytest.mark.parametrize("size", [3, 40])
def test_a_string_of_another_length_or_kind_is_refused(size):
    good = sent(list(range(size)), 64).values
    for bad in (good[:-1], torch.cat([good, good[:1]]), good[None]):
        with pytest.raises(WireError, match=r"should carry an array 'rows' of 1-bit\[\d+\], it is 1-bit"):
            received(Bits(bad, bits=1), 64, size)
    with pytest.raises(WireError, match="it is 2-bit"):
        received(Bits(good, bits=2), 64, size)
    with pytest.raises(WireError, match="it is missing"):
        subsets.from_packet(Packet(kind="set", arrays={}), "rows", dim=64, size=size)


def test_a_wrong_number_of_coordinates_is_refused():
    few, many = sent([3, 9, 20], 64), sent(list(range(40)), 64)
    first = 3 * 4  # low bits of four each come first
    with pytest.raises(WireError, match="array 'rows' of packet 'set' has 4 ones, but 3 coordinates need 3"):
        received(spoilt(few, on=[first + 5]), 64, 3)
    with pytest.raises(WireError, match="has 2 ones, but 3 coordinates need 3"):
        received(spoilt(few, off=[first]), 64, 3)
    with pytest.raises(WireError, match="has 41 ones, but 40 coordinates need 40"):
        received(spoilt(many, on=[63]), 64, 40)


def test_coordinates_that_do_not_ascend_are_refused():
    low = [Bits(torch.tensor(lows), bits=4).packed for lows in ([9, 3, 4], [3, 3, 4])]
    for packed, message in zip(low, ("names coordinate 3 after 9", "names coordinate 3 after 3"), strict=True):
        bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")[:12]
        unary = [1, 1, 0, 1, 0, 0]
        with pytest.raises(WireError, match=message):
            received(Bits(torch.tensor([*bits.tolist(), *unary]), bits=1), 64, 3)


def test_a_coordinate_beyond_the_vector_is_refused():
    good = sent([3, 9, 59], 60)
    with pytest.raises(WireError, match="names coordinate 63, but a vector has 60"):
        received(spoilt(good, on=[8, 9, 10, 11]), 60, 3)


def test_more_coordinates_than_a_vector_has_are_refused():
    with pytest.raises(WireError, match="names 9 coordinates in 'rows', but a vector has 8"):
        received(sent([1], 8), 8, 9)
