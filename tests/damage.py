"""Damage for fuzzing: of bytes, and of trees that become text or bytes again under checksums that hold."""

import random
from typing import Any

EDGES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 255, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**400, 0.0, -0.0, 0.5, 1e-320, 1e-160,
    1e300, -1e300, float("nan"), float("inf"), "", "a", "a" * 5_000, "é\u0000", "\ud800", [], {}, [[]], [1] * 300, {"a": 1},
]  # fmt: skip


def spoiled(chance: random.Random, data: bytes) -> bytes:
    """One to three edits of bytes: flipped bits, edge values, cuts, insertions, copies, and now and then something deep."""
    out = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        at, span = chance.randrange(len(out) + 1), chance.randint(1, 40)
        match chance.randrange(8):
            case 0 | 1:
                if at < len(out):
                    out[at] ^= 1 << chance.randrange(8)
            case 2:
                out[at : at + 1] = bytes([chance.choice([0, 9, 10, 34, 44, 48, 57, 91, 92, 123, 125, 127, 128, 255])])
            case 3:
                out[at : at + span] = b""
            case 4:
                out[at:at] = chance.randbytes(span)
            case 5:
                out[at : at + 8] = ((1 << chance.randrange(64)) - chance.randrange(2)).to_bytes(8, "little")
            case 6:
                start = chance.randrange(len(out) + 1)
                out[at : at + span * chance.randrange(2)] = out[start : start + span]
            case 7:
                if chance.random() < 0.1:
                    out[at:at] = chance.choice([b"[", b'{"a":', b"(", b"9"]) * 20_000
                else:
                    del out[at:]
    return bytes(out)


def changed(chance: random.Random, value: Any, edges: list[Any] = EDGES) -> Any:
    """A tree of dicts and lists in which one thing is another: a value, a key, or what is there."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        out, key = dict(value), chance.choice(list(value))
        match chance.randrange(10):
            case 0:
                del out[key]
            case 1:
                out[chance.choice(["", "new", key * 2])] = out[key]
            case _:
                out[key] = changed(chance, out[key], edges)
        return out
    if isinstance(value, list) and value and chance.random() < 0.8:
        out_list, at = list(value), chance.randrange(len(value))
        match chance.randrange(8):
            case 0:
                del out_list[at]
            case 1:
                out_list.insert(at, chance.choice(value))
            case _:
                out_list[at] = changed(chance, value[at], edges)
        return out_list
    if isinstance(value, int) and not isinstance(value, bool) and chance.random() < 0.3:
        return value + chance.choice([-1, 1, 2**20]) if abs(value) < 2**60 else 0
    return chance.choice(edges)
