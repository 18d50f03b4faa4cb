"""Hostile bytes: `unpack` returns a packet or raises WireError, and allocates no more than it was given."""

import math
import random
import struct
import tracemalloc
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from sketchfed.errors import WireError
from sketchfed.wire import Bits, Packet, pack, unpack

CORPUS = [path.read_bytes() for path in sorted((Path(__file__).parent / "golden" / "wire").glob("*.bin"))]
PREFIX = 20
SLACK = 32 * 1024  # Python's own objects around the arrays: names, tensors, tracebacks


def sealed(header: bytes, payload: bytes = b"", *, start: bytes = b"SKFD\x01\x00") -> bytes:
    """A packet whose lengths and checksum are right, whatever its header and payload say."""
    prefix = start + struct.pack("<HQ", len(header), len(payload))
    return prefix + struct.pack("<I", zlib.crc32(prefix + header + payload)) + header + payload


def header_of(*, kind=b"\x01k", seed=b"\x00", clients=1, scalars=b"", scalar_count=None, arrays=b"", array_count=None) -> bytes:
    counts = (
        bool(scalars) if scalar_count is None else scalar_count,
        bool(arrays) if array_count is None else array_count,
    )
    return b"".join([kind, seed, struct.pack("<IB", clients, counts[0]), scalars, bytes([counts[1]]), arrays])


def array_of(code: int, *dims: int, bits: int = 0, name: bytes = b"x") -> bytes:
    """An array's entry in the header, with dimensions below 128."""
    return bytes([len(name)]) + name + bytes([code, bits, len(dims), *dims])


GOOD = sealed(header_of(arrays=array_of(1, 2)), struct.pack("<2f", 1, -2))


def test_the_forge_makes_packets_that_are_accepted():
    assert unpack(GOOD) == Packet(kind="k", arrays={"x": torch.tensor([1.0, -2.0])})


REFUSED = {
    "not a packet": (b"PK" + GOOD[2:], "this is not a packet: packets begin with b'SKFD', this with b'PKFD'"),
    "version": (sealed(GOOD[PREFIX:], start=b"SKFD\x02\x00"), "version 2, this sketchfed reads version 1"),
    "flags": (sealed(GOOD[PREFIX:], start=b"SKFD\x01\x80"), "sets flags 0x80"),
    "checksum": (GOOD[:-1] + b"\x00", "checksum is 0x[0-9a-f]{8}, its bytes give 0x"),
    "trailing": (GOOD + b"!", f"has 1 trailing bytes: its prefix promises {len(GOOD)}, {len(GOOD) + 1} arrived"),
    "empty": (b"", "truncated: its prefix takes 20 bytes, 0 arrived"),
    "short prefix": (GOOD[:19], "truncated: its prefix takes 20 bytes, 19 arrived"),
    "truncated": (GOOD[:-1], f"truncated: its prefix promises {len(GOOD)} bytes, {len(GOOD) - 1} arrived"),
    "endless": (GOOD[:8] + b"\xff" * 8 + GOOD[16:], "truncated: its prefix promises 18,446,744,073,709,551,6"),
    "no header": (sealed(b""), "header ends too early: 1 bytes are due at its byte 0, 0 are left"),
    "cut header": (sealed(header_of(seed=b"\x01")), "header ends too early: 16 bytes are due at its byte 3"),
    "long header": (sealed(header_of() + b"\x00"), "header has 1 trailing bytes after its last array"),
    "bad kind": (sealed(header_of(kind=b"\x01K")), "'K' cannot be the name of a packet's kind"),
    "no kind": (sealed(header_of(kind=b"\x00")), "'' cannot be the name of a packet's kind"),
    "not text": (sealed(header_of(kind=b"\x01\xff")), "ending at its byte 2, is not UTF-8"),
    "bad seed": (sealed(header_of(seed=b"\x02")), "whether there is a seed is written as 0 or 1, got 2"),
    "no clients": (sealed(header_of(clients=0)), "stands for 1 to 2\\^32 - 1 clients, got clients=0"),
    "scalar type": (sealed(header_of(scalars=b"\x01s\x09")), "scalar 's' has the unknown type 9"),
    "bool": (sealed(header_of(scalars=b"\x01s\x04\x02")), "the bool 's' is written as 0 or 1, got 2"),
    "nan scalar": (sealed(header_of(scalars=b"\x01s\x02" + struct.pack("<d", np.nan))), "'s' must be finite, got nan"),
    "surrogate": (sealed(header_of(scalars=b"\x01s\x03\x03\x00\xed\xa0\x80")), "is not UTF-8"),
    "overlong text": (sealed(header_of(scalars=b"\x01s\x03\x02\x00\xc0\x80")), "is not UTF-8"),
    "text past end": (sealed(header_of(scalars=b"\x01s\x03\xff\xff")), "65,535 bytes are due at its byte"),
    "twice": (sealed(header_of(scalars=b"\x01s\x04\x01" * 2, scalar_count=2)), "scalar 's' comes after 's'"),
    "order": (sealed(header_of(arrays=array_of(9, 0, name=b"b") + array_of(9, 0, name=b"a"), array_count=2)),
              "array 'a' comes after 'b': names are unique and in increasing order"),
    "array name": (sealed(header_of(arrays=array_of(9, 0, name=b"A"))), "'A' cannot be the name of a packet's array"),
    "array type": (sealed(header_of(arrays=array_of(10, 1))), "array 'x' has the unknown type 10"),
    "stray width": (sealed(header_of(arrays=array_of(1, 1, bits=8)), b"\0\0\0\0"), "its bits must be 0, got 8"),
    "no width": (sealed(header_of(arrays=array_of(32, 1))), "packed integers of 0 bits; they have 1 to 63"),
    "wide": (sealed(header_of(arrays=array_of(33, 1, bits=64)), bytes(8)), "packed integers of 64 bits"),
    "dimensions": (sealed(header_of(arrays=array_of(9, *[1] * 9)), b"\0"), "has 9 dimensions, at most 8"),
    "long varint": (sealed(header_of(arrays=b"\x01x\x09\x00\x01\x81\x00"), b"\0"), "1 is written in 2 bytes, more"),
    "endless varint": (sealed(header_of(arrays=b"\x01x\x09\x00\x01" + b"\xff" * 9)), "written in more than 7 bytes"),
    "absurd": (sealed(header_of(arrays=b"\x01x\x01\x00\x02\x00" + b"\x80" * 6 + b"\x40")), "the shape .* is absurd"),
    "claims more": (sealed(header_of(arrays=b"\x01x\x01\x00\x01" + b"\x80" * 5 + b"\x20"), b"\0\0\0\0"),
                    "describes arrays of 4,398,046,511,104 bytes, the payload has 4"),
    "claims less": (sealed(header_of(arrays=array_of(9, 3)), b"abcd"), "arrays of 3 bytes, the payload has 4"),
    "stray bits": (sealed(header_of(arrays=array_of(32, 1, bits=5)), b"\x20"), "those must be zero: the byte is 0x20"),
    "nan": (sealed(header_of(arrays=array_of(1, 1)), struct.pack("<f", np.nan)), "array 'x' holds NaN or infinity"),
    "infinity": (sealed(header_of(arrays=array_of(3, 1)), struct.pack("<e", -np.inf)), "'x' holds NaN or infinity"),
    "bfloat16 nan": (sealed(header_of(arrays=array_of(4, 1)), b"\xc1\x7f"), "array 'x' holds NaN or infinity"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_unpack_refuses_precisely(case):
    data, complaint = REFUSED[case]
    with pytest.raises(WireError, match=complaint):
        unpack(data)


@pytest.mark.parametrize("data", [None, "SKFD", [1, 2], np.zeros(30, np.uint8), memoryview(GOOD)[::2], {}])
def test_what_is_not_a_run_of_bytes_is_refused(data):
    with pytest.raises(WireError, match=r"unpack (reads bytes|cannot read this memoryview)"):
        unpack(data)


def test_a_released_memoryview_is_refused():
    view = memoryview(GOOD)
    view.release()
    with pytest.raises(WireError, match="released"):
        unpack(view)


def test_oversized_input_is_refused_before_it_is_read():
    assert unpack(GOOD, limit=len(GOOD))
    with pytest.raises(WireError, match=f"oversized: {len(GOOD)} bytes, the limit is {len(GOOD) - 1}"):
        unpack(GOOD, limit=len(GOOD) - 1)


@pytest.mark.parametrize("data", CORPUS)
def test_every_truncation_and_every_flipped_bit_is_refused(data):
    damaged = [data[:size] for size in range(len(data))]
    damaged += [data[:i] + bytes([data[i] ^ 1 << bit]) + data[i + 1 :] for i in range(len(data)) for bit in range(8)]
    for broken in damaged:
        with pytest.raises(WireError):
            unpack(broken)


def peak_of(data: bytes) -> tuple[int, str]:
    """Bytes that unpacking held at its worst, and the complaint if there was one.

    Every array of a packet is allocated by NumPy or as `bytes`, so tracemalloc sees all of them.
    """
    complaint = ""
    tracemalloc.start()
    try:
        unpack(data)
    except WireError as error:
        complaint = str(error)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak, complaint


@pytest.mark.parametrize("case", REFUSED)
def test_a_lie_about_size_allocates_nothing(case):
    assert peak_of(REFUSED[case][0])[0] < SLACK


@pytest.mark.parametrize("bits", [1, 4, 13])
def test_unpacking_allocates_the_size_of_the_input_and_no_more(bits):
    many = Bits(torch.ones(2**22, dtype=torch.uint8), bits=bits)
    arrays = {"bits": many, "floats": torch.ones(2**18), "halves": torch.ones(2**18, dtype=torch.bfloat16)}
    data = pack(Packet(kind="large", arrays=arrays))
    peak, complaint = peak_of(data)
    assert not complaint
    assert peak < len(data) + SLACK


def test_a_packet_of_as_many_arrays_as_there_can_be_stays_small():
    data = pack(Packet(kind="many", arrays={f"x{i:03}": torch.empty(0) for i in range(255)}))
    assert peak_of(data)[0] < 8 * SLACK


@given(st.binary(max_size=200))
@example(GOOD)
def test_arbitrary_bytes_give_a_packet_or_a_wire_error(noise):
    for data in (
        noise,
        b"SKFD\x01\x00" + noise,
        sealed(noise),
        sealed(header_of(arrays=noise)),
        sealed(header_of(), noise),
    ):
        outcome(data)


def outcome(data: bytes) -> str:
    """How unpacking ended; anything else than WireError fails the test that asked."""
    try:
        packet = unpack(data)
    except WireError as error:
        return str(error)
    assert pack(packet) == data, "accepted, but not the one encoding of its packet"
    return "accepted"


SIZES = {1: 32, 2: 64, 3: 16, 4: 16, 5: 8, 6: 16, 7: 32, 8: 64, 9: 8}  # bits of the plain dtypes, by code
EDGES = [0, 1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 97, 122, 127, 128, 129, 254, 255]


def damage(chance: random.Random, data: bytes) -> bytes:
    """One to three edits: flipped bits, edge values, cuts, insertions, wide integers, pieces of other packets."""
    out = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        at, span = chance.randrange(len(out) + 1), chance.randint(1, 16)
        match chance.randrange(8):
            case 0 | 1:
                if at < len(out):
                    out[at] ^= 1 << chance.randrange(8)
            case 2:
                out[at : at + 1] = bytes([chance.choice(EDGES)])
            case 3:
                out[at : at + span] = b""
            case 4:
                out[at:at] = chance.randbytes(span)
            case 5:
                width = chance.choice([2, 4, 8])
                out[at : at + width] = ((1 << chance.randrange(8 * width)) - chance.randrange(2)).to_bytes(width, "little")
            case 6:
                other = chance.choice(CORPUS)
                start = chance.randrange(len(other))
                out[at : at + span * chance.randrange(2)] = other[start : start + span]
            case 7:
                out[at:] = out[at : at + chance.randrange(len(out) + 1 - at)]
    return bytes(out)


def repaired_damage(chance: random.Random) -> bytes:
    """Damage below the prefix, under lengths and a checksum that hold, so that it is found by what reads the header."""
    data = chance.choice(CORPUS)
    split = PREFIX + struct.unpack_from("<H", data, 6)[0]
    header, payload = data[PREFIX:split], data[split:]
    where = chance.randrange(4)
    return sealed(damage(chance, header) if where != 1 else header, damage(chance, payload) if where in (1, 2) else payload)


def invented(chance: random.Random) -> bytes:
    """A header by the grammar, over the payload it asks for, where each piece may have been replaced by noise."""

    def mostly(honest: bytes) -> bytes:
        return honest if chance.random() < 0.97 else chance.randbytes(len(honest))

    def name(i: int) -> bytes:
        return mostly(b"\x02" + bytes([97 + i, chance.choice(b"az09_.-")]))

    rate = struct.pack("<d", chance.choice([0.5, -0.0, 1e300, np.inf, np.nan]))
    values = [b"\x01" + chance.randbytes(8), b"\x02" + rate, b"\x03\x02\x00hi", b"\x04\x01", b"\x04\x00"]
    scalars = [name(i) + mostly(chance.choice(values)) for i in range(chance.randrange(4))]
    arrays, size = [], 0
    for i in range(chance.randrange(4)):
        code, width = chance.choice([*SIZES.items(), (32, chance.randint(1, 63)), (33, chance.randint(1, 63))])
        dims = [chance.choice([0, 1, 2, 3, 5]) for _ in range(chance.randrange(5))]
        arrays.append(name(i) + mostly(bytes([code, width * (code > 31), len(dims)])) + mostly(bytes(dims)))
        size += (math.prod(dims) * width + 7) // 8
    seed = mostly(chance.choice([b"\x00", b"\x01"]))
    header = [mostly(b"\x01k"), seed, bytes(16 * (seed == b"\x01")), struct.pack("<I", chance.randrange(30))]
    header += [mostly(bytes([len(scalars)])), *scalars, mostly(bytes([len(arrays)])), *arrays]
    return sealed(b"".join(header), mostly(chance.choice([bytes(size), chance.randbytes(size)])))


def mutations(seed: int, count: int):
    """`count` mutations, four in five of them with a checksum that holds."""
    chance = random.Random(seed)
    for i in range(count):
        match i % 5:
            case 0:
                yield damage(chance, chance.choice(CORPUS))
            case 1 | 2 | 3:
                yield repaired_damage(chance)
            case 4:
                yield invented(chance)


SHALLOW = ["is not a packet", "has version", "sets flags", "truncated", "trailing bytes: its prefix", "checksum is"]
DEEP = [
    "accepted", "ends too early", "after its last array", "name of a packet's kind", "name of a packet's array",
    "is not UTF-8", "0 or 1, got", "got clients=0", "unknown type", "must be finite", "comes after",
    "its bits must be 0", "packed integers of", "dimensions, at most", "more than it needs", "describes arrays of",
    "must be zero: the byte", "NaN or infinity",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
def test_ten_thousand_mutations_raise_nothing_but_wire_errors_and_reach_every_check(seed):
    complaints = Counter(outcome(data) for data in mutations(seed, 10_000))
    for check in SHALLOW + DEEP:
        assert any(check in complaint for complaint in complaints), f"no mutation led to {check!r}"
    shallow = sum(times for complaint, times in complaints.items() if any(check in complaint for check in SHALLOW))
    assert complaints.total() - shallow >= 7_500, "too few mutations get past the checksum"


def test_mutations_allocate_no_more_than_their_size():
    for data in mutations(99, 3_000):
        peak, complaint = peak_of(data)
        assert peak < len(data) + SLACK, complaint


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1_000, 1_020))
def test_two_million_more_mutations_raise_nothing_but_wire_errors(seed):
    for data in mutations(seed, 100_000):
        outcome(data)
