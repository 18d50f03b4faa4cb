"""Replies as a client that is broken or lies might send them."""

import math
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from random import Random

import torch
from torch import Tensor

from sketchfed.wire import Bits, Packet, pack, unpack

Spoil = Callable[[bytes], bytes | None]
"""Returns the spoiled reply. None if this way of spoiling does not apply to it."""


def _packet(edit: Callable[[Packet], Packet]) -> Spoil:
    return lambda reply: pack(edit(unpack(reply)))


def _arrays(edit: Callable[[Tensor | Bits], Tensor | Bits]) -> Callable[[Packet], Packet]:
    return lambda packet: replace(packet, arrays={name: edit(array) for name, array in packet.arrays.items()})


def _longer(array: Tensor | Bits) -> Tensor | Bits:
    if isinstance(array, Bits):
        return Bits(torch.zeros(array.shape[0] + 1).long(), bits=array.bits)
    return torch.zeros(array.numel() + 1, dtype=array.dtype)


def _not_finite(reply: bytes) -> bytes | None:
    """NaN as the last number, under a checksum that holds."""
    last = list(unpack(reply).arrays.values())[-1:]
    if not last or isinstance(last[0], Bits) or last[0].dtype != torch.float32:
        return None
    body = reply[:-4] + struct.pack("<f", math.nan)
    return body[:16] + struct.pack("<I", zlib.crc32(body[20:], zlib.crc32(body[:16]))) + body[20:]


def _wild(reply: bytes) -> bytes | None:
    packet = unpack(reply)
    if any(isinstance(array, Bits) or not array.is_floating_point() for array in packet.arrays.values()):
        return None
    return pack(_arrays(lambda array: torch.full(tuple(array.shape), 1e30))(packet))


SPOILED: dict[str, Spoil] = {
    "garbage": lambda reply: Random(1).randbytes(len(reply)),
    "nothing": lambda reply: b"",
    "torn": lambda reply: reply[:-1],
    "another shape": _packet(_arrays(_longer)),
    "another type": _packet(_arrays(lambda array: torch.zeros(tuple(array.shape), dtype=torch.float64))),
    "no arrays": _packet(lambda packet: replace(packet, arrays={})),
    "another kind": _packet(lambda packet: replace(packet, kind="other")),
    "another round": _packet(lambda packet: packet.stamped(round=7)),
    "many clients": _packet(lambda packet: replace(packet, clients=1_000)),
    "not a number": _not_finite,
    "1e30": _wild,
}


def spoiled_in_turn(reply: bytes, turn: int, *, masked: bool = False) -> bytes:
    """Return the reply, spoiled in one of the ways that apply to it. Other turns take other ways.

    Nobody reads the round and the number of clients in the header of a masked reply. Its terms say to which sum it belongs.
    """
    ways = [spoil for way, spoil in SPOILED.items() if not masked or way not in ("another round", "many clients")]
    applied = [spoiled for spoil in ways if (spoiled := spoil(reply)) is not None]
    return applied[turn % len(applied)]
