"""Two kinds of randomness that must never be mixed up.

`PublicSeed` is shared by all parties: from it everybody rebuilds the same sketches, on any platform. `SecretSeed` comes
from the operating system and stays where it was made: privacy noise and masks are drawn from nothing else.
"""

import secrets
from collections.abc import Callable
from hashlib import blake2b
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from sketchfed.errors import InputError

__all__ = [
    "PublicSeed",
    "SecretSeed",
    "SecretStream",
    "Words",
    "secret_bytes",
]

Words = npt.NDArray[np.uint32]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Encrypt counters `(..., 4)` with Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3")."""
    c0, c1, c2, c3 = (counter[..., lane].astype(np.uint64) for lane in range(4))
    for turn in range(10):
        k0, k1 = (np.uint64((key[lane] + turn * _WEYL[lane]) & 0xFFFFFFFF) for lane in range(2))
        left, right = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (right >> _HALF) ^ c1 ^ k0, right & _LOW, (left >> _HALF) ^ c3 ^ k1, left & _LOW
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def _derive(state: bytes, label: str, index: int, *, size: int, person: bytes) -> bytes:
    """Hash a parent's state, a label and an index into a child's state."""
    if not isinstance(label, str) or not label:
        raise InputError(f"a child seed needs a non-empty text label, got {label!r}. Write seed.child('round', 3).")
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < 2**64:
        raise InputError(f"a child seed's index must be an integer from 0 to 2^64 - 1, got {index!r}.")
    name = label.encode()
    return blake2b(
        len(name).to_bytes(4, "little") + name + index.to_bytes(8, "little"), key=state, digest_size=size, person=person
    ).digest()


class PublicSeed:
    """A stream of integers that everybody can rebuild, and a tree of independent ones below it.

    `PublicSeed(7).child("round", 3).child("client", 12)` names a stream of Philox4x32-10: 64 bits of the derived state are
    its key, the other 64 the upper half of its counter, so word `i` is known without drawing the words before it. The
    same integers come out on every platform, device and number of threads.

    >>> PublicSeed(7).child("round", 3).words(2).tolist()
    [522914219, 1478035881]
    """

    __slots__ = ("_name", "_state")
    _state: bytes
    _name: str

    def __init__(self, value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
            raise InputError(f"a public seed is an integer from 0 to 2^64 - 1, got {value!r}. Write PublicSeed(7).")
        self._fill(_derive(b"", "root", value, size=16, person=b"sketchfed.public"), f"PublicSeed({value})")

    def _fill(self, state: bytes, name: str) -> None:
        object.__setattr__(self, "_state", state)
        object.__setattr__(self, "_name", name)

    @classmethod
    def _of(cls, state: bytes, name: str) -> "PublicSeed":
        seed = object.__new__(cls)
        seed._fill(state, name)
        return seed

    @classmethod
    def from_bytes(cls, state: bytes) -> "PublicSeed":
        """The seed whose `to_bytes()` gave these 16 bytes: how a packet tells its receiver which stream it used."""
        if not isinstance(state, bytes) or len(state) != 16:
            raise InputError(f"a public seed is 16 bytes, got {state!r}.")
        return cls._of(state, f"PublicSeed.from_bytes({state!r})")

    def to_bytes(self) -> bytes:
        return self._state

    def child(self, label: str, index: int = 0) -> "PublicSeed":
        """An independent seed named by a label and a number."""
        state = _derive(self._state, label, index, size=16, person=b"sketchfed.public")
        return self._of(state, f"{self._name}.child({label!r}, {index})")

    @property
    def stream(self) -> Words:
        """The four words (key, key, counter, counter) by which a kernel addresses this seed's Philox stream."""
        return np.frombuffer(self._state, dtype="<u4").astype(np.uint32)

    def words(self, count: int, *, start: int = 0) -> Words:
        """Words `start` to `start + count` of the stream, as uint32."""
        if count < 0 or start < 0:
            raise InputError(f"count and start cannot be negative, got count={count}, start={start}.")
        first, last = start // 4, -(-(start + count) // 4)
        key0, key1, high0, high1 = (int(word) for word in self.stream)
        blocks = np.arange(first, last, dtype=np.uint64)
        counter = np.empty((last - first, 4), np.uint32)
        counter[:, 0], counter[:, 1], counter[:, 2], counter[:, 3] = blocks & _LOW, blocks >> _HALF, high0, high1
        return philox4x32(counter, (key0, key1)).reshape(-1)[start - 4 * first :][:count]

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a seed never changes; derive another with .child(label, index)")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicSeed) and self._state == other._state

    def __hash__(self) -> int:
        return hash(self._state)

    def __repr__(self) -> str:
        return self._name

    def __reduce__(self) -> tuple[Callable[[bytes], "PublicSeed"], tuple[bytes]]:
        return PublicSeed.from_bytes, (self._state,)


class SecretSeed:
    """256 bits from the operating system, for noise and masks. It is never printed, compared or serialised.

    >>> SecretSeed()
    SecretSeed(hidden)
    """

    __slots__ = ("_name", "_state")
    _state: bytes
    _name: str | None

    def __init__(self) -> None:
        self._state = secrets.token_bytes(32)
        self._name = None

    @classmethod
    def insecure(cls, value: int) -> "SecretSeed":
        """A "secret" that anyone who knows the number can rebuild, for tests and for experiments that must be repeatable.

        Whoever rebuilds it subtracts the noise and the masks drawn from it: there is no privacy, whatever ε says. It and all
        its children say so, when printed and by `is_insecure`, so that a report can.

        >>> SecretSeed.insecure(7).child("noise")
        SecretSeed.insecure(7).child('noise', 0)
        """
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
            raise InputError(
                f"an insecure secret is made of an integer from 0 to 2^64 - 1, got {value!r}. Write SecretSeed.insecure(7) to "
                "repeat an experiment, SecretSeed() to keep anything secret."
            )
        state = _derive(b"", "insecure", value, size=32, person=b"sketchfed.secret")
        return cls._of(state, f"SecretSeed.insecure({value})")

    @classmethod
    def _of(cls, state: bytes, name: str | None) -> "SecretSeed":
        seed = object.__new__(cls)
        seed._state, seed._name = state, name
        return seed

    @property
    def is_insecure(self) -> bool:
        """Whether this secret, or the one it derives from, can be rebuilt from a number."""
        return self._name is not None

    def child(self, label: str, index: int = 0) -> "SecretSeed":
        """An independent secret named by a label and a number; children of an insecure one are insecure."""
        state = _derive(self._state, label, index, size=32, person=b"sketchfed.secret")
        return self._of(state, None if self._name is None else f"{self._name}.child({label!r}, {index})")

    def __repr__(self) -> str:
        return self._name or "SecretSeed(hidden)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise InputError(
            "a SecretSeed is never serialised or copied: whoever holds it can undo the noise it made. "
            "Draw a new one where it is needed, or derive one with .child(label, index)."
        )


class SecretStream:
    """A secret's ChaCha20 key stream, read on and on, no byte twice: the one source of noise and masks.

    Public seeds are refused: what everybody can rebuild, everybody can subtract. Two streams of one secret are the same, so
    each purpose takes a child of its own.
    """

    __slots__ = ("_cipher",)

    def __init__(self, seed: SecretSeed) -> None:
        if not isinstance(seed, SecretSeed):
            raise InputError(
                f"noise and masks are drawn from a SecretSeed, got {type(seed).__name__}: what others can rebuild "
                "they can subtract. Use SecretSeed(), which the operating system fills."
            )
        self._cipher = Cipher(algorithms.ChaCha20(seed._state, bytes(16)), mode=None).encryptor()

    def read(self, count: int) -> bytes:
        """The next `count` bytes."""
        return self._cipher.update(bytes(count))

    def words(self, count: int) -> Words:
        """The next `count` words of 32 bits."""
        return np.frombuffer(self.read(4 * count), dtype="<u4").astype(np.uint32, copy=False)


def secret_bytes(seed: SecretSeed, count: int) -> bytes:
    """The first `count` bytes of a secret's stream."""
    return SecretStream(seed).read(count)
