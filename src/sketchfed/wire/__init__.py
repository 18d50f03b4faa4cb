"""Packets as bytes: the only place that turns what clients and servers say into bytes, and back.

A packet is a kind, named arrays, named scalars, the public seed it was made with, and the number of clients it stands
for. Every packet has one encoding, the same on every platform; `docs/wire.md` has the layout byte by byte. `unpack`
expects hostile bytes: it raises `WireError` and nothing else, and allocates no more than the bytes it was given.
"""

from sketchfed.wire.arrays import Bits
from sketchfed.wire.expect import bits_named, expect_kind, number_named, tensor_named
from sketchfed.wire.packet import Packet, Scalar, pack, packed_size
from sketchfed.wire.reader import LIMIT, kind_of, split, unpack

__all__ = [
    "LIMIT",
    "Bits",
    "Packet",
    "Scalar",
    "bits_named",
    "expect_kind",
    "kind_of",
    "number_named",
    "pack",
    "packed_size",
    "split",
    "tensor_named",
    "unpack",
]
