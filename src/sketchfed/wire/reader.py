"""The reading of packets from bytes that nobody vouches for."""

import struct
import zlib
from collections.abc import Iterator

from sketchfed.errors import WireError
from sketchfed.seeds import PublicSeed
from sketchfed.wire.arrays import MAX_DIMS, MAX_WIDTH, PLAIN, SIGNED, UNSIGNED, Spec, elements, from_raw
from sketchfed.wire.packet import BOOL, CHECKSUM_AT, FLOAT, INT, MAGIC, PREFIX, TEXT, VERSION, Packet, Scalar

_SIZES = {form: struct.calcsize(form) for form in ("<B", "<H", "<I", "<q", "<d")}
LIMIT = 2**30
"""The most bytes that `unpack` reads unless told otherwise."""


def unpack(data: bytes | bytearray | memoryview, *, limit: int = LIMIT) -> Packet:
    """The packet of exactly these bytes; its arrays have memory of their own.

    Whatever the bytes are, the outcome is a packet or a `WireError`, and sizes are compared with the bytes that are
    there before anything is allocated. The checksum finds accidents, not forgery: it has no key.
    """
    view = _bytes_of(data)
    if len(view) > limit:
        raise WireError(
            f"the input is oversized: {len(view):,} bytes, the limit is {limit:,}. "
            "If you expect packets of that size, write unpack(data, limit=...)."
        )
    header, payload = _split(view)
    reader = _Reader(header)
    kind = reader.text("<B")
    seed = PublicSeed.from_bytes(bytes(reader.take(16))) if reader.flag("whether there is a seed") else None
    clients = int(reader.number("<I"))
    scalars = {name: reader.scalar(name) for name in reader.names("scalar")}
    specs = {name: reader.spec(name) for name in reader.names("array")}
    reader.finish()
    sizes = [spec.size for spec in specs.values()]
    if (due := sum(sizes)) != len(payload):
        raise WireError(
            f"the header describes arrays of {due:,} bytes, the payload has {len(payload):,}. "
            "The sender's encoder is broken, or it lies."
        )
    arrays, start = {}, 0
    for size, (name, spec) in zip(sizes, specs.items(), strict=True):
        arrays[name] = from_raw(payload[start : start + size], spec)
        start += size
    return Packet(kind=kind, arrays=arrays, seed=seed, clients=clients, scalars=scalars)


def kind_of(data: bytes | bytearray | memoryview) -> str:
    """The kind of a packet, if its prefix and checksum hold. The rest of it is not looked at: `unpack` does that."""
    return _Reader(_split(_bytes_of(data))[0]).text("<B")


def split(data: bytes | bytearray | memoryview, *, most: int) -> list[memoryview]:
    """Split bytes into the packets that follow each other in them, at most `most`. They are not unpacked yet."""
    view = _bytes_of(data)
    parts: list[memoryview] = []
    while view:
        if len(parts) == most:
            raise WireError(f"more than {most:,} packets arrived together; that many were expected at most.")
        size = PREFIX.size
        if len(view) >= PREFIX.size:
            _, _, _, header, payload, _ = PREFIX.unpack_from(view)
            size += header + payload
        if size > len(view):
            raise WireError(f"packet {len(parts)} is truncated: it takes {size:,} bytes, {len(view):,} are left.")
        parts.append(view[:size])
        view = view[size:]
    return parts


def _bytes_of(data: object) -> memoryview:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise WireError(f"unpack reads bytes, a bytearray or a memoryview, got {type(data).__name__}.")
    try:
        return memoryview(data).cast("B")
    except (TypeError, ValueError) as error:
        raise WireError(f"unpack cannot read this memoryview ({error}). Pass bytes(view).") from None


def _split(view: memoryview) -> tuple[memoryview, memoryview]:
    """Header and payload, once the prefix and the checksum hold."""
    if view[: len(MAGIC)] != MAGIC[: len(view)]:
        raise WireError(f"this is not a packet: packets begin with {MAGIC!r}, this with {bytes(view[: len(MAGIC)])!r}.")
    if len(view) < PREFIX.size:
        raise WireError(
            f"the packet is truncated: its prefix takes {PREFIX.size} bytes, {len(view)} arrived. Receive it again."
        )
    _, version, flags, header, payload, checksum = PREFIX.unpack_from(view)
    if version != VERSION:
        raise WireError(
            f"the packet has version {version}, this sketchfed reads version {VERSION}. Use the same sketchfed on both sides."
        )
    if flags:
        raise WireError(f"the packet sets flags {flags:#04x}; version {VERSION} knows none, so they must be 0.")
    promised = PREFIX.size + header + payload
    if len(view) < promised:
        raise WireError(
            f"the packet is truncated: its prefix promises {promised:,} bytes, {len(view):,} arrived. Receive it again."
        )
    if len(view) > promised:
        raise WireError(
            f"the packet has {len(view) - promised:,} trailing bytes: its prefix promises {promised:,}, "
            f"{len(view):,} arrived. Pass one packet at a time."
        )
    found = zlib.crc32(view[PREFIX.size :], zlib.crc32(view[:CHECKSUM_AT]))
    if found != checksum:
        raise WireError(
            f"the packet's checksum is {checksum:#010x}, its bytes give {found:#010x}: it was "
            "damaged on the way. Receive it again."
        )
    return view[PREFIX.size : PREFIX.size + header], view[PREFIX.size + header :]


class _Reader:
    """Reads a header from its start and never past its end."""

    def __init__(self, header: memoryview) -> None:
        self._header, self._at = header, 0

    def take(self, count: int) -> memoryview:
        left = len(self._header) - self._at
        if count > left:
            raise WireError(
                f"the header ends too early: {count:,} bytes are due at its byte {self._at:,}, "
                f"{left:,} are left. The sender's encoder is broken, or it lies."
            )
        self._at += count
        return self._header[self._at - count : self._at]

    def number(self, form: str) -> int | float:
        return struct.unpack(form, self.take(_SIZES[form]))[0]  # type: ignore[no-any-return]

    def byte(self) -> int:
        return self.take(1)[0]

    def flag(self, what: str) -> bool:
        if (value := self.byte()) > 1:
            raise WireError(f"{what} is written as 0 or 1, got {value}.")
        return value == 1

    def text(self, length: str) -> str:
        try:
            return str(self.take(int(self.number(length))), "utf-8")
        except UnicodeDecodeError as error:
            raise WireError(f"a text in the header, ending at its byte {self._at:,}, is not UTF-8: {error.reason}.") from None

    def varint(self) -> int:
        number = 0
        for place in range(7):
            byte = self.byte()
            number |= (byte & 127) << 7 * place
            if byte < 128:
                if place and not byte:
                    raise WireError(f"the dimension {number} is written in {place + 1} bytes, more than it needs.")
                return number
        raise WireError("a dimension is written in more than 7 bytes: it is absurd, no array has 2^49 elements.")

    def names(self, what: str) -> Iterator[str]:
        """Each name in turn; whoever iterates reads what belongs to it before asking for the next."""
        last = ""
        for _ in range(self.byte()):
            name = self.text("<B")
            if name <= last:
                raise WireError(f"{what} {name!r} comes after {last!r}: names are unique and in increasing order.")
            yield name
            last = name

    def scalar(self, name: str) -> Scalar:
        tag = self.byte()
        if tag == BOOL:
            return self.flag(f"the bool {name!r}")
        if tag == INT:
            return self.number("<q")
        if tag == FLOAT:
            return self.number("<d")
        if tag == TEXT:
            return self.text("<H")
        raise WireError(f"scalar {name!r} has the unknown type {tag}; version {VERSION} knows {INT} to {BOOL}.")

    def spec(self, name: str) -> Spec:
        code, bits, dims = self.take(3)
        if code in PLAIN and bits:
            raise WireError(f"array {name!r} is not of packed integers, so its bits must be 0, got {bits}.")
        if code in (UNSIGNED, SIGNED) and not 1 <= bits <= MAX_WIDTH:
            raise WireError(f"array {name!r} is of packed integers of {bits} bits; they have 1 to {MAX_WIDTH}.")
        if code not in (*PLAIN, UNSIGNED, SIGNED):
            raise WireError(
                f"array {name!r} has the unknown type {code}; version {VERSION} knows 1 to {max(PLAIN)}, "
                f"{UNSIGNED} and {SIGNED}."
            )
        if dims > MAX_DIMS:
            raise WireError(f"array {name!r} has {dims} dimensions, at most {MAX_DIMS} are allowed.")
        shape = tuple(self.varint() for _ in range(dims))
        elements(shape)
        return Spec(code, bits, shape)

    def finish(self) -> None:
        if left := len(self._header) - self._at:
            raise WireError(f"the header has {left:,} trailing bytes after its last array.")
