"""What a lying server and its accomplices can compute from everything that honest clients sent them.

Masked values of a client are x + its own mask ± a mask with each peer. `Knowledge` reads the bytes of all replies and removes
every mask that it can compute. What is left is linear: the adversary learns exactly those combinations of the x in which the
unknown masks cancel. `learnt` returns a basis of them, each with its value, which tests compare with the clients' real inputs.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import islice

import torch
from cancelling import cancelling
from torch import Tensor

from sketchfed.secure import Identity, Terms
from sketchfed.secure.client import PREMISE, pair_key, self_key
from sketchfed.secure.dealing import DEALT, SEALED, Dealing, Secret, committed, fits, self_commitment
from sketchfed.secure.keys import KEY, Advertised, KeyAgreement, context, derived, unseal
from sketchfed.secure.masks import add_masks, from_words, to_words
from sketchfed.secure.messages import sum_of, taken_apart
from sketchfed.secure.shamir import SHARE
from sketchfed.secure.states import Joined
from sketchfed.secure.transcript import Transcript, read_proof
from sketchfed.wire import Packet, unpack


@dataclass(frozen=True)
class Row:
    """Masked values that one client sent. `peers` are those whose boxes it got, so whose masks it added."""

    client: int
    transcript: Transcript
    peers: tuple[int, ...]
    reply: bytes
    premise: bytes

    @property
    def terms(self) -> Terms:
        return self.transcript.terms


@dataclass(frozen=True)
class Learnt:
    """A combination of inputs, by row, and what the adversary computed for it."""

    parts: Mapping[Row, int]
    values: Tensor


class Knowledge:
    """All that the adversary has heard. `joined` are the accomplices' secrets, by the digest of terms and client."""

    def __init__(self, identities: Mapping[int, Identity]) -> None:
        self.accomplices = identities
        self.joined: dict[tuple[bytes, int], Joined] = {}
        self.keys: defaultdict[bytes, dict[int, Advertised]] = defaultdict(dict)
        self.transcripts: dict[tuple[bytes, int], Transcript] = {}
        self.dealings: defaultdict[bytes, dict[int, Dealing]] = defaultdict(dict)
        self.shares: defaultdict[tuple[bytes, Secret, int], dict[int, bytes]] = defaultdict(dict)
        self.rows: list[Row] = []
        self._terms: dict[bytes, Terms] = {}
        self._seeds: dict[tuple[bytes, int], bytes] = {}
        self._pairs: dict[tuple[bytes, int, int, bytes], bytes] = {}

    # Hearing ---------------------------------------------------------------------------------------------------------

    def hear(self, client: int, request: bytes, reply: bytes) -> None:
        """Take everything out of an honest client's reply that can be used."""
        asked, told = unpack(request), unpack(reply)
        if told.kind == "secure.keys.reply":
            self._terms[sum_of(told)] = Terms.from_packet(asked)
        terms = self.named(sum_of(told))
        neighbours, body = terms.neighbours_of(client), _body(told)
        match told.kind:
            case "secure.keys.reply":
                self.keys[terms.digest][client] = Advertised.from_bytes(body)
            case "secure.shares.reply":
                shown = self.keys[terms.digest][client].to_bytes()
                transcript, _ = read_proof(_body(asked), terms, client, shown)
                self.transcripts[terms.digest, client] = transcript
                self.deal(transcript, client, Dealing.from_bytes(body, neighbours))
            case "secure.masked.reply":
                peers = tuple(taken_apart(_body(asked), neighbours, DEALT))
                row = Row(client, self.transcripts[terms.digest, client], peers, reply, body[:PREMISE])
                self.rows += [] if row in self.rows else [row]  # the same bytes once more tell nothing
            case "secure.unmask.reply":
                if self_commitment(terms, client, body[:KEY]) == self.keys[terms.digest][client].seed:
                    self._seeds[terms.digest, client] = body[:KEY]
                for dealer, share in taken_apart(body[KEY:], neighbours, SHARE).items():
                    self._take(self.transcripts[terms.digest, client], dealer, client, share)
            case "secure.recover.reply":
                transcript = self.transcripts[terms.digest, client]
                premises = {row.premise for row in self.rows if (row.terms, row.client) == (terms, client)}
                for peer, key in taken_apart(body, neighbours, KEY).items():
                    for premise in premises:
                        self._pairs[transcript.digest, min(client, peer), max(client, peer), premise] = key

    def named(self, name: bytes) -> Terms:
        """The terms that packets name by these bytes."""
        return self._terms[name]

    def deal(self, transcript: Transcript, dealer: int, dealing: Dealing) -> None:
        """Keep a dealing, and open the boxes in it that are for accomplices."""
        terms = transcript.terms
        self.dealings[transcript.digest][dealer] = dealing
        for holder in dealing.parts.keys() & self.accomplices.keys():
            own = self.joined.get((terms.digest, holder))
            if own is not None and dealer not in self.accomplices:
                secret = KeyAgreement(own.seal_key).with_(self.keys[terms.digest][dealer].seal)
                key = derived(secret, context("seal", transcript, dealer, holder))
                plain = unseal(key, transcript, dealer, holder, dealing.parts[holder][:SEALED])
                for share in (plain[:SHARE], plain[SHARE:]) if plain else ():
                    self._take(transcript, dealer, holder, share)

    def _take(self, transcript: Transcript, dealer: int, holder: int, share: bytes) -> None:
        """Keep a share as what its dealer's commitments say that it is."""
        dealing = self.dealings[transcript.digest].get(dealer)
        for secret in Secret:
            if dealing and committed(secret, transcript, dealer, holder, share) == dealing.promise(secret, holder):
                self.shares[transcript.terms.digest, secret, dealer][holder] = share

    # Computing -------------------------------------------------------------------------------------------------------

    def secret(self, secret: Secret, terms: Terms, client: int) -> bytes | None:
        """The mask key or the self seed of a client, if it can be had."""
        if client in self.accomplices:
            own = self.joined[terms.digest, client]
            return own.mask_key if secret is Secret.MASK else own.self_seed
        if secret is Secret.SEED and (terms.digest, client) in self._seeds:
            return self._seeds[terms.digest, client]
        shares = self.shares[terms.digest, secret, client]
        points = {holder: point for point, holder in enumerate(terms.neighbours_of(client), 1)}
        chosen = {points[holder]: share for holder, share in islice(shares.items(), terms.threshold)}
        if len(chosen) < terms.threshold:
            return None
        keys = self.keys[terms.digest][client]
        return fits(secret, chosen, terms, client, mask=keys.mask, seed=keys.seed)

    def both_secrets(self) -> set[int]:
        """The honest clients of which the adversary can compute both secrets of one sum."""
        sums = {(row.terms, row.client) for row in self.rows}
        return {client for terms, client in sums if all(self.secret(secret, terms, client) for secret in Secret)}

    def learnt(self) -> list[Learnt]:
        """A basis of the combinations of inputs that the adversary can compute, with their values."""
        secrets = {
            (secret, row.terms.digest, client): self.secret(secret, row.terms, client)
            for row in self.rows
            for secret, client in ((Secret.SEED, row.client), *((Secret.MASK, c) for c in (row.client, *row.peers)))
        }
        unknown: list[dict[Hashable, int]] = []
        opened = []
        for row in self.rows:
            known, missing = self._masks_of(row, secrets)
            words = to_words(_values(row), row.terms.bits)
            add_masks(words, added=known[-1], subtracted=known[1])
            opened.append(from_words(words, row.terms.bits))
            unknown.append(missing)
        return [
            Learnt(
                {self.rows[at]: factor for at, factor in combination.items()},
                sum(factor * opened[at] for at, factor in combination.items()) % 2 ** self.rows[min(combination)].terms.bits,
            )
            for combination in cancelling(unknown)
        ]

    def _masks_of(
        self, row: Row, secrets: Mapping[tuple[Secret, bytes, int], bytes | None]
    ) -> tuple[dict[int, list[bytes]], dict[Hashable, int]]:
        """The keys of the masks in a row that are known, by sign, and the masks that are not, with their signs."""
        digest, transcript, client = row.terms.digest, row.transcript, row.client
        known: dict[int, list[bytes]] = {1: [], -1: []}
        missing: dict[Hashable, int] = {}
        seed = secrets[Secret.SEED, digest, client]
        if seed is None:
            missing["self", transcript.digest, client] = 1
        else:
            known[1].append(self_key(seed, transcript, client))
        for peer in row.peers:
            pair, sign = (transcript.digest, min(client, peer), max(client, peer), row.premise), 1 if client < peer else -1
            key = self._pairs.get(pair)
            for own, other in ((client, peer), (peer, client)):
                private = secrets[Secret.MASK, digest, own]
                if key is None and private is not None:
                    key = pair_key(KeyAgreement(private), self.keys[digest][other].mask, transcript, own, other, row.premise)
            if key is None:
                missing[pair] = sign
            else:
                known[sign].append(key)
        return known, missing


def _body(packet: Packet) -> bytes:
    return packet.arrays["body"].numpy().tobytes()


def _values(row: Row) -> Tensor:
    values = unpack(row.reply).arrays["values"].values.to(torch.int64)
    return values % 2**row.terms.bits
