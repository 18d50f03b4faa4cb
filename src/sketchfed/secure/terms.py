"""What all parties of one secure sum agree on before it begins."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch

from sketchfed.caches import cached
from sketchfed.errors import InputError, SecureSumError, WireError
from sketchfed.secure.graph import check_degree, ring_neighbours, ring_order
from sketchfed.wire import Bits, Packet, expect_kind, pack, tensor_named

KIND = "secure.keys"
_FORM = struct.Struct("<B16sQQBIIII")
VERSION = 2
"""The version of the protocol. Version 1 bound nothing to the keys that clients had seen."""
_MOST_ID, _MOST_ROUND, _MOST_SIZE, _MOST_CLIENTS = 2**62, 2**63, 2**31 - 1, 10**6


class Gap(NamedTuple):
    """A stretch of the ring in which too few clients survive."""

    width: int
    left: int
    needed: int


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The public parameters of one secure sum; every party checks them, and every key and signature is bound to their digest.

    `clients` are the invited ones, ascending. Each adds `size` integers modulo 2^`bits`. A client shares its secrets with
    `neighbours` others (k); any `threshold` of its neighbourhood of k + 1, itself included, can open one of them. The sum is
    abandoned rather than opened if fewer than `least` clients are in it.

    A threshold must be above half of the neighbourhood. `threshold` members of the `committee` of k + 1 clients must sign the
    list of survivors before anybody helps to open the sum. A server that lies, with c members in league, does not get two lists
    signed as long as 2·threshold > k + 1 + c (the condition of Bonawitz et al. 2017, Thm 6.5, where the graph is complete and
    k + 1 is all clients).
    """

    session: bytes
    round: int
    clients: tuple[int, ...]
    size: int
    bits: int
    neighbours: int
    threshold: int
    least: int
    spread: int = 1
    """Of any neighbours/2 clients in a row on the ring, this many must be in the sum. It says nothing in a complete graph."""

    def __post_init__(self) -> None:
        if not isinstance(self.session, bytes) or len(self.session) != 16:
            raise InputError(
                f"a session is named by 16 bytes, got {self.session!r}. Draw them once a run: secrets.token_bytes(16)."
            )
        _whole("round", self.round, 0, _MOST_ROUND - 1)
        _check_clients(self.clients)
        _whole("size", self.size, 1, _MOST_SIZE)
        _whole("bits", self.bits, 8, 32)
        check_degree(self.neighbours, len(self.clients))
        most, half = self.neighbours + 1, (self.neighbours + 1) / 2
        if type(self.threshold) is not int or not half < self.threshold <= most:
            raise InputError(
                f"a threshold lies above half of the neighbourhood of {most} clients and is at most all of it, got "
                f"threshold={self.threshold!r}: with half or less a lying server can open both secrets of a client. "
                f"Use {most // 2 + 1} to {most}."
            )
        _whole("least", self.least, self.threshold, len(self.clients))
        _whole("spread", self.spread, 1, max(self.neighbours // 2, 1))

    def __getstate__(self) -> dict[str, object]:
        return {part.name: getattr(self, part.name) for part in fields(self)}  # what is computed from them stays behind

    @cached_property
    def packet(self) -> Packet:
        """The terms as the request that opens the sum."""
        gaps = torch.tensor([after - before - 1 for before, after in pairwise((-1, *self.clients))])
        numbers = self.round, self.size, self.bits, self.neighbours, self.threshold, self.least, self.spread
        fixed = _FORM.pack(VERSION, self.session, *numbers)
        return Packet(
            kind=KIND,
            arrays={
                "clients": Bits(gaps, bits=max(int(gaps.max()).bit_length(), 1)),
                "terms": torch.frombuffer(bytearray(fixed), dtype=torch.uint8),
            },
        )

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the packed terms."""
        return sha256(pack(self.packet)).digest()

    @classmethod
    def from_packet(cls, packet: Packet) -> "Terms":
        """Read the terms that a server proposes.

        Raises `WireError` if they cannot be read, and `SecureSumError` if nobody may accept them.
        """
        fixed = tensor_named(expect_kind(packet, KIND), "terms", shape=(_FORM.size,), dtype=torch.uint8).numpy().tobytes()
        if fixed[0] != VERSION:
            raise SecureSumError(
                f"the server speaks version {fixed[0]} of secure sums, this client version {VERSION}. Install the same "
                "version of sketchfed on both."
            )
        gaps = packet.arrays.get("clients")
        if not isinstance(gaps, Bits) or gaps.signed or len(gaps.shape) != 1:
            raise WireError(f"packet '{packet.kind}' should carry an array 'clients' of packed integers: the gaps between ids.")
        if gaps.shape[0] > _MOST_CLIENTS:
            raise SecureSumError(
                f"a secure sum is over at most {_MOST_CLIENTS:,} clients, the server proposes {gaps.shape[0]:,}. This client "
                "does not take part; split the clients into groups."
            )
        return _read(fixed, gaps.packed, gaps.shape[0], gaps.bits)

    def demand(self, **expected: object) -> "Terms":
        """Return these terms if they are what a client expects. Otherwise raise `SecureSumError`.

        Named values must be equal. Only `least`, `threshold`, `neighbours` and `spread` may be higher than expected, because
        that protects better.
        """
        for name, value in expected.items():
            own = getattr(self, name)
            if own != value and not (name in ("least", "threshold", "neighbours", "spread") and own > value):
                raise SecureSumError(
                    f"the server proposes {name} {_shown(own)}, this client agreed to {_shown(value)}. "
                    "It does not take part; settle the terms before the round."
                )
        return self

    @cached_property
    def complete(self) -> bool:
        """Whether all clients are neighbours of each other."""
        return self.neighbours == len(self.clients) - 1

    def neighbours_of(self, client: int) -> tuple[int, ...]:
        """The neighbours of a client, ascending."""
        if client not in self._place:
            raise InputError(f"client {client!r} is not among the {len(self.clients):,} clients of these terms.")
        if client not in self._found:
            self._found[client] = (
                tuple(other for other in self.clients if other != client)
                if self.complete
                else ring_neighbours(self._ring, self._place[client], self.neighbours)
            )
        return self._found[client]

    @cached_property
    def committee(self) -> tuple[int, ...]:
        """The clients whose signatures decide who is in the sum: all in a complete graph, the first k + 1 on a ring.

        One committee for all clients leaves no room for two lists. If neighbourhoods compared lists only among themselves, a
        lying server could show different lists to distant parts of a ring.
        """
        return tuple(sorted(self._ring[: self.neighbours + 1]))

    def witnesses_of(self, client: int) -> tuple[int, ...]:
        """The members of the committee other than this client, ascending."""
        return tuple(member for member in self.committee if member != client)

    def gap(self, survivors: Iterable[int]) -> "Gap | None":
        """Where the ring might fall apart with these survivors. None if it holds together.

        Clients that are at most neighbours/2 places apart on the ring share a mask. So the sum cannot be split as long as there
        is an honest survivor among any neighbours/2 clients in a row. `spread` is one more than the number of colluders there.
        """
        if self.complete:
            return None
        width, stayed = self.neighbours // 2, frozenset(survivors)
        here = [client in stayed for client in self._ring]
        left = sum(here[:width])
        for place in range(len(here)):
            if left < self.spread:
                return Gap(width, left, self.spread)
            left += here[(place + width) % len(here)] - here[place]
        return None

    @cached_property
    def _found(self) -> dict[int, tuple[int, ...]]:
        return {}

    @cached_property
    def _ring(self) -> tuple[int, ...]:
        return self.clients if self.complete else ring_order(self.clients, self.session, self.round)

    @cached_property
    def _place(self) -> dict[int, int]:
        return {client: place for place, client in enumerate(self._ring)}


@cached(maxsize=4)
def _read(fixed: bytes, packed: bytes, count: int, bits: int) -> Terms:
    """Cached, because clients of one process read the same terms and draw the same graph from them."""
    gaps = Bits.from_packed(packed, shape=(count,), bits=bits).values.tolist()
    _, session, round_, size, width, neighbours, threshold, least, spread = _FORM.unpack(fixed)
    try:
        return Terms(
            session=session,
            round=round_,
            clients=tuple(accumulate((gap + 1 for gap in gaps), initial=-1))[1:],
            size=size,
            bits=width,
            neighbours=neighbours,
            threshold=threshold,
            least=least,
            spread=spread,
        )
    except InputError as error:
        raise SecureSumError(f"the server proposes terms that nobody should accept: {error}") from None


def _check_clients(clients: Sequence[int]) -> None:
    if not isinstance(clients, tuple) or len(clients) < 2 or any(type(client) is not int for client in clients):
        raise InputError(
            f"a secure sum is over a tuple of at least two client numbers, got {_shown(clients)}. A sum of one hides nothing."
        )
    if len(clients) > _MOST_CLIENTS:
        raise InputError(f"a secure sum is over at most {_MOST_CLIENTS:,} clients, got {len(clients):,}. Set secure.groups.")
    if clients[0] < 0 or clients[-1] >= _MOST_ID or any(a >= b for a, b in pairwise(clients)):
        raise InputError(f"client numbers are ascending, each once, from 0 to 2^62 - 1, got {_shown(clients)}. Sort them.")


def _whole(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InputError(f"{name} of a secure sum is a whole number from {least:,} to {most:,}, got {value!r}.")


def _shown(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
