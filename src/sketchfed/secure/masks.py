"""Masks: the key stream of AES-256-CTR as integers, added and subtracted modulo 2^bits."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from torch import Tensor

MaskWords = npt.NDArray[np.unsignedinteger[Any]]

CHUNK = 1 << 17
"""Bytes of a stream that are expanded at a time: they and the sums they are added to stay in the cache."""

_ZEROS = bytes(CHUNK)


def word_for(bits: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The smallest little-endian word that holds this many bits. Sums wrap around in it, which is right modulo 2^bits too."""
    return np.dtype("u1" if bits <= 8 else "<u2" if bits <= 16 else "<u4")


def add_masks(words: MaskWords, *, added: Sequence[bytes], subtracted: Sequence[bytes]) -> None:
    """words ← words + the masks of some keys − the masks of others, modulo the word.

    A mask is the stream of one 32-byte key from its beginning, and is never held as a whole: all streams advance together.
    """
    streams = [(_stream(key), np.add) for key in added] + [(_stream(key), np.subtract) for key in subtracted]
    buffer = bytearray(CHUNK + 15)  # the cipher wants room for one block more
    width, zeros = words.itemsize, memoryview(_ZEROS)
    step = CHUNK // width
    for start in range(0, words.size, step):
        part = words[start : start + step]
        expanded = np.frombuffer(buffer, words.dtype, part.size)
        for stream, operation in streams:
            stream.update_into(zeros[: part.size * width], buffer)
            operation(part, expanded, out=part)


def _stream(key: bytes) -> CipherContext:
    return Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()


def to_words(values: Tensor, bits: int) -> MaskWords:
    """Integers as words of their own, to be masked in place."""
    return values.numpy().astype(word_for(bits))


def from_words(words: MaskWords, bits: int) -> Tensor:
    """The words modulo 2^bits, as int64."""
    return torch.from_numpy(words.astype(np.int64) & (2**bits - 1))
