"""A client's part in a secure sum: five stages, each a function of the state before it and of what the server asks.

keys → shares → masked → consent → unmask, after Bell et al. 2020 with the consistency check of Bonawitz et al. 2017
(Fig. 4). A state holds private keys as plain bytes, so that it can be kept between stages; it must stay on its client. A
function refuses, by `SecureSumError`, whatever would let the server open more than one sum of at least `terms.least` clients.

Departs from the papers: a client that is still there at the end tells the seed of its own mask itself, beside the shares of
others' secrets. It does so only after as many have signed the same list as could open that seed from shares, and it saves the
server nearly all interpolation.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from sketchfed.errors import InputError, SecureSumError
from sketchfed.kernels.bits import pack_bits
from sketchfed.secure.keys import (
    KEY,
    SIGNATURE,
    TAG,
    Advertised,
    Identity,
    KeyAgreement,
    commitment,
    context,
    derived,
    is_signed,
    public_key,
    seal,
    unseal,
)
from sketchfed.secure.masks import add_masks, to_words
from sketchfed.secure.messages import body_of, flagged, laid_out, message, reply_kind, request_kind, taken_apart
from sketchfed.secure.shamir import SHARE, deal, field_elements
from sketchfed.secure.terms import Terms
from sketchfed.seeds import SecretSeed, secret_bytes
from sketchfed.wire import Bits, Packet

SEALED = 2 * SHARE + TAG
COMMITTED = 16
"""Bytes of a share's commitment. Nobody gains by a collision: what is opened must fit a public key or a full commitment."""


class Peer(NamedTuple):
    """What a client keeps of a neighbour: who it is, its key for masks, and the key of what it seals for this client."""

    identity: bytes
    mask: bytes
    incoming: bytes


class Held(NamedTuple):
    """A neighbour's secrets as far as they are in these hands: of these two shares at most one ever leaves them."""

    mask_share: bytes
    seed_share: bytes


@dataclass(frozen=True, kw_only=True)
class SumState:
    """Where a client stands in a sum."""

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


@dataclass(frozen=True, kw_only=True)
class Shared(SumState):
    """After `share`."""

    identity: Identity = field(repr=False)
    mask_key: bytes = field(repr=False)
    self_seed: bytes = field(repr=False)
    peers: Mapping[int, Peer] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Masked(SumState):
    """After `mask`."""

    identity: Identity = field(repr=False)
    self_seed: bytes = field(repr=False)
    identities: Mapping[int, bytes] = field(repr=False)
    held: Mapping[int, Held | None] = field(repr=False)
    """For every neighbour that dealt shares, those for this client; None if what came was not what the neighbour sealed."""


@dataclass(frozen=True, kw_only=True)
class Consented(SumState):
    """After `consent`."""

    self_seed: bytes = field(repr=False)
    identities: Mapping[int, bytes] = field(repr=False)
    held: Mapping[int, Held | None] = field(repr=False)
    survivors: bytes
    """The list that was signed, a bit for each client."""


@dataclass(frozen=True, kw_only=True)
class Done(SumState):
    """After `unmask`, or after a refusal: nothing secret is left, and nothing will be answered."""


_S = TypeVar("_S", bound=SumState)


def advertise(
    terms: Terms, client: int, identity: Identity, secret: SecretSeed, *, joined: Container[bytes] = ()
) -> tuple[Joined, Packet]:
    """Make two key pairs for this sum alone and sign their public halves.

    `terms` are those that the client agrees to: `Terms.from_packet(request).demand(...)`. Every secret of the sum derives from
    `secret`, the digest of the terms and the client, so one secret serves a run. `joined` are the digests of the terms that
    the client has joined before, which it must remember: a server that could repeat a sum would be told one secret of a
    neighbour the first time and the other the second. A sum that was abandoned is asked for again under another session or
    round.
    """
    if terms.digest in joined:
        raise SecureSumError(
            f"client {client} has joined round {terms.round} of this session before, and joins on the same terms only once. "
            "Ask again under another session or round."
        )
    if client not in terms.clients:
        raise SecureSumError(
            f"client {client} is not among the {len(terms.clients):,} clients of these terms; it does not answer."
        )
    own = secret.child("secure sum", int.from_bytes(terms.digest[:8], "little")).child("client", client)
    state = Joined(
        terms=terms,
        client=client,
        identity=identity,
        mask_key=next(field_elements(secret_bytes(own.child("mask key"), KEY))),
        seal_key=secret_bytes(own.child("seal key"), KEY),
        self_seed=next(field_elements(secret_bytes(own.child("self seed"), KEY))),
        dealing=secret_bytes(own.child("dealing"), 2 * KEY),
    )
    keys = Advertised.by(identity, terms, client, public_key(state.mask_key), public_key(state.seal_key))
    return state, message(reply_kind("keys"), terms, keys.to_bytes())


def share(state: Joined, request: Packet, directory: Mapping[int, bytes]) -> tuple[Shared, Packet]:
    """Deal shares of the mask key and of the self mask's seed to the neighbours, sealed, with a commitment to each.

    `directory` holds the public identities of all clients. Keys that are not signed for these very terms are refused.
    """
    terms, client = _at(state, Joined), state.client
    neighbours = terms.neighbours_of(client)
    shown = taken_apart(body_of(request, request_kind("shares"), terms), neighbours, Advertised.size)
    _check_neighbours(terms, len(shown), "sent keys")
    keys = {peer: Advertised.from_bytes(data).check(terms, peer, directory) for peer, data in shown.items()}
    points = [point for point, peer in enumerate(neighbours, 1) if peer in keys]
    seeds = state.dealing[:KEY], state.dealing[KEY:]
    dealt = [
        deal(secret, threshold=terms.threshold, points=points, seed=seed)
        for secret, seed in zip((state.mask_key, state.self_seed), seeds, strict=True)
    ]
    sealing = KeyAgreement(state.seal_key)
    peers, parts = {}, {}
    for peer, mask_share, seed_share in zip(keys, *dealt, strict=True):
        secret = sealing.with_(keys[peer].seal)
        outgoing, incoming = (derived(secret, context("seal", terms, *way)) for way in ((client, peer), (peer, client)))
        peers[peer] = Peer(directory[peer], keys[peer].mask, incoming)
        parts[peer] = (
            seal(outgoing, terms, client, peer, mask_share + seed_share)
            + commitment("mask share", terms, (client, peer), mask_share)[:COMMITTED]
            + commitment("seed share", terms, (client, peer), seed_share)[:COMMITTED]
        )
    body = commitment("self seed", terms, (client,), state.self_seed) + laid_out(neighbours, parts)
    after = Shared(
        terms=terms, client=client, identity=state.identity, mask_key=state.mask_key, self_seed=state.self_seed, peers=peers
    )
    return after, message(reply_kind("shares"), terms, body)


def mask(state: Shared, request: Packet, values: Tensor) -> tuple[Masked, Packet]:
    """Add to `values`, integers `(size,)` from 0 to 2^bits − 1, a mask with every neighbour that dealt shares, and one's own.

    y = x + PRG(seed) + Σ_{j > i} PRG(key with j) − Σ_{j < i} PRG(key with j) mod 2^bits (Bonawitz et al. 2017, Fig. 4).
    """
    terms, client = _at(state, Shared), state.client
    _check_values(values, terms)
    sealed = taken_apart(body_of(request, request_kind("masked"), terms), terms.neighbours_of(client), SEALED)
    _check_neighbours(terms, len(sealed), "dealt shares")
    if strangers := sealed.keys() - state.peers.keys():
        raise SecureSumError(f"shares came from client {min(strangers)}, whose keys were never shown. This client stops here.")
    held = {}
    for peer, box in sealed.items():
        plain = unseal(state.peers[peer].incoming, terms, peer, client, box)
        held[peer] = None if plain is None else Held(plain[:SHARE], plain[SHARE:])
    masking = KeyAgreement(state.mask_key)
    pairs = {peer: pair_key(masking, state.peers[peer].mask, terms, client, peer) for peer in sealed}
    words = to_words(values, terms.bits)
    add_masks(
        words,
        added=[self_key(state.self_seed, terms, client), *(key for peer, key in pairs.items() if client < peer)],
        subtracted=[key for peer, key in pairs.items() if client > peer],
    )
    signed = torch.from_numpy(words.view(f"i{words.itemsize}"))
    packed = Bits.from_packed(pack_bits(signed, terms.bits), shape=(terms.size,), bits=terms.bits)
    after = Masked(
        terms=terms,
        client=client,
        identity=state.identity,
        self_seed=state.self_seed,
        identities={peer: state.peers[peer].identity for peer in sealed},
        held=held,
    )
    return after, message(reply_kind("masked"), terms, b"", values=packed)


def consent(state: Masked, request: Packet) -> tuple[Consented, Packet]:
    """Sign the list of those whose masked values arrived, once, if it is long enough and fits what this client has seen."""
    terms = _at(state, Masked)
    body = body_of(request, request_kind("consent"), terms)
    survivors = flagged(body, terms.clients)
    if len(survivors) < terms.least:
        raise SecureSumError(
            f"the sum would be over {len(survivors):,} clients, the terms ask for {terms.least:,} at least. This client does "
            "not help to open it."
        )
    if state.client not in survivors:
        raise SecureSumError(
            f"the server asks client {state.client} to sign a list that it is not on, though it sent its values."
        )
    near = set(survivors) & set(terms.neighbours_of(state.client))
    if strangers := near - state.held.keys():
        raise SecureSumError(f"client {min(strangers)} is said to have sent values, but it never dealt shares to this client.")
    _check_neighbours(terms, len(near), "sent values")
    after = Consented(
        terms=terms,
        client=state.client,
        self_seed=state.self_seed,
        identities={peer: state.identities[peer] for peer in near},
        held=state.held,
        survivors=body,
    )
    return after, message(reply_kind("consent"), terms, state.identity.sign(consent_text(terms, body)))


def unmask(state: Consented, request: Packet) -> tuple[Done, Packet]:
    """Tell the own seed and a share of one secret of each neighbour: of its seed if it is on the list, else of its mask key.

    Only if, with this client, `threshold` of the neighbourhood have signed the list that it signed itself.
    """
    terms = _at(state, Consented)
    neighbours = terms.neighbours_of(state.client)
    signatures = taken_apart(body_of(request, request_kind("unmask"), terms), neighbours, SIGNATURE)
    text, agreeing = consent_text(terms, state.survivors), 1
    for peer, signature in signatures.items():
        if agreeing < terms.threshold and peer in state.identities:
            agreeing += is_signed(text, signature, state.identities[peer])
    if agreeing < terms.threshold:
        raise SecureSumError(
            f"{agreeing} of the neighbourhood, this client included, signed the list of survivors that it was shown; "
            f"{terms.threshold} must. Others were shown another list, or too few are left; it does not help to open the sum."
        )
    shares = {
        peer: held.seed_share if peer in state.identities else held.mask_share
        for peer, held in state.held.items()
        if held is not None
    }
    after = Done(terms=terms, client=state.client)
    return after, message(reply_kind("unmask"), terms, state.self_seed + laid_out(neighbours, shares))


def pair_key(own: KeyAgreement, other: bytes, terms: Terms, client: int, peer: int) -> bytes:
    """The key of the mask that two clients share, whichever of them derives it."""
    return derived(own.with_(other), context("mask", terms, min(client, peer), max(client, peer)))


def self_key(seed: bytes, terms: Terms, client: int) -> bytes:
    """The key of a client's own mask."""
    return derived(seed, context("self mask", terms, client))


def consent_text(terms: Terms, survivors: bytes) -> bytes:
    """What is signed about a list of survivors."""
    return context("consent", terms) + survivors


def _at(state: _S, stage: type[_S]) -> Terms:
    if type(state) is not stage:
        raise SecureSumError(
            f"this request is for a client that is at '{stage.__name__}', this one is at '{type(state).__name__}'. "
            "A client answers each stage once."
        )
    return state.terms


def _check_neighbours(terms: Terms, count: int, did: str) -> None:
    if count + 1 < terms.threshold:
        raise SecureSumError(
            f"{count} of {terms.neighbours} neighbours {did}; with this client that is below the threshold of "
            f"{terms.threshold}. It stops here: the secrets of its neighbourhood could not be opened."
        )


def _check_values(values: Tensor, terms: Terms) -> None:
    if not isinstance(values, Tensor) or values.dtype != torch.int64 or tuple(values.shape) != (terms.size,):
        given = f"{values.dtype} {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise InputError(f"a client adds an int64 tensor of shape ({terms.size},), got {given}.")
    low, high = (int(end) for end in torch.aminmax(values))
    if low < 0 or high >> terms.bits:
        raise InputError(
            f"values of a sum modulo 2^{terms.bits} lie from 0 to {2**terms.bits - 1:,}, got {low:,} to {high:,}. "
            f"Take them % 2**{terms.bits}."
        )
