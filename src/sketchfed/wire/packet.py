"""The packet, and the writing of its bytes."""

import math
import re
import struct
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from torch import Tensor

from sketchfed.errors import WireError
from sketchfed.seeds import PublicSeed, SecretSeed
from sketchfed.wire.arrays import Bits, Spec, check_array, describe, to_raw

Scalar = int | float | str | bool

MAGIC, VERSION = b"SKFD", 1
PREFIX = struct.Struct("<4sBBHQI")  # magic, version, flags, bytes of header, bytes of payload, checksum
CHECKSUM_AT = PREFIX.size - 4  # the checksum covers every byte but its own four
INT, FLOAT, TEXT, BOOL = 1, 2, 3, 4

_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,31}")
_MAX_NAMED, _MAX_HEADER = 255, 2**16 - 1


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Packet:
    """One message. Arrays and scalars are found by name, never by position; equal packets are those with equal bytes.

    Tensors are kept, not copied. `seed` says which public stream made the arrays, `clients` how many clients they stand
    for: a secure sum over n clients is one packet with `clients=n`.
    """

    kind: str
    arrays: Mapping[str, Tensor | Bits]
    seed: PublicSeed | None = None
    clients: int = 1
    scalars: Mapping[str, Scalar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_name("kind", self.kind)
        if isinstance(self.seed, SecretSeed):
            raise WireError(
                "a packet cannot carry a SecretSeed: whoever reads it could undo the noise it made. "
                "Send the PublicSeed of the sketch, or no seed."
            )
        if self.seed is not None and not isinstance(self.seed, PublicSeed):
            raise WireError(f"a packet's seed is a PublicSeed or None, got {describe(self.seed)}. Write PublicSeed(7).")
        if type(self.clients) is not int or not 1 <= self.clients < 2**32:
            raise WireError(f"a packet stands for 1 to 2^32 - 1 clients, got clients={self.clients!r}. Count them.")
        object.__setattr__(self, "arrays", _by_name("array", self.arrays))
        object.__setattr__(self, "scalars", _by_name("scalar", self.scalars))
        for name, array in self.arrays.items():
            check_array(name, array)
        self._check_header()

    def stamped(self, **scalars: Scalar) -> "Packet":
        """The same packet with more scalars; its arrays are not looked through again."""
        packet = object.__new__(Packet)
        named = {"scalars": _by_name("scalar", {**self.scalars, **scalars})}
        for field_name, value in {**self.__dict__, **named}.items():
            object.__setattr__(packet, field_name, value)
        packet._check_header()
        return packet

    def without(self, *, seed: bool = False, scalars: Collection[str] = ()) -> "Packet":
        """The same packet without its seed, or without some scalars."""
        packet = object.__new__(Packet)
        kept = {name: value for name, value in self.scalars.items() if name not in scalars}
        changed = {"seed": None if seed else self.seed, "scalars": MappingProxyType(kept)}
        for field_name, value in {**self.__dict__, **changed}.items():
            object.__setattr__(packet, field_name, value)
        return packet

    def _check_header(self) -> None:
        for name, value in self.scalars.items():
            _check_scalar(name, value)
        if (size := len(_header(self))) > _MAX_HEADER:
            raise WireError(
                f"a packet's header takes at most {_MAX_HEADER:,} bytes, this one would take {size:,}. "
                "Send long texts as uint8 arrays."
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Packet):
            return NotImplemented
        pairs = zip(self.arrays.values(), other.arrays.values(), strict=False)  # equal headers name the same arrays
        return _header(self) == _header(other) and all(np.array_equal(to_raw(a), to_raw(b)) for a, b in pairs)

    def __repr__(self) -> str:
        arrays = ", ".join(f"{name}: {Spec.of(array)}" for name, array in self.arrays.items())
        scalars = "".join(f", {name}={value!r}" for name, value in self.scalars.items())
        return f"<Packet {self.kind} of {self.clients} client(s), arrays {{{arrays}}}, seed={self.seed!r}{scalars}>"


def pack(packet: Packet) -> bytes:
    """The packet's bytes, the only ones that stand for it."""
    for name, array in packet.arrays.items():
        check_array(name, array)  # once more: a tensor may have changed since the packet was made
    header, payload = _header(packet), [to_raw(array) for array in packet.arrays.values()]
    prefix = PREFIX.pack(MAGIC, VERSION, 0, len(header), sum(map(len, payload)), 0)[:CHECKSUM_AT]
    checksum = zlib.crc32(header, zlib.crc32(prefix))
    for part in payload:
        checksum = zlib.crc32(part, checksum)
    return b"".join([prefix, struct.pack("<I", checksum), header, *payload])


def packed_size(packet: Packet) -> int:
    """How many bytes `pack` would make of a packet."""
    return PREFIX.size + len(_header(packet)) + sum(Spec.of(array).size for array in packet.arrays.values())


def _header(packet: Packet) -> bytes:
    out = bytearray(_text(packet.kind, "<B"))
    out += b"\0" if packet.seed is None else b"\1" + packet.seed.to_bytes()
    out += struct.pack("<IB", packet.clients, len(packet.scalars))
    for name, value in packet.scalars.items():
        out += _text(name, "<B") + _scalar(value)
    out += struct.pack("<B", len(packet.arrays))
    for name, array in packet.arrays.items():
        code, bits, shape = Spec.of(array)
        out += _text(name, "<B") + struct.pack("<BBB", code, bits, len(shape)) + b"".join(map(_varint, shape))
    return bytes(out)


def _scalar(value: Scalar) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<B?", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<Bq", INT, value)
    if isinstance(value, float):
        return struct.pack("<Bd", FLOAT, value)
    return struct.pack("<B", TEXT) + _text(value, "<H")


def _text(text: str, length: str) -> bytes:
    raw = text.encode()
    return struct.pack(length, len(raw)) + raw


def _varint(number: int) -> bytes:
    """LEB128: seven bits a byte, the lowest first, the top bit set on every byte but the last."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _by_name(what: str, given: Mapping[str, object]) -> Mapping[str, object]:
    """A read-only copy in the order of names, which is the order on the wire."""
    if not isinstance(given, Mapping):
        raise WireError(f"a packet's {what}s are a mapping from names, got {describe(given)}. Name them.")
    if len(given) > _MAX_NAMED:
        raise WireError(f"a packet holds at most {_MAX_NAMED} {what}s, got {len(given):,}. Stack them into fewer.")
    for name in given:
        _check_name(what, name)
    return MappingProxyType({name: given[name] for name in sorted(given)})


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise WireError(
            f"{name!r} cannot be the name of a packet's {what}: use a lower-case letter, then up to 31 of "
            "a-z, 0-9, '_', '.' and '-'."
        )


def _check_scalar(name: str, value: object) -> None:
    # Exact types: a look-alike such as numpy.float64 or an IntEnum would arrive as something else than was sent.
    if type(value) not in (int, float, str, bool):
        raise WireError(f"scalar '{name}' must be an int, float, str or bool, got {describe(value)}. Convert it first.")
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise WireError(f"scalar '{name}' must fit 64 signed bits, got {value}. Send larger numbers as text.")
    if type(value) is float and not math.isfinite(value):
        raise WireError(f"scalar '{name}' must be finite, got {value}. Leave it out instead.")
    if type(value) is str:
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise WireError(f"scalar '{name}' is not Unicode text: it has lone surrogates. Send a uint8 array.") from None
        if size > _MAX_HEADER:
            raise WireError(
                f"scalar '{name}' is a text of {size:,} bytes, at most {_MAX_HEADER:,} fit. Send it as a uint8 array."
            )
