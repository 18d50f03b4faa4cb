"""The keys of one secure sum: for signatures, for secrets between two clients, and the context that each use is bound to."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sketchfed.caches import cached
from sketchfed.errors import InputError, SecureSumError
from sketchfed.secure.terms import Terms
from sketchfed.secure.transcript import Transcript
from sketchfed.seeds import SecretSeed, secret_bytes

KEY, SIGNATURE, TAG = 32, 64, 16


Bound = Terms | Transcript
"""What a key is bound to: the terms until the keys of all clients are known, and the transcript from then on."""


def context(purpose: str, to: Bound, *clients: int) -> bytes:
    """The context of a key, signature or commitment: purpose, session, round, what it is bound to, and the clients."""
    name = purpose.encode()
    fixed = b"sketchfed secure 2" + bytes([len(name)]) + name + to.session + to.round.to_bytes(8, "little") + to.digest
    return fixed + b"".join(client.to_bytes(8, "little") for client in clients)


def derived(secret: bytes, info: bytes) -> bytes:
    """32 bytes by HKDF-SHA256 (RFC 5869) without salt."""
    return hmac.digest(hmac.digest(bytes(32), secret, "sha256"), info + b"\1", "sha256")


@dataclass(frozen=True)
class Identity:
    """A client's long-term Ed25519 key. Others know its `public` half from a directory that the server did not write."""

    private: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.private, bytes) or len(self.private) != KEY:
            raise InputError(f"an identity is made from {KEY} secret bytes. Write Identity.of(SecretSeed()).")

    @classmethod
    def of(cls, secret: SecretSeed) -> "Identity":
        """The identity that follows from a secret."""
        return cls(secret_bytes(secret.child("identity"), KEY))

    @cached_property
    def public(self) -> bytes:
        return Ed25519PrivateKey.from_private_bytes(self.private).public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        return Ed25519PrivateKey.from_private_bytes(self.private).sign(message)

    def __reduce__(self) -> tuple[type["Identity"], tuple[bytes]]:
        return Identity, (self.private,)


@cached(maxsize=1 << 13)
def is_signed(message: bytes, signature: bytes, public: bytes) -> bool:
    """Whether this identity signed this message. Cached, because clients of one process check the same signatures."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def public_key(private: bytes) -> bytes:
    """The public half of an X25519 key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


class KeyAgreement:
    """One client's private X25519 key, for agreements with many public keys."""

    def __init__(self, private: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(private)

    def with_(self, public: bytes) -> bytes:
        """The 32 bytes that only these two clients know. Keys for each purpose are `derived` from them."""
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise SecureSumError(
                f"the public key {public.hex()} has small order: whatever is agreed with it, everybody knows. Whoever sent "
                "it is left out."
            ) from None


@dataclass(frozen=True)
class Advertised:
    """What a client shows at the start of a sum, signed by its identity.

    Two public keys, for masks and for sealing shares, and a commitment to the seed of its own mask.
    """

    mask: bytes
    seal: bytes
    seed: bytes
    signature: bytes

    size = 3 * KEY + SIGNATURE

    @classmethod
    def by(cls, identity: Identity, terms: Terms, client: int, *, mask: bytes, seal: bytes, seed: bytes) -> "Advertised":
        return cls(mask, seal, seed, identity.sign(context("keys", terms, client) + mask + seal + seed))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Advertised":
        return cls(data[:KEY], data[KEY : 2 * KEY], data[2 * KEY : 3 * KEY], data[3 * KEY :])

    def to_bytes(self) -> bytes:
        return self.mask + self.seal + self.seed + self.signature

    def check(self, terms: Terms, client: int, directory: Mapping[int, bytes]) -> "Advertised":
        """Return these keys if that client signed them for these terms."""
        if client not in directory:
            raise SecureSumError(
                f"client {client} is not in the directory of identities, so nobody can tell whose its keys are."
            )
        signed = context("keys", terms, client) + self.mask + self.seal + self.seed
        if not is_signed(signed, self.signature, directory[client]):
            raise SecureSumError(
                f"the keys of client {client} are not signed by it for this session, round and these terms: they are forged, "
                "replaced or replayed, or it was told other terms."
            )
        return self


def seal(key: bytes, to: Bound, sender: int, recipient: int, plain: bytes) -> bytes:
    """Seal with AES-256-GCM. The key is used once, so the nonce is fixed and not sent."""
    return AESGCM(key).encrypt(bytes(12), plain, context("sealed", to, sender, recipient))


def unseal(key: bytes, to: Bound, sender: int, recipient: int, sealed: bytes) -> bytes | None:
    """Open a sealed message. None if these are not the bytes that the sender sealed for this recipient."""
    try:
        return AESGCM(key).decrypt(bytes(12), sealed, context("sealed", to, sender, recipient))
    except InvalidTag:
        return None


def commitment(purpose: str, to: Bound, clients: tuple[int, ...], secret: bytes) -> bytes:
    """A hash that commits to 32 secret, uniform bytes without revealing them."""
    return sha256(context(purpose, to, *clients) + secret).digest()
