"""A client's part in a secure sum: each stage is a function of the state before it and of what the server asks.

keys → shares → masked → consent → unmask, and recover if somebody dealt wrongly. After Bell et al. 2020 with the consistency
check of Bonawitz et al. 2017 (Fig. 4). A function refuses, by `SecureSumError`, whatever would let the server open more than
one sum of at least `terms.least` clients.

Departs from the papers: a client that is still there at the end tells the seed of its own mask itself, beside the shares of
others' secrets, which saves the server nearly all interpolation. What clients sign is bound to the keys of all clients, and the
list of survivors must keep the ring together. On a ring, one committee signs that list for everybody (`Terms.committee`), where
Bell et al. compare lists within neighbourhoods. `recover` is not in the papers either.
"""

from collections.abc import Container, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from sketchfed.errors import InputError, SecureSumError
from sketchfed.kernels.bits import pack_bits
from sketchfed.secure.dealing import COMMITTED, DEALT, SEALED, Dealing, Secret, committed, from_accusations, self_commitment
from sketchfed.secure.keys import (
    KEY,
    SIGNATURE,
    Advertised,
    Identity,
    KeyAgreement,
    context,
    derived,
    is_signed,
    public_key,
    seal,
    unseal,
)
from sketchfed.secure.masks import add_masks, to_words
from sketchfed.secure.messages import body_of, flagged, flags, laid_out, message, reply_kind, request_kind, taken_apart
from sketchfed.secure.shamir import SHARE, deal, field_elements
from sketchfed.secure.states import Consented, Done, Held, Joined, Masked, Peer, Shared, SumState, Told
from sketchfed.secure.terms import Terms
from sketchfed.secure.transcript import Transcript, read_proof
from sketchfed.seeds import SecretSeed, secret_bytes
from sketchfed.wire import Bits, Packet

_S = TypeVar("_S", bound=SumState)

PREMISE = 32
"""The bytes of a premise."""
NO_PREMISE = bytes(PREMISE)
"""The premise of values that do not depend on anything that the server sends."""


def advertise(
    terms: Terms, client: int, identity: Identity, secret: SecretSeed, *, joined: Container[bytes] = ()
) -> tuple[Joined, Packet]:
    """Make two key pairs for this sum only, commit to the seed of the client's own mask, and sign everything.

    `terms` are those that the client agrees to: `Terms.from_packet(request).demand(...)`. Every secret of the sum derives from
    `secret`, the digest of the terms and the client, so one secret serves a run. `joined` are the digests of the terms that the
    client has joined before. The client must remember them: if a server could repeat a sum, it would learn one secret of a
    neighbour the first time and the other secret the second time. A sum that was abandoned is asked for again under another
    session or round.
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
    own = secret.child(f"secure sum {terms.digest.hex()}").child("client", client)
    mask_key = next(field_elements(secret_bytes(own.child("mask key"), KEY)))
    seal_key = secret_bytes(own.child("seal key"), KEY)
    self_seed = next(field_elements(secret_bytes(own.child("self seed"), KEY)))
    keys = Advertised.by(
        identity,
        terms,
        client,
        mask=public_key(mask_key),
        seal=public_key(seal_key),
        seed=self_commitment(terms, client, self_seed),
    )
    state = Joined(
        terms=terms,
        client=client,
        identity=identity,
        mask_key=mask_key,
        seal_key=seal_key,
        self_seed=self_seed,
        dealing=secret_bytes(own.child("dealing"), 2 * KEY),
        shown=keys.to_bytes(),
    )
    return state, message(reply_kind("keys"), terms, keys.to_bytes())


def share(state: Joined, request: Packet, directory: Mapping[int, bytes]) -> tuple[Shared, Packet]:
    """Deal sealed shares of the mask key and of the self mask's seed to the neighbours, with a commitment to each share.

    `directory` holds the public identities of all clients. The client refuses keys that are not signed for exactly these terms,
    and a transcript without its own keys. The whole dealing is signed, so that a dealer can be convicted.
    """
    terms, client = _at(state, Joined), state.client
    neighbours = terms.neighbours_of(client)
    transcript, rest = read_proof(body_of(request, request_kind("shares"), terms), terms, client, state.shown)
    shown = taken_apart(rest, neighbours, Advertised.size)
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
        outgoing, incoming = (derived(secret, context("seal", transcript, *way)) for way in ((client, peer), (peer, client)))
        peers[peer] = Peer(directory[peer], keys[peer].mask, keys[peer].seed, incoming)
        parts[peer] = (
            seal(outgoing, transcript, client, peer, mask_share + seed_share)
            + committed(Secret.MASK, transcript, client, peer, mask_share)
            + committed(Secret.SEED, transcript, client, peer, seed_share)
        )
    after = Shared(
        terms=terms,
        client=client,
        transcript=transcript,
        identity=state.identity,
        mask_key=state.mask_key,
        self_seed=state.self_seed,
        peers=peers,
    )
    body = Dealing.signed(state.identity, transcript, client, parts).to_bytes(neighbours)
    return after, message(reply_kind("shares"), terms, body)


def mask(state: Shared, request: Packet, values: Tensor, premise: bytes = NO_PREMISE) -> tuple[Masked, Packet]:
    """Mask `values`, integers `(size,)` from 0 to 2^bits − 1, with the client's own mask and one for each neighbour that dealt.

    y = x + PRG(seed) + Σ_{j > i} PRG(key with j) − Σ_{j < i} PRG(key with j) mod 2^bits (Bonawitz et al. 2017, Fig. 4).
    `premise` is a digest of what the server sent for this client to compute its values from, such as the model. Masks of two
    clients cancel only if their premises are equal. Otherwise a lying server could send all but one client a model with which
    their updates vanish, and the sum would be that client's update (Pasquini et al. 2022). The papers of the protocol leave
    this out. The reply also says what the premise was, and, with one bit for each neighbour, whose shares this client could
    open.
    """
    terms, client, transcript = _at(state, Shared), state.client, state.transcript
    _check_values(values, terms)
    check_premise(premise)
    neighbours = terms.neighbours_of(client)
    sealed = taken_apart(body_of(request, request_kind("masked"), terms), neighbours, DEALT)
    if strangers := sealed.keys() - state.peers.keys():
        raise SecureSumError(f"shares came from client {min(strangers)}, whose keys were never shown. This client stops here.")
    opened = {peer: _opened(state, peer, part) for peer, part in sealed.items()}
    held = {peer: shares for peer, shares in opened.items() if shares is not None}
    _check_neighbours(terms, len(held), "dealt shares that open")
    masking = KeyAgreement(state.mask_key)
    pairs = {peer: pair_key(masking, state.peers[peer].mask, transcript, client, peer, premise) for peer in sealed}
    words = to_words(values, terms.bits)
    add_masks(
        words,
        added=[self_key(state.self_seed, transcript, client), *(key for peer, key in pairs.items() if client < peer)],
        subtracted=[key for peer, key in pairs.items() if client > peer],
    )
    signed = torch.from_numpy(words.view(f"i{words.itemsize}"))
    packed = Bits.from_packed(pack_bits(signed, terms.bits), shape=(terms.size,), bits=terms.bits)
    after = Masked(
        terms=terms,
        client=client,
        transcript=transcript,
        identity=state.identity,
        self_seed=state.self_seed,
        peers={peer: state.peers[peer] for peer in sealed},
        pairs=pairs,
        held=held,
    )
    return after, message(reply_kind("masked"), terms, premise + flags(neighbours, held), values=packed)


def consent(state: Masked, request: Packet) -> tuple[Consented, Packet]:
    """Sign the list of clients whose masked values count, once, if it is long enough and fits what this client has seen."""
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
    if strangers := near - state.peers.keys():
        raise SecureSumError(f"client {min(strangers)} is said to have sent values, but it never dealt shares to this client.")
    _check_neighbours(terms, len(near), "sent values")
    if gap := terms.gap(survivors):
        raise SecureSumError(
            f"of {gap.width} clients in a row on the ring, {gap.left} are on the list of survivors, and {gap.needed} must be: "
            "the ring might fall into two parts, and the sum into two sums. This client does not help to open it."
        )
    after = Consented(
        terms=terms,
        client=state.client,
        transcript=state.transcript,
        self_seed=state.self_seed,
        peers=state.peers,
        pairs=state.pairs,
        held=state.held,
        survivors=body,
    )
    return after, message(reply_kind("consent"), terms, state.identity.sign(consent_text(state.transcript, body)))


def unmask(state: Consented, request: Packet, directory: Mapping[int, bytes]) -> tuple[Told, Packet]:
    """Reveal the client's own seed, and for each neighbour a share of its seed if it is on the list, else of its mask key.

    This requires that `threshold` members of the committee have signed the list that this client signed itself. A member counts
    itself. Two lists never get that many signatures, so all who help to open the sum were shown the same list. `directory`
    holds the public identities of the committee.
    """
    terms, client = _at(state, Consented), state.client
    neighbours, witnesses = terms.neighbours_of(client), terms.witnesses_of(client)
    signatures = taken_apart(body_of(request, request_kind("unmask"), terms), witnesses, SIGNATURE)
    listed = set(flagged(state.survivors, terms.clients))
    text, agreeing = consent_text(state.transcript, state.survivors), int(client in terms.committee)
    for member, signature in signatures.items():
        if agreeing < terms.threshold and member in listed and member in directory:
            agreeing += is_signed(text, signature, directory[member])
    if agreeing < terms.threshold:
        raise SecureSumError(
            f"{agreeing} of the committee of {len(terms.committee)} clients signed the list of survivors that this client was "
            f"shown; {terms.threshold} must. Others were shown another list, or too few are left; it does not help to open the "
            "sum."
        )
    shares = {peer: held.seed_share if peer in listed else held.mask_share for peer, held in state.held.items()}
    after = Told(
        terms=terms,
        client=state.client,
        transcript=state.transcript,
        peers=state.peers,
        pairs=state.pairs,
        survivors=state.survivors,
    )
    return after, message(reply_kind("unmask"), terms, state.self_seed + laid_out(neighbours, shares))


def recover(state: Told, request: Packet) -> tuple[Done, Packet]:
    """Reveal the keys of the masks with neighbours that dealt wrongly, so that the sum can be opened without them.

    The request convicts such a neighbour by its own signature (`dealing.Accusation`). Nobody owes it anything then. A neighbour
    that is not on the list of survivors needs no conviction: all who open the sum hold that one list, so nobody reveals its
    seed, and its values stay secret.
    """
    terms = _at(state, Told)
    neighbours = terms.neighbours_of(state.client)
    accused = from_accusations(body_of(request, request_kind("recover"), terms), terms, state.client)
    listed = set(flagged(state.survivors, terms.clients))
    for peer, accusation in accused.items():
        if peer not in state.peers:
            raise SecureSumError(f"client {peer} is accused, but it never dealt shares to this client.")
        if peer not in listed:
            continue
        own = state.peers[peer]
        if accusation is None or not accusation.convicts(
            state.transcript, peer, identity=own.identity, mask=own.mask, seed=own.seed
        ):
            raise SecureSumError(
                f"client {peer} is said to have dealt shares wrongly, and nothing proves it. This client does not open masks "
                "of those who did nothing wrong."
            )
    keys = {peer: state.pairs[peer] for peer in accused}
    after = Done(terms=terms, client=state.client)
    return after, message(reply_kind("recover"), terms, laid_out(neighbours, keys))


def pair_key(own: KeyAgreement, other: bytes, transcript: Transcript, client: int, peer: int, premise: bytes) -> bytes:
    """The key of the mask that two clients with the same premise share, whichever of them derives it."""
    return derived(own.with_(other), context("mask", transcript, min(client, peer), max(client, peer)) + premise)


def self_key(seed: bytes, transcript: Transcript, client: int) -> bytes:
    """The key of a client's own mask."""
    return derived(seed, context("self mask", transcript, client))


def consent_text(transcript: Transcript, survivors: bytes) -> bytes:
    """The text that is signed about a list of survivors. It contains the terms and the keys of all clients."""
    return context("consent", transcript) + survivors


def check_premise(premise: bytes) -> None:
    """Refuse what is not a digest."""
    if not isinstance(premise, bytes) or len(premise) != PREMISE:
        raise InputError(f"a premise is a digest of {PREMISE} bytes, got {premise!r}. Use hashlib.sha256(...).digest().")


def _opened(state: Shared, peer: int, part: bytes) -> Held | None:
    """The shares in a sealed box, or None if it does not open or its dealer committed to others."""
    plain = unseal(state.peers[peer].incoming, state.transcript, peer, state.client, part[:SEALED])
    if plain is None:
        return None
    mask_share, seed_share = plain[:SHARE], plain[SHARE:]
    promised = part[SEALED : SEALED + COMMITTED], part[SEALED + COMMITTED :]
    found = tuple(
        committed(secret, state.transcript, peer, state.client, own)
        for secret, own in ((Secret.MASK, mask_share), (Secret.SEED, seed_share))
    )
    return Held(mask_share, seed_share) if found == promised else None


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
