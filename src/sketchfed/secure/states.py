"""Where a client stands in a secure sum.

A state holds secrets as plain bytes, so that it can be kept. It never leaves its client.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sketchfed.secure.keys import Identity
from sketchfed.secure.terms import Terms
from sketchfed.secure.transcript import Transcript


class Peer(NamedTuple):
    """What a client keeps about a neighbour: who it is, what it advertised, and the key for what it seals for this client."""

    identity: bytes
    mask: bytes
    seed: bytes
    incoming: bytes


class Held(NamedTuple):
    """The shares of a neighbour's two secrets that this client holds. It reveals at most one of them."""

    mask_share: bytes
    seed_share: bytes


@dataclass(frozen=True, kw_only=True)
class SumState:
    """The part that all states have in common."""

    terms: Terms
    client: int


@dataclass(frozen=True, kw_only=True)
class Joined(SumState):
    """After `advertise`."""

    identity: Identity = field(repr=False)
    mask_key: bytes = field(repr=False)
    seal_key: bytes = field(repr=False)
    self_seed: bytes = field(repr=False)
    dealing: bytes = field(repr=False)
    shown: bytes = field(repr=False)
    """What the client advertised. It must find these bytes in the transcript."""


@dataclass(frozen=True, kw_only=True)
class Informed(SumState):
    """From `share` on: the client knows the transcript and its neighbours."""

    transcript: Transcript
    self_seed: bytes = field(repr=False)
    peers: Mapping[int, Peer] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Shared(Informed):
    """After `share`."""

    identity: Identity = field(repr=False)
    mask_key: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Masked(Informed):
    """After `mask`. `peers` are the neighbours that dealt shares."""

    identity: Identity = field(repr=False)
    pairs: Mapping[int, bytes] = field(repr=False)
    """The key of the mask with each neighbour."""
    held: Mapping[int, Held] = field(repr=False)
    """The shares of each neighbour whose sealed shares this client could open."""


@dataclass(frozen=True, kw_only=True)
class Consented(Informed):
    """After `consent`."""

    pairs: Mapping[int, bytes] = field(repr=False)
    held: Mapping[int, Held] = field(repr=False)
    survivors: bytes
    """The list that was signed, a bit for each client."""


@dataclass(frozen=True, kw_only=True)
class Told(SumState):
    """After `unmask`. What is left serves only to open the sum without a neighbour that dealt its shares wrongly."""

    transcript: Transcript
    peers: Mapping[int, Peer] = field(repr=False)
    pairs: Mapping[int, bytes] = field(repr=False)
    survivors: bytes


@dataclass(frozen=True, kw_only=True)
class Done(SumState):
    """After `recover`, or after a refusal. No secrets are left, and nothing will be answered."""
