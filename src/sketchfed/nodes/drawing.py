"""Randomness that a server and its clients draw together, so that none of them can choose it.

Everybody commits to 32 random bytes, and reveals them only after all commitments are known. The server commits first. The hash
of all of them is as random as the bytes of any one honest party: who reveals last can only spoil the draw, not steer it.

The settings that decide who sits where are fixed together with the server's commitment. So nobody chooses them after the draw.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from sketchfed.errors import InputError, WireError
from sketchfed.secure import Identity
from sketchfed.secure.keys import KEY, SIGNATURE, is_signed

NONCE = COMMITMENT = 32
SERVER = b"server"
"""Whose commitment the server's is: nobody has this identity."""
MOST_CLIENTS = 10**6
"""The most clients of a run, whatever a policy says."""


def commitment(session: bytes, owner: bytes, nonce: bytes) -> bytes:
    """What fixes a party's random bytes without telling them."""
    return sha256(b"sketchfed draw" + session + len(owner).to_bytes(1, "little") + owner + nonce).digest()


_OF_ROUNDS = ("name", "rounds", "participation")
_FILLED_IN = ("noise_multiplier", "adjacency")
"""Keys of [privacy] that follow from the others if they are absent, some of them from the cohorts that were drawn."""


def settled(tables: Mapping[str, Any]) -> bytes:
    """A digest of the settings that must not change after the draw.

    They decide who takes part in which round, in which group, and what is added to a sum. The policy has checked the tables.
    """
    algorithm, privacy = tables.get("algorithm") or {}, tables.get("privacy")
    fixed = {
        "algorithm": {key: algorithm.get(key) for key in _OF_ROUNDS},
        "privacy": privacy and {key: value for key, value in privacy.items() if key not in _FILLED_IN},
        "secure": tables.get("secure"),
    }
    return sha256(json.dumps(fixed, sort_keys=True).encode()).digest()


class Opening(NamedTuple):
    """With what a server opens a draw."""

    commitment: bytes
    settled: bytes
    """The digest of the settings for which it is drawn."""

    @classmethod
    def from_bytes(cls, data: bytes) -> "Opening":
        return cls(data[:COMMITMENT], data[COMMITMENT:])

    def to_bytes(self) -> bytes:
        return self.commitment + self.settled


@dataclass(frozen=True)
class Committed:
    """A client's commitment, which answers that of the server and is signed with the client's identity."""

    identity: bytes
    commitment: bytes
    signature: bytes

    size = 2 * KEY + SIGNATURE

    @classmethod
    def by(cls, identity: Identity, session: bytes, opening: Opening, nonce: bytes) -> "Committed":
        own = commitment(session, identity.public, nonce)
        return cls(identity.public, own, identity.sign(_text(session, opening, own)))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Committed":
        if len(data) != cls.size:
            raise WireError(f"a commitment to a draw takes {cls.size} bytes, {len(data):,} arrived.")
        return cls(data[:KEY], data[KEY : 2 * KEY], data[2 * KEY :])

    def to_bytes(self) -> bytes:
        return self.identity + self.commitment + self.signature

    def check(self, session: bytes, opening: Opening) -> "Committed":
        if not is_signed(_text(session, opening, self.commitment), self.signature, self.identity):
            raise WireError(
                f"the commitment of identity {self.identity.hex()[:8]} is not signed by it for this run, these "
                "settings and this server's commitment: it is forged or replayed."
            )
        return self


def read_roll(data: bytes, session: bytes, opening: Opening, *, most: int = MOST_CLIENTS) -> list[Committed]:
    """The commitments of at most `most` clients, in the order of their numbers. Each is checked. Nobody may be there twice."""
    if not data or len(data) % Committed.size or len(data) > most * Committed.size:
        raise WireError(
            f"a roll has {Committed.size} bytes for each client, and {most:,} clients at most; {len(data):,} bytes arrived."
        )
    roll = [Committed.from_bytes(data[at : at + Committed.size]) for at in range(0, len(data), Committed.size)]
    for each in roll:
        each.check(session, opening)
    if len({each.identity for each in roll}) != len(roll):
        raise WireError("a roll names one identity twice: one client would count as two.")
    return roll


@dataclass(frozen=True)
class Drawn:
    """What was revealed: the server's random bytes, then those of the clients in the order of their numbers."""

    nonces: tuple[bytes, ...]

    def joint(self, session: bytes) -> str:
        """The joint randomness, as a configuration says it."""
        return sha256(b"sketchfed joint" + session + b"".join(self.nonces)).digest()[:16].hex()

    def check(self, session: bytes, server: bytes, roll: Sequence[Committed], *, own: bytes, client: int) -> "Drawn":
        """Refuse a draw that is not what everybody on the roll committed to, or in which this client's bytes are missing."""
        if len(self.nonces) != len(roll) + 1 or any(len(nonce) != NONCE for nonce in self.nonces):
            raise WireError(f"a draw of {len(roll):,} clients has {len(roll) + 1:,} parts, {len(self.nonces):,} arrived.")
        if commitment(session, SERVER, self.nonces[0]) != server:
            raise InputError("the server revealed something else than it committed to, so it could choose the cohorts.")
        for place, (each, nonce) in enumerate(zip(roll, self.nonces[1:], strict=True)):
            if commitment(session, each.identity, nonce) != each.commitment:
                raise InputError(f"what client {place} is said to have revealed is not what it committed to.")
        if not 0 <= client < len(roll) or self.nonces[client + 1] != own:
            raise InputError("this client's part of the joint randomness is missing, so it might be chosen by others.")
        return self


def _text(session: bytes, opening: Opening, own: bytes) -> bytes:
    return b"sketchfed draw commitment" + session + opening.to_bytes() + own
