"""Exactly uniform subsets and permutations, drawn from a stream.

They are sequential by nature and cost O(size) or O(dim) once a sketch, so they are drawn on the CPU and moved to where
they are used. Each 64-bit draw is scaled by multiplication, which is uniform up to n/2^64.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from sketchfed.kernels.jit import inlined, kernel
from sketchfed.kernels.philox import fill, philox
from sketchfed.seeds import Words

_BIN_LOG = 15  # bins of some 2^15 items stay in the second-level cache
_BUFFER = 1024  # words drawn at a time
_COLUMNS = 64  # drawn side by side, which vectorises


@intrinsic
def high_product(_typing: Any, a: types.Type, b: types.Type) -> Any:
    """The upper 64 bits of a 64 by 64 bit product: ⌊a·b / 2^64⌋, an integer below b."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(arguments[0], wide), builder.zext(arguments[1], wide))
        return builder.trunc(builder.lshr(product, wide(64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def trailing_zeros(_typing: Any, word: types.Type) -> Any:
    """The position of the lowest set bit of a non-zero word."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


@kernel
def _refill(stream, block, words):
    """Fill a buffer from block `block` of the stream on, and return the block that follows."""
    fill(stream, block, words)
    return block + words.size // 4


@inlined
def _draw(words, k):
    """The 64-bit draw number `k` of a buffer."""
    return np.uint64(words[2 * k]) | np.uint64(words[2 * k + 1]) << np.uint64(32)


@kernel
def _subset(stream, dim, out):
    """Floyd's algorithm over a bitmap, read out in ascending order."""
    taken = np.zeros((dim + 63) >> 6, np.uint64)
    size, block = out.size, 0
    words = np.empty(_BUFFER, np.uint32)
    for k in range(size):
        draw = k % (_BUFFER // 2)
        if draw == 0:
            block = _refill(stream, block, words)
        last = np.uint64(dim - size + k)
        pick = high_product(_draw(words, draw), last + np.uint64(1))
        if taken[pick >> np.uint64(6)] >> (pick & np.uint64(63)) & np.uint64(1):
            pick = last
        taken[pick >> np.uint64(6)] |= np.uint64(1) << (pick & np.uint64(63))
    found = np.uint64(0)
    for index in range(taken.size):
        word = taken[index]
        while word:
            out[found] = np.int32(np.uint64(index << 6) + trailing_zeros(word))
            found += np.uint64(1)
            word &= word - np.uint64(1)


@kernel
def _shuffle(stream, block, words, items, start, stop):
    """Fisher–Yates on items[start : stop]; returns the next unused block of the stream."""
    draw = _BUFFER // 2
    for i in range(stop - 1, start, -1):
        if draw == _BUFFER // 2:
            block = _refill(stream, block, words)
            draw = 0
        j = np.uint64(start) + high_product(_draw(words, draw), np.uint64(i - start + 1))
        draw += 1
        items[i], items[j] = items[j], items[i]
    return block


@kernel
def _permutation(stream, bin_log, out):
    """Rao–Sandelius: throw the items into bins by random bits, then shuffle each bin while it is in cache."""
    dim, bins, block = out.size, 1 << bin_log, 0
    words = np.empty(_BUFFER, np.uint32)
    if bins == 1:
        for i in range(dim):
            out[i] = i
        _shuffle(stream, block, words, out, 0, dim)
        return
    home = np.empty(dim, np.uint16)
    place = np.zeros(bins + 1, np.int64)
    for first in range(0, dim, _BUFFER):
        block = _refill(stream, block, words)
        for i in range(first, min(first + _BUFFER, dim)):
            home[i] = words[i - first] >> np.uint32(32 - bin_log)
            place[home[i] + 1] += 1
    for index in range(bins):
        place[index + 1] += place[index]
    for i in range(dim):
        out[place[home[i]]] = i
        place[home[i]] += 1
    start = np.int64(0)
    for index in range(bins):
        block = _shuffle(stream, block, words, out, start, place[index])
        start = place[index]


@kernel
def deal(order, edges, signs, codes):
    """Deal coordinates, in a random order, into consecutive buckets: codes[coordinate] ← 2·bucket + sign bit.

    Bucket k, counted from the first of these, takes the coordinates edges[0] + order[p] for positions p from edges[k] to
    edges[k + 1]; the sign of a coordinate is its bit of `signs`.
    """
    origin = edges[0]
    for k in range(edges.size - 1):
        for p in range(edges[k] - origin, edges[k + 1] - origin):
            i = origin + order[p]
            codes[i] = 2 * k | signs[i >> 5] >> np.uint32(i & 31) & np.uint32(1)


@kernel
def distinct_codes(stream, first, size, codes):
    """codes[:, i] ← distinct uniform buckets of column first + i, with random signs, by Floyd's algorithm.

    Column c draws from blocks (c, 0), (c, 1), ... of the stream: two words a nonzero, then words of sign bits.
    """
    nonzeros = codes.shape[0]
    k0, k1, c2, c3 = np.uint64(stream[0]), np.uint64(stream[1]), np.uint64(stream[2]), np.uint64(stream[3])
    blocks = (2 * nonzeros + (nonzeros + 31) // 32 + 3) // 4
    words = np.empty((4 * blocks, _COLUMNS), np.uint64)
    for start in range(0, codes.shape[1], _COLUMNS):
        count = min(_COLUMNS, codes.shape[1] - start)
        for block in range(blocks):
            w0, w1, w2, w3 = words[4 * block], words[4 * block + 1], words[4 * block + 2], words[4 * block + 3]
            for i in range(count):
                w0[i], w1[i], w2[i], w3[i] = philox(np.uint64(first + start + i), np.uint64(block), c2, c3, k0, k1)
        for k in range(nonzeros):
            last = np.uint64(size - nonzeros + k)
            low, high, signs = words[2 * k], words[2 * k + 1], words[2 * nonzeros + (k >> 5)]
            for i in range(count):
                bucket = high_product(low[i] | high[i] << np.uint64(32), last + np.uint64(1))
                for earlier in range(k):
                    if np.uint64(codes[earlier, start + i]) >> np.uint64(1) == bucket:
                        bucket = last
                sign = signs[i] >> np.uint64(k & 31) & np.uint64(1)
                codes[k, start + i] = np.uint32(bucket << np.uint64(1) | sign)


def subset(stream: Words, *, dim: int, size: int) -> npt.NDArray[np.int32]:
    """A uniform subset of `size` of range(dim), ascending."""
    out = np.empty(size, np.int32)
    _subset(stream, dim, out)
    return out


def permutation(stream: Words, *, dim: int) -> npt.NDArray[np.int32]:
    """A uniform permutation of range(dim)."""
    out = np.empty(dim, np.int32)
    _permutation(stream, min(16, max(0, (dim - 1).bit_length() - _BIN_LOG)), out)
    return out
