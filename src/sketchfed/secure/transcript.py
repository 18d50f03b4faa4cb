"""What a client has seen of a sum: the terms, and one hash over the keys of all clients, which covers its own keys.

A server that shows two clients different keys shows them different transcripts. Every mask, sealed share and signature after
the first stage is bound to the transcript, so the two clients no longer understand each other, and neither helps to open the
sum.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from sketchfed.errors import SecureSumError, WireError
from sketchfed.secure.terms import Terms

HASH = 32
_PLACE = struct.Struct("<II")


@dataclass(frozen=True)
class Transcript:
    """The terms of a sum, and the root of the hash tree over the keys of all clients that sent some."""

    terms: Terms
    root: bytes

    @property
    def session(self) -> bytes:
        return self.terms.session

    @property
    def round(self) -> int:
        return self.terms.round

    @cached_property
    def digest(self) -> bytes:
        return sha256(b"transcript" + self.terms.digest + self.root).digest()

    def __getstate__(self) -> dict[str, object]:
        return {"terms": self.terms, "root": self.root}  # what is computed from them stays behind


class Roll:
    """The hash tree over the keys of a sum. A client gets the hashes beside its path, and with them computes the root."""

    def __init__(self, keys: Mapping[int, bytes]) -> None:
        self._places = {client: place for place, client in enumerate(keys)}
        self._levels = [[_leaf(client, shown) for client, shown in keys.items()]]
        while len(self._levels[-1]) > 1:
            self._levels.append(_above(self._levels[-1]))

    @property
    def root(self) -> bytes:
        return self._levels[-1][0]

    def proof(self, client: int) -> bytes:
        """The place of a client, the number of clients, and the hashes from which the client computes the root."""
        place = self._places[client]
        beside = []
        for level, at in zip(self._levels, _climb(place, len(self._places)), strict=False):
            if at ^ 1 < len(level):
                beside.append(level[at ^ 1])
        return _PLACE.pack(place, len(self._places)) + b"".join(beside)


def read_proof(body: bytes, terms: Terms, client: int, shown: bytes) -> tuple[Transcript, bytes]:
    """The transcript in which a client finds the keys that it sent, and what follows the proof in `body`."""
    if len(body) < _PLACE.size:
        raise WireError(f"a proof takes at least {_PLACE.size} bytes, {len(body)} arrived.")
    place, count = _PLACE.unpack_from(body)
    if not place < count <= len(terms.clients):
        raise WireError(f"place {place:,} of {count:,} cannot be among the {len(terms.clients):,} clients of these terms.")
    if count < terms.least:
        raise SecureSumError(
            f"keys of {count:,} clients are said to have come, the terms ask for {terms.least:,}. This client stops here."
        )
    at, node, size = _PLACE.size, _leaf(client, shown), count
    for index in _climb(place, count):
        if index ^ 1 < size:
            other = body[at : at + HASH]
            if len(other) < HASH:
                raise WireError(f"the proof that the keys of client {client} are on the roll is cut off.")
            at += HASH
            node = _node(other, node) if index % 2 else _node(node, other)
        size = (size + 1) // 2
    return Transcript(terms, node), body[at:]


def _climb(place: int, count: int) -> list[int]:
    """The places on the way from a leaf to just below the root."""
    climbed = []
    while count > 1:
        climbed.append(place)
        place, count = place // 2, (count + 1) // 2
    return climbed


def _leaf(client: int, shown: bytes) -> bytes:
    return sha256(b"\0" + client.to_bytes(8, "little") + shown).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


def _above(level: Sequence[bytes]) -> list[bytes]:
    """The next level of the tree. A last node without a neighbour moves up as it is."""
    pairs = [_node(level[at], level[at + 1]) for at in range(0, len(level) - 1, 2)]
    return pairs + list(level[len(pairs) * 2 :])
