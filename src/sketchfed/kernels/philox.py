"""Philox4x32-10 streams in numba and torch: word for word what `PublicSeed.words` gives in numpy.

A stream is four words, two of key and two that fill the upper half of the counter (`PublicSeed.stream`). The lower half
counts blocks of four output words.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sketchfed.kernels.jit import inlined, kernel
from sketchfed.seeds import Words

_LOW = 0xFFFFFFFF


@inlined
def philox(c0, c1, c2, c3, k0, k1):
    """Four words from a counter and a key, all of them uint64 below 2^32: scalars, so that loops around it vectorise."""
    low, half = np.uint64(_LOW), np.uint64(32)
    for _ in range(10):
        left, right = (c0 & low) * np.uint64(0xD2511F53), (c2 & low) * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (right >> half) ^ c1 ^ k0, right & low, (left >> half) ^ c3 ^ k1, left & low
        k0, k1 = k0 + np.uint64(0x9E3779B9) & low, k1 + np.uint64(0xBB67AE85) & low
    return c0, c1, c2, c3


@kernel
def fill(stream, first, out):
    """out ← the words of a stream from block `first` on; its length is a multiple of four."""
    k0, k1, c2, c3 = np.uint64(stream[0]), np.uint64(stream[1]), np.uint64(stream[2]), np.uint64(stream[3])
    for block in range(out.size // 4):
        count = np.uint64(first + block)
        a, b, c, d = philox(count & np.uint64(_LOW), count >> np.uint64(32), c2, c3, k0, k1)
        out[4 * block], out[4 * block + 1] = np.uint32(a), np.uint32(b)
        out[4 * block + 2], out[4 * block + 3] = np.uint32(c), np.uint32(d)


def words(stream: Words, count: int) -> Words:
    """At least `count` words from the start of a stream, rounded up to whole blocks."""
    out = np.empty(-(-count // 4) * 4, np.uint32)
    fill(stream, 0, out)
    return out


def bits(words: Words, count: int) -> npt.NDArray[np.uint8]:
    """The first `count` bits of some words, the lowest of each word first, on machines of either byte order."""
    return np.unpackbits(words.astype("<u4").view(np.uint8), count=count, bitorder="little")


def words_twin(stream: Words, c0: Tensor, c1: Tensor | int = 0) -> Tensor:
    """Blocks of words `(..., 4)` as int64 on the device of the counters `c0` and `c1` (int64, below 2^32)."""
    k0, k1, high0, high1 = (int(word) for word in stream)
    lanes = [
        c0,
        torch.as_tensor(c1, device=c0.device).expand_as(c0),
        torch.full_like(c0, high0),
        torch.full_like(c0, high1),
    ]
    for turn in range(10):
        left, right = lanes[0] * 0xD2511F53, lanes[2] * 0xCD9E8D57  # wraps, but the bits are right
        lanes = [
            (right >> 32 & _LOW) ^ lanes[1] ^ (k0 + turn * 0x9E3779B9 & _LOW),
            right & _LOW,
            (left >> 32 & _LOW) ^ lanes[3] ^ (k1 + turn * 0xBB67AE85 & _LOW),
            left & _LOW,
        ]
    return torch.stack(lanes, dim=-1)
