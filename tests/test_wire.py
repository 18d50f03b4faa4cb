"""What packets say, cost and refuse to say. Hostile bytes are the matter of test_wire_fuzz.py."""

import ast
import os
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sketchfed.errors import WireError
from sketchfed.seeds import PublicSeed, SecretSeed
from sketchfed.wire import Bits, Packet, pack, unpack

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
DTYPES += [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
GOLDEN = Path(__file__).parent / "golden" / "wire"

names = st.from_regex(r"[a-z][a-z0-9_.-]{0,31}", fullmatch=True)
shapes = st.one_of(st.lists(st.integers(0, 6), max_size=4), st.lists(st.integers(0, 2), max_size=8)).map(tuple)
seeds = st.none() | st.integers(0, 2**64 - 1).map(PublicSeed)
scalars = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=40),
    st.booleans(),
)


@st.composite
def tensors(draw) -> Tensor:
    """Random bits as any dtype, other than those that spell NaN or infinity."""
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(shapes)
    noise = torch.randint(256, (*shape, dtype.itemsize), generator=generator(draw), dtype=torch.uint8)
    values = noise.view(dtype).reshape(shape)
    return torch.where(values.isfinite(), values, torch.zeros((), dtype=dtype))


@st.composite
def packed_integers(draw) -> Bits:
    bits, signed, shape = draw(st.integers(1, 63)), draw(st.booleans()), draw(shapes)
    start = -(2 ** (bits - 1)) if signed else 0
    values = torch.randint(2**bits if bits < 63 else 2**63 - 1, shape, generator=generator(draw)) + start
    return Bits(values, bits=bits, signed=signed)


def generator(draw) -> torch.Generator:
    return torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))


arrays = tensors() | packed_integers()
packets = st.builds(
    Packet,
    kind=names,
    arrays=st.dictionaries(names, arrays, max_size=4),
    seed=seeds,
    clients=st.integers(1, 2**32 - 1),
    scalars=st.dictionaries(names, scalars, max_size=4),
)


@given(packets)
@settings(deadline=None)
def test_what_is_unpacked_is_what_was_packed(packet):
    data = pack(packet)
    assert unpack(data) == packet
    assert unpack(bytearray(data)) == unpack(memoryview(data)) == packet
    assert pack(unpack(data)) == data


@given(arrays, names, names, seeds)
@settings(deadline=None)
def test_one_array_costs_at_most_128_bytes_more_than_itself(array, kind, name, seed):
    own = (array.numel() * array.dtype.itemsize) if isinstance(array, Tensor) else len(array.packed)
    assert len(pack(Packet(kind=kind, arrays={name: array}, seed=seed, clients=2**32 - 1))) - own <= 128


def test_the_longest_names_and_the_longest_shape_still_cost_less_than_128_bytes():
    huge = torch.empty(0, 128, 128, 128, 128, 128, 2**12, 1)
    packet = Packet(kind="k" * 32, arrays={"n" * 32: huge}, seed=PublicSeed(7), clients=2**32 - 1)
    assert len(pack(packet)) == 126


def test_a_sketch_with_its_usual_scalars_stays_within_128_bytes_too():
    facts = {"round": 12, "dim": 1_199_882}
    packet = Packet(kind="rand_proj_spatial", arrays={"values": torch.ones(4_096)}, seed=PublicSeed(7), scalars=facts)
    assert len(pack(packet)) - 4 * 4_096 <= 128


@pytest.mark.parametrize("bits", range(1, 64))
def test_an_integer_of_any_width_costs_its_width(bits):
    count = 1_000 + bits
    none, some = (Bits(torch.zeros(size, dtype=torch.int64), bits=bits) for size in (0, count))
    assert len(some.packed) == -(-count * bits // 8)
    # One more byte in the header, because a dimension of 1,000 takes two bytes and a dimension of 0 takes one.
    assert len(pack(packet_of(some))) - len(pack(packet_of(none))) == len(some.packed) + 1


def test_thirteen_bit_coordinates_cost_thirteen_bits():
    assert len(Bits(torch.arange(8_000), bits=13).packed) == 13_000


def packet_of(array, **facts) -> Packet:
    return Packet(kind="test", arrays={"x": array}, **facts)


def golden_packets() -> dict[str, Packet]:
    seed = PublicSeed(7).child("round", 3)
    grid = torch.arange(-6, 6).reshape(3, 4)
    coordinates = Bits(torch.arange(0, 8_192, 911), bits=13)
    levels = Bits(torch.arange(-4, 4).reshape(2, 4), bits=3, signed=True)
    return {
        "empty": Packet(kind="empty", arrays={}),
        "sketched": Packet(kind="sketched", arrays={"values": torch.arange(8) / 4 - 1}, seed=seed, clients=20),
        "dtypes": Packet(kind="dtypes", arrays={str(d).removeprefix("torch."): grid.abs().to(d) for d in DTYPES}),
        "negative": Packet(kind="negative", arrays={str(d).removeprefix("torch."): grid.to(d) for d in DTYPES[:-1]}),
        "bits": Packet(kind="bits", arrays={"at": coordinates, "levels": levels, "wide": Bits(grid[2] << 50, bits=63)}),
        "scalars": Packet(kind="s", arrays={}, scalars={"b": True, "f": -0.1, "i": -(2**63), "t": "πακέτο", "e": ""}),
        "shapes": Packet(kind="shapes", arrays={"none": torch.empty(3, 0, 300), "one": torch.tensor(0.5)}, clients=7),
    }


@pytest.mark.parametrize("name", golden_packets())
def test_version_1_never_changes(name):
    """The stored bytes are the format. To add a packet, add it above and run once with SKETCHFED_WRITE_GOLDEN=1: it
    writes files that are missing and leaves the others as they are. A changed layout is a new version with new files.
    """
    path, packet = GOLDEN / f"{name}.bin", golden_packets()[name]
    if os.environ.get("SKETCHFED_WRITE_GOLDEN") and not path.exists():
        path.write_bytes(pack(packet))
    assert pack(packet) == path.read_bytes()
    assert unpack(path.read_bytes()) == packet


def test_every_stored_packet_is_tested():
    assert {path.stem for path in GOLDEN.iterdir()} == set(golden_packets())


def test_the_layout_is_the_documented_one():
    """The table of docs/wire.md, written down a second time without the library."""
    seed = PublicSeed(7)
    facts = {"rate": 0.5, "note": "é", "round": -2, "dry": True}
    arrays = {"v": torch.tensor([[1.0], [-2.0]], dtype=torch.bfloat16), "at": Bits(torch.full((300,), 5), bits=3)}
    header = b"\x04eden" + b"\x01" + seed.to_bytes() + struct.pack("<I", 20)
    header += b"\x04" + b"\x03dry\x04\x01" + b"\x04note\x03\x02\x00\xc3\xa9"
    header += b"\x04rate\x02" + struct.pack("<d", 0.5) + b"\x05round\x01" + struct.pack("<q", -2)
    header += b"\x02" + b"\x02at\x20\x03\x01\xac\x02" + b"\x01v\x04\x00\x02\x02\x01"
    payload = sum(5 << 3 * i for i in range(300)).to_bytes(113, "little") + b"\x80\x3f\x00\xc0"
    prefix = b"SKFD\x01\x00" + struct.pack("<HQ", len(header), len(payload))
    checksum = struct.pack("<I", zlib.crc32(prefix + header + payload))
    packet = Packet(kind="eden", arrays=arrays, seed=seed, clients=20, scalars=facts)
    assert pack(packet) == prefix + checksum + header + payload


def test_the_order_in_which_arrays_were_given_does_not_matter():
    one, two = torch.ones(3), torch.zeros(2)
    first = Packet(kind="test", arrays={"a": one, "b": two}, scalars={"x": 1, "y": 2})
    second = Packet(kind="test", arrays={"b": two, "a": one}, scalars={"y": 2, "x": 1})
    assert first == second
    assert pack(first) == pack(second)


@pytest.mark.parametrize(
    "other",
    [
        packet_of(torch.tensor([-0.0, 1.0]), scalars={"n": 1}),
        packet_of(torch.tensor([0.0, 1.0], dtype=torch.float64), scalars={"n": 1}),
        packet_of(torch.tensor([[0.0, 1.0]]), scalars={"n": 1}),
        packet_of(torch.tensor([0.0, 1.0]), scalars={"n": 1.0}),
        packet_of(torch.tensor([0.0, 1.0]), scalars={"n": True}),
        packet_of(torch.tensor([0.0, 1.0]), scalars={"n": 1}, clients=2),
        packet_of(torch.tensor([0.0, 1.0]), scalars={"n": 1}, seed=PublicSeed(1)),
        Packet(kind="test", arrays={}),
        "test",
    ],
)
def test_packets_with_other_bytes_are_not_equal(other):
    assert packet_of(torch.tensor([0.0, 1.0]), scalars={"n": 1}) != other


def test_tensors_of_any_stride_history_and_sign_are_sent_as_their_values():
    grid = torch.arange(12.0).reshape(3, 4)
    conjugate = torch.complex(grid, grid).conj().imag  # a lazily negated view
    for odd in (grid.T, grid[:, ::2], grid[0].expand(5, 4), grid.clone().requires_grad_() * 2, conjugate):
        assert torch.equal(unpack(pack(packet_of(odd))).arrays["x"], odd.detach())


def test_what_arrives_owns_writable_memory():
    data = bytearray(pack(packet_of(torch.ones(3))))
    values = unpack(data).arrays["x"]
    data[-4:] = b"\0\0\0\0"
    values += 1
    assert values.tolist() == [2, 2, 2]


def test_packed_integers_arrive_packed_and_expand_on_demand():
    levels = Bits(torch.tensor([[-4, 3], [0, -1]]), bits=3, signed=True)
    arrived = unpack(pack(packet_of(levels))).arrays["x"]
    assert arrived == levels
    assert len(arrived.packed) == 2
    assert arrived.values.dtype == torch.int64
    assert arrived.values.tolist() == [[-4, 3], [0, -1]]


def test_booleans_travel_as_one_bit():
    mask = torch.tensor([True, False, True])
    assert Bits(mask, bits=1).values.bool().equal(mask)


def test_a_packet_cannot_be_changed():
    packet = packet_of(torch.ones(1), scalars={"n": 1})
    for change in (lambda: packet.arrays.clear(), lambda: setattr(packet, "clients", 2)):
        with pytest.raises(AttributeError):
            change()


def test_a_packet_shows_what_it_is_and_not_its_numbers():
    packet = Packet(kind="top_k", arrays={"at": Bits(torch.zeros(2, 9).int(), bits=13), "v": torch.ones(999)}, clients=3)
    assert repr(packet) == "<Packet top_k of 3 client(s), arrays {at: 13-bit[2, 9], v: float32[999]}, seed=None>"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"kind": "Sketched"}, "'Sketched' cannot be the name of a packet's kind"),
        ({"kind": "k" * 33}, "up to 31"),
        ({"kind": "sketched\n"}, "cannot be the name"),
        ({"kind": 3}, "3 cannot be the name"),
        ({"seed": SecretSeed()}, "cannot carry a SecretSeed: whoever reads it could undo the noise"),
        ({"seed": 7}, r"got int. Write PublicSeed\(7\)"),
        ({"clients": 0}, "stands for 1 to 2\\^32 - 1 clients, got clients=0"),
        ({"clients": 2**32}, "got clients=4294967296"),
        ({"clients": True}, "got clients=True"),
        ({"clients": 2.0}, r"got clients=2\.0"),
        ({"arrays": [torch.ones(1)]}, "arrays are a mapping from names, got list"),
        ({"arrays": {"X": torch.ones(1)}}, "'X' cannot be the name of a packet's array"),
        ({"arrays": {"x": [1.0]}}, "array 'x' is list"),
        ({"arrays": {"x": torch.ones(1, dtype=torch.complex64)}}, "a torch.complex64 tensor; a packet carries"),
        ({"arrays": {"x": torch.tensor([True])}}, r"wrap other integers and booleans in Bits\(values, bits="),
        ({"arrays": {"x": torch.ones(2).to_sparse()}}, "array 'x' is not a dense tensor with data"),
        ({"arrays": {"x": torch.ones(2, device="meta")}}, "its device meta"),
        ({"arrays": {"x": torch.ones([1] * 9)}}, "at most 8 dimensions, got 9"),
        ({"arrays": {"x": torch.empty(0, 2**48)}}, "the shape .* is absurd"),
        ({"arrays": {f"x{i}": torch.ones(1) for i in range(256)}}, "at most 255 arrays, got 256"),
        ({"scalars": {f"x{i}": i for i in range(256)}}, "at most 255 scalars, got 256"),
        ({"scalars": {"n": 2**63}}, "'n' must fit 64 signed bits, got 9223372036854775808"),
        ({"scalars": {"n": float("nan")}}, "'n' must be finite, got nan"),
        ({"scalars": {"n": float("-inf")}}, "'n' must be finite, got -inf"),
        ({"scalars": {"n": None}}, "'n' must be an int, float, str or bool, got NoneType"),
        ({"scalars": {"n": torch.tensor(1)}}, "got a torch.int64 tensor. Convert it first"),
        ({"scalars": {"n": "\ud800"}}, "'n' is not Unicode text"),
        ({"scalars": {"n": "x" * 70_000}}, "a text of 70,000 bytes, at most 65,535 fit"),
        ({"scalars": {"m": "x" * 40_000, "n": "x" * 40_000}}, "header takes at most 65,535 bytes, this one would"),
    ],
)
def test_a_packet_that_could_not_be_sent_is_refused_when_it_is_made(change, complaint):
    with pytest.raises(WireError, match=complaint):
        replace(packet_of(torch.ones(2)), **change)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_are_refused_when_made_and_when_packed(dtype, poison):
    values = torch.zeros(1_000, dtype=dtype)
    packet = packet_of(values)
    values[777] = poison
    with pytest.raises(WireError, match="array 'x' holds NaN or infinity"):
        packet_of(values)
    with pytest.raises(WireError, match="array 'x' holds NaN or infinity"):
        pack(packet)


@pytest.mark.parametrize(
    ("values", "width", "complaint"),
    [
        ([8_192], {"bits": 13}, r"13 unsigned bits hold 0 to 8,191, got values from 8,192 to 8,192. Use bits=14\."),
        ([-1, 5], {"bits": 3}, "got values from -1 to 5. Use bits=4, signed=True"),
        (
            [-4, 4],
            {"bits": 3, "signed": True},
            "3 signed bits hold -4 to 3, got values from -4 to 4. Use bits=4, signed",
        ),
        ([-9, -8], {"bits": 4, "signed": True}, "Use bits=5, signed=True"),
        ([-(2**63)], {"bits": 63, "signed": True}, "Send an int64 tensor"),
        ([1], {"bits": 0}, "1 to 63 bits, got bits=0"),
        ([1], {"bits": 64}, "1 to 63 bits, got bits=64"),
        ([1], {"bits": True}, "got bits=True"),
        ([0.5], {"bits": 4}, "a tensor of integers, got a torch.float32 tensor"),
    ],
)
def test_integers_that_do_not_fit_are_refused_with_the_width_that_would(values, width, complaint):
    with pytest.raises(WireError, match=complaint):
        Bits(torch.tensor(values), **width)


def test_packed_bytes_of_the_wrong_size_or_with_stray_bits_are_refused():
    assert Bits.from_packed(b"\x1f", shape=(5,), bits=1).values.tolist() == [1, 1, 1, 1, 1]
    with pytest.raises(WireError, match="5 integers of 3 bits take 2 bytes, got 1"):
        Bits.from_packed(b"\x00", shape=(5,), bits=3)
    with pytest.raises(WireError, match="leave 3 high bits of the last byte unused, and those must be zero"):
        Bits.from_packed(b"\x3f", shape=(5,), bits=1)
    with pytest.raises(WireError, match="absurd"):
        Bits.from_packed(b"", shape=(-1,), bits=1)


def test_nothing_in_the_project_pickles():
    picklers = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
    for path in (Path(__file__).parents[1] / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert picklers.isdisjoint(module.split(".")[0] for module in modules), f"{path}:{node.lineno}"
            assert not isinstance(node, ast.Attribute) or ast.unparse(node) not in ("torch.save", "torch.load"), path
