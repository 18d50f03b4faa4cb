"""Packets of secure sums in which something was altered. Their checksums hold, so that alterations get past the wire."""

import random
from collections.abc import Sequence

import torch

from sketchfed.errors import WireError
from sketchfed.secure.messages import laid_out, taken_apart
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Bits, Packet

EDGES = [
    0,
    1,
    2,
    3,
    7,
    8,
    127,
    255,
    256,
    2**16 - 1,
    2**20,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
]
BLOCKS = (1, 4, 8, 16, 32, 64, 112, 160)
LAYOUTS = [(0, 64), (0, 112), (32, 32), (64, 112), (0, 32), (104, 160), (136, 160)]
"""Bytes before the flags, and bytes of a part, in bodies that hold parts of some neighbours."""
DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64, torch.bfloat16)
KINDS = [
    f"secure.{stage}{suffix}"
    for stage in ("keys", "shares", "masked", "consent", "unmask", "recover")
    for suffix in ("", ".reply")
]


def altered(chance: random.Random, packet: Packet, others: Sequence[Packet], names: Sequence[int]) -> Packet:
    """The packet with one to three alterations, or one of the others. `names` are the clients whose parts are in its body."""
    if chance.random() < 0.05:
        return chance.choice(others)
    arrays, about = dict(packet.arrays), {"kind": packet.kind}
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        match chance.randrange(12):
            case 0:
                about |= _about(chance)
            case 1:
                _rearranged(chance, arrays)
            case 2:
                name = chance.choice(sorted(arrays) or ["body"])
                arrays[name] = chance.choice(others).arrays.get(name, torch.zeros(3, dtype=torch.uint8))
            case 3 | 4 if packed := [name for name, array in arrays.items() if isinstance(array, Bits)]:
                arrays[packed[0]] = _other_bits(chance, arrays[packed[0]])
            case case:
                plain = [name for name, array in arrays.items() if getattr(array, "dtype", None) == torch.uint8]
                if plain:
                    name = "body" if "body" in plain and chance.random() < 0.95 else chance.choice(plain)
                    data, other = _bytes(arrays[name]), _bytes(chance.choice(others).arrays.get(name))
                    parted = _parted(chance, data, other, names) if case > 6 else None
                    arrays[name] = _tensor(_edited(chance, data, other) if parted is None else parted)
    return Packet(arrays=arrays, **about)


def _about(chance: random.Random) -> dict[str, object]:
    return chance.choice(
        [
            {"kind": chance.choice([*KINDS, "begin", "integers"])},
            {"clients": chance.choice([2, 2**32 - 1])},
            {"seed": PublicSeed(7)},
            {"scalars": {"round": chance.choice([-1, 0, 2**63 - 1, 0.5, "", True])}},
        ]
    )


def _rearranged(chance: random.Random, arrays: dict[str, torch.Tensor | Bits]) -> None:
    """Drop, add, swap, retype or reshape an array."""
    name = chance.choice(sorted(arrays) or ["body"])
    match chance.randrange(5):
        case 0:
            arrays.pop(name, None)
        case 1:
            arrays["more"] = torch.zeros(chance.randrange(4), dtype=torch.uint8)
        case 2:
            other = chance.choice(sorted(arrays) or ["body"])
            if name in arrays and other in arrays:
                arrays[name], arrays[other] = arrays[other], arrays[name]
        case 3:
            given = torch.zeros(chance.randrange(40)) if isinstance(arrays.get(name), Bits | None) else arrays[name]
            arrays[name] = given.to(chance.choice(DTYPES))
        case 4:
            array = arrays.get(name)
            if isinstance(array, torch.Tensor):
                arrays[name] = (
                    array.reshape(chance.choice([(-1, 1), (1, -1), array.shape])) if array.numel() else array.reshape(0, 5)
                )


def _other_bits(chance: random.Random, given: Bits | torch.Tensor) -> Bits | torch.Tensor:
    """Packed integers of another width, sign, shape, number or value."""
    values = given.values
    match chance.randrange(6):
        case 0:
            return Bits(values, bits=min(given.bits + chance.randint(1, 40), 63))
        case 1:
            return Bits(values, bits=63, signed=True)
        case 2:
            return Bits(values[: chance.randrange(len(values) + 1)] if values.ndim else values, bits=given.bits)
        case 3:
            return Bits(values.repeat(chance.choice([2, 3, 50])) if values.ndim == 1 else values, bits=given.bits)
        case 4:
            return Bits(values.reshape(1, -1) if values.numel() else values, bits=given.bits)
    wild = values.clone().flatten()
    if wild.numel():
        wild[chance.randrange(wild.numel())] = chance.choice(EDGES) % 2**given.bits
    return Bits(wild, bits=given.bits)


def _edited(chance: random.Random, data: bytes, other: bytes) -> bytes:
    """Other bytes: flipped bits, numbers at the edges, cuts, growth, and blocks from elsewhere."""
    out = bytearray(data)
    width = chance.choice(BLOCKS)
    at = chance.randrange(len(out) + 1) if chance.random() < 0.7 else chance.randrange(min(len(out), 12) + 1)
    match chance.randrange(9):
        case 0 | 1 | 2:
            if at < len(out):
                out[at] ^= 1 << chance.randrange(8)
        case 3:
            size = chance.choice([1, 2, 4, 4, 8])
            out[at : at + size] = (chance.choice(EDGES) % 256**size).to_bytes(size, "little")
        case 4:
            out[at : at + width] = chance.choice([bytes(width), b"\xff" * width, chance.randbytes(width)])
        case 5:
            del out[at : chance.choice([len(out), at + width])]
        case 6:
            out[at:at] = chance.choice([bytes(width), chance.randbytes(width), bytes(out[:width])])
        case 7:
            out[at : at + width] = other[at : at + width]
        case 8:
            start = chance.randrange(len(out) + 1)
            out[at : at + width], out[start : start + width] = out[start : start + width], out[at : at + width]
    return bytes(out)


def _parted(chance: random.Random, data: bytes, other: bytes, names: Sequence[int]) -> bytes | None:
    """The parts of some clients: fewer, others', swapped or spoiled ones, under flags that fit. None if there are no parts."""
    for before, width in LAYOUTS:
        try:
            parts = taken_apart(data[before:], names, width)
        except WireError:
            continue
        if not parts:
            continue
        one, two = chance.choice(list(parts)), chance.choice(names)
        match chance.randrange(5):
            case 0:
                for name in chance.sample(list(parts), chance.randint(1, len(parts))):
                    del parts[name]
            case 1:
                parts[one], parts[two] = parts.get(two, parts[one]), parts[one]
            case 2:
                parts[one] = _edited(chance, parts[one], other)[:width].ljust(width, b"\0")
            case 3:
                parts[two] = other[before + 1 :][:width].ljust(width, b"\0")
            case 4:
                parts = {name: _edited(chance, part, other)[:width].ljust(width, b"\0") for name, part in parts.items()}
        return data[:before] + laid_out(names, parts)
    return None


def _bytes(array: object) -> bytes:
    return array.numpy().tobytes() if isinstance(array, torch.Tensor) and array.dtype == torch.uint8 else b""


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
