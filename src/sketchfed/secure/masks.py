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
"""The bytes of a stream that are expanded at a time. They and the sums to which they are added stay in the cache."""

_ZEROS = bytes(CHUNK)


def word_for(bits: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The smallest little-endian word with this many bits. Sums wrap around in it, which is also correct modulo 2^bits."""
    return np.dtype("u1" if bits <= 8 else "<u2" if bits <= 16 else "<u4")


def add_masks(words: MaskWords, *, added: Sequence[bytes], subtracted: Sequence[bytes]) -> None:
    """Add the masks of some keys to the words, and subtract the masks of others, modulo the word.

    A mask is the stream of one 32-byte key from its beginning. It is never stored as a whole: all streams advance together.
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
    """Convert integers to new words, which can be masked in place."""
    return values.numpy().astype(word_for(bits))


def from_words(words: MaskWords, bits: int) -> Tensor:
    """Reduce the words modulo 2^bits, as int64."""
    return torch.from_numpy(words.astype(np.int64) & (2**bits - 1))
