"""What a client deals to its neighbours, signed as a whole, and how a client is convicted of dealing wrongly."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256

from sketchfed.errors import WireError
from sketchfed.secure.keys import KEY, SIGNATURE, TAG, Identity, commitment, context, is_signed, public_key
from sketchfed.secure.messages import flagged, flags, laid_out, taken_apart
from sketchfed.secure.shamir import PRIME, SHARE, combine
from sketchfed.secure.terms import Terms
from sketchfed.secure.transcript import Transcript

SEALED = 2 * SHARE + TAG
COMMITTED = 16
"""The bytes of a share's commitment. A collision helps nobody, because secrets must fit a public key or a full commitment."""
DEALT = SEALED + 2 * COMMITTED
"""The bytes that each neighbour is dealt: two sealed shares, and a commitment to each."""


class Secret(Enum):
    """The two secrets that a client shares. A third party may learn one of them, never both."""

    MASK = "mask share"
    SEED = "seed share"


def committed(secret: Secret, transcript: Transcript, dealer: int, holder: int, share: bytes) -> bytes:
    """The commitment to a share."""
    return commitment(secret.value, transcript, (dealer, holder), share)[:COMMITTED]


def self_commitment(terms: Terms, client: int, seed: bytes) -> bytes:
    """The commitment to the seed of a client's own mask, which it advertises with its keys."""
    return commitment("self seed", terms, (client,), seed)


@dataclass(frozen=True)
class Dealing:
    """What one client deals: for each neighbour a box of two sealed shares and commitments to them, under one signature."""

    parts: Mapping[int, bytes]
    signature: bytes

    @classmethod
    def signed(cls, identity: Identity, transcript: Transcript, dealer: int, parts: Mapping[int, bytes]) -> "Dealing":
        boxes, promises = _apart(parts)
        return cls(parts, identity.sign(_text(transcript, dealer, sha256(boxes).digest(), promises)))

    def to_bytes(self, neighbours: Sequence[int]) -> bytes:
        return self.signature + laid_out(neighbours, self.parts)

    @classmethod
    def from_bytes(cls, data: bytes, neighbours: Sequence[int]) -> "Dealing":
        return cls(taken_apart(data[SIGNATURE:], neighbours, DEALT), data[:SIGNATURE])

    def is_signed_by(self, transcript: Transcript, dealer: int, identity: bytes) -> bool:
        boxes, promises = _apart(self.parts)
        return is_signed(_text(transcript, dealer, sha256(boxes).digest(), promises), self.signature, identity)

    def promise(self, secret: Secret, holder: int) -> bytes:
        """The commitment to the share of a holder."""
        start = SEALED if secret is Secret.MASK else SEALED + COMMITTED
        return self.parts[holder][start : start + COMMITTED]

    def accusation(self, secret: Secret, shares: Mapping[int, bytes]) -> "Accusation":
        """The proof that the client dealt these shares, by holder. Anyone who combines them sees that they are wrong."""
        boxes, promises = _apart(self.parts)
        return Accusation(secret, self.signature, sha256(boxes).digest(), promises, shares)


@dataclass(frozen=True)
class Accusation:
    """Shares that a dealer committed to and signed. They reach the threshold, but do not give the secret that it showed."""

    secret: Secret
    signature: bytes
    boxes: bytes
    promises: Mapping[int, bytes]
    """Both commitments of each holder."""
    shares: Mapping[int, bytes]

    def convicts(self, transcript: Transcript, dealer: int, *, identity: bytes, mask: bytes, seed: bytes) -> bool:
        """Whether the dealer signed shares that do not open the secret behind `mask`, its public key, or `seed`."""
        terms = transcript.terms
        if not is_signed(_text(transcript, dealer, self.boxes, self.promises), self.signature, identity):
            return False
        points = {holder: point for point, holder in enumerate(terms.neighbours_of(dealer), 1)}
        at = 0 if self.secret is Secret.MASK else COMMITTED
        for holder, own in self.shares.items():
            promised = self.promises.get(holder, b"")[at : at + COMMITTED]
            if committed(self.secret, transcript, dealer, holder, own) != promised:
                return False
        if len(self.shares) != terms.threshold or not self.shares.keys() <= points.keys():
            return False
        return not fits(
            self.secret, {points[holder]: own for holder, own in self.shares.items()}, terms, dealer, mask=mask, seed=seed
        )

    def to_bytes(self, neighbours: Sequence[int]) -> bytes:
        kind = bytes([self.secret is Secret.SEED])
        return kind + self.signature + self.boxes + laid_out(neighbours, self.promises) + laid_out(neighbours, self.shares)

    @classmethod
    def from_bytes(cls, data: bytes, neighbours: Sequence[int]) -> "Accusation":
        fixed, header = 1 + SIGNATURE + KEY, (len(neighbours) + 7) // 8
        if len(data) < fixed + header or data[0] > 1:
            raise WireError(f"an accusation takes more than {fixed + header} bytes, and names one of two secrets.")
        dealt = sum(byte.bit_count() for byte in data[fixed : fixed + header])
        middle = fixed + header + 2 * COMMITTED * dealt
        return cls(
            Secret.SEED if data[0] else Secret.MASK,
            data[1 : 1 + SIGNATURE],
            data[1 + SIGNATURE : fixed],
            taken_apart(data[fixed:middle], neighbours, 2 * COMMITTED),
            taken_apart(data[middle:], neighbours, SHARE),
        )


def to_accusations(terms: Terms, client: int, accused: Mapping[int, Accusation | None]) -> bytes:
    """Join what a client is told about neighbours that dealt wrongly: who they are, and the proofs. Some need no proof."""
    neighbours = terms.neighbours_of(client)
    body = flags(neighbours, accused)
    for peer in neighbours:
        if peer in accused:
            proof = accused[peer]
            data = b"" if proof is None else proof.to_bytes(terms.neighbours_of(peer))
            body += len(data).to_bytes(4, "little") + data
    return body


def from_accusations(body: bytes, terms: Terms, client: int) -> dict[int, Accusation | None]:
    """Take apart what `to_accusations` joined."""
    neighbours = terms.neighbours_of(client)
    at = (len(neighbours) + 7) // 8
    accused: dict[int, Accusation | None] = {}
    for peer in flagged(body[:at], neighbours):
        size = int.from_bytes(body[at : at + 4], "little")
        data = body[at + 4 : at + 4 + size]
        if len(body) < at + 4 or len(data) < size:
            raise WireError(f"the accusation of client {peer} is cut off.")
        accused[peer] = Accusation.from_bytes(data, terms.neighbours_of(peer)) if data else None
        at += 4 + size
    if len(body) != at:
        raise WireError(f"accusations end after {at:,} bytes, {len(body):,} arrived.")
    return accused


def fits(secret: Secret, shares: Mapping[int, bytes], terms: Terms, dealer: int, *, mask: bytes, seed: bytes) -> bytes | None:
    """The secret that shares give, by point, if it is the one that its owner showed. Otherwise None."""
    if any(int.from_bytes(share, "little") >= PRIME for share in shares.values()):
        return None
    found = combine(shares)
    shown = public_key(found) == mask if secret is Secret.MASK else self_commitment(terms, dealer, found) == seed
    return found if shown else None


def _apart(parts: Mapping[int, bytes]) -> tuple[bytes, dict[int, bytes]]:
    """All boxes as one string, and both commitments of each holder."""
    boxes = b"".join(part[:SEALED] for part in parts.values())
    return boxes, {holder: part[SEALED:] for holder, part in parts.items()}


def _text(transcript: Transcript, dealer: int, boxes: bytes, promises: Mapping[int, bytes]) -> bytes:
    named = b"".join(holder.to_bytes(8, "little") + own for holder, own in promises.items())
    return context("dealing", transcript, dealer) + boxes + named
