"""The Walsh–Hadamard transform, with random signs fused into its first stage.

Depth-first radix 8: blocks that fit the first-level cache are transformed whole, and every eight finished neighbours are
merged while they are still warm. Each output is the same tree of additions whatever the blocking, so results do not
depend on where they were computed.
"""

import numpy as np
import torch
from torch import Tensor

from sketchfed.kernels.jit import kernel
from sketchfed.kernels.simd import (
    REGISTER_BYTES,
    REGISTERS,
    butterfly2,
    butterfly4,
    butterfly8,
    butterfly8_of_pieces,
    signed_block,
    signed_transform_block,
    transform_block,
)

_CACHED_BYTES_LOG = 14  # 16 KiB: half of the smallest first-level cache in use


@kernel
def _pass(x, start, count, stride, radix_log):
    """One stage of radix 2^radix_log at distance `stride` over `count` elements."""
    lanes = REGISTER_BYTES // x.itemsize
    for group in range(start, start + count, stride << radix_log):
        for offset in range(group, group + stride, lanes):
            if radix_log == 3:
                butterfly8(x, offset, stride)
            elif radix_log == 2:
                butterfly4(x, offset, stride)
            else:
                butterfly2(x, offset, stride)


@kernel
def _stages(x, start, size_log, done_log):
    """The stages above 2^done_log of one block that fits the cache. Radix 8, and 4 + 4 rather than 8 + 2."""
    while done_log < size_log:
        left = size_log - done_log
        radix_log = 3 if left == 3 or left > 4 else min(left, 2)
        _pass(x, start, np.int64(1) << size_log, np.int64(1) << done_log, radix_log)
        done_log += radix_log


@kernel
def _merge(x, end, index, block_log, size_log):
    """After block number `index` is done, merge every complete group of eight that ends with it."""
    finished, level = index + 1, block_log
    while level + 3 <= size_log and finished & 7 == 0:
        count = np.int64(1) << (level + 3)
        _pass(x, end - count, count, np.int64(1) << level, 3)
        finished >>= 3
        level += 3


@kernel
def _block_log(x, size_log):
    """The largest cached block from which radix-8 merges reach the whole without a remainder."""
    largest = _CACHED_BYTES_LOG - (2 if x.itemsize == 4 else 3)
    return size_log if size_log <= largest else largest - (largest - size_log) % 3


@kernel
def _base_log(x):
    return 6 if x.itemsize == 4 else 5


@kernel
def log_of(width):
    """The logarithm of a power of two."""
    log = 0
    while width >> (log + 1):
        log += 1
    return log


@kernel
def _small(x, start, size):
    half = 1
    while half < size:
        for group in range(start, start + size, 2 * half):
            for i in range(group, group + half):
                a, b = x[i], x[i + half]
                x[i], x[i + half] = a + b, a - b
        half *= 2


@kernel
def transform(x, start, size_log):
    """x[start : start + 2^size_log] ← H x, in place and unnormalised, for a flat array."""
    base_log = _base_log(x)
    if size_log < base_log:
        _small(x, start, 1 << size_log)
        return
    block_log = _block_log(x, size_log)
    block, base = np.int64(1) << block_log, np.int64(1) << base_log
    for index in range(np.int64(1) << (size_log - block_log)):
        first = start + index * block
        for offset in range(first, first + block, base):
            transform_block(x, offset, x, offset, np.uint64(0))
        _stages(x, first, block_log, base_log)
        _merge(x, first + block, index, block_log, size_log)


@kernel
def sign_word(words, index, count):
    """Sign bits `count·index` to `count·(index + 1)`, count being 64 or 32, of a bit string in 32-bit words."""
    if count == 32:
        return np.uint64(words[index])
    return np.uint64(words[2 * index]) | np.uint64(words[2 * index + 1]) << np.uint64(32)


@kernel
def _signed_blocks(x, start, words, out, first, last):
    """The base transforms of signed elements first to last, whole blocks: apart, so that its constants stay in registers."""
    base = np.int64(1) << _base_log(x)
    for offset in range(first, last, base):
        signed_transform_block(x, start + offset, out, offset, sign_word(words, offset // base, base))


@kernel
def _signed_end(x, start, length, words, out, first, stop):
    """What is left of a signed block that reaches beyond the end of x: its last elements, then zeros."""
    base = np.int64(1) << _base_log(x)
    out[first:stop] = 0
    if first < length:
        tail = np.zeros(base, x.dtype)
        for i in range(length - first):
            tail[i] = x[start + first + i]
        signed_transform_block(tail, 0, out, first, sign_word(words, first // base, base))


@kernel
def signed_transform(x, start, length, words, out, size_log):
    """out ← H·D·pad(x[start : start + length]); D negates element i where bit i of `words` is set."""
    base_log = _base_log(x)
    if size_log < base_log:
        for i in range(1 << size_log):
            out[i] = 0
            if i < length:
                out[i] = -x[start + i] if words[0] >> np.uint32(i) & np.uint32(1) else x[start + i]
        _small(out, 0, 1 << size_log)
        return
    block_log = _block_log(x, size_log)
    block = np.int64(1) << block_log
    whole = length >> base_log << base_log
    for index in range(np.int64(1) << (size_log - block_log)):
        first = index * block
        _signed_blocks(x, start, words, out, first, min(whole, first + block))
        if whole < first + block:
            _signed_end(x, start, length, words, out, max(whole, first), first + block)
        _stages(out, first, block_log, base_log)
        _merge(out, first + block, index, block_log, size_log)


@kernel
def negate(x, words, length, out, start):
    """out[start : start + length] ← D·x[:length], with D as in `signed_transform`."""
    base = np.int64(REGISTERS * REGISTER_BYTES // x.itemsize)
    whole = length // base
    for index in range(whole):
        signed_block(x, index * base, out, start + index * base, sign_word(words, index, base))
    for i in range(whole * base, length):
        out[start + i] = -x[i] if words[i >> 5] >> np.uint32(i & 31) & np.uint32(1) else x[i]


@kernel
def take(work, rows, scale, out):
    for k in range(rows.size):
        out[k] = scale * work[np.uint64(rows[k])]


@kernel
def sampled_transform(x, layout, words, rows, work, out):
    """out ← S·H·D·x/√rows for each part (start, stop, first, last, width) of the layout, for every row of x. `work` holds the
    widest part.
    """
    flat = x.reshape(-1)
    for item in range(x.shape[0]):
        for part in range(layout.shape[0]):
            start, stop, first, last, width = layout[part]
            origin = item * x.shape[1] + start
            signed_transform(flat, origin, stop - start, words[part], work, log_of(width))
            take(work, rows[first:last], x.dtype.type(1 / np.sqrt(last - first)), out[item, first:last])


@kernel
def sampled_transform_adjoint(y, layout, words, rows, work, out):
    """out ← D·H·Sᵀ·y/√rows, part by part."""
    flat = out.reshape(-1)
    for item in range(y.shape[0]):
        for part in range(layout.shape[0]):
            start, stop, first, last, width = layout[part]
            work[:width] = 0
            scale = y.dtype.type(1 / np.sqrt(last - first))
            for k in range(first, last):
                work[np.uint64(rows[k])] = scale * y[item, k]
            transform(work, 0, log_of(width))
            negate(work, words[part], stop - start, flat, item * out.shape[1] + start)


PIECES_LOG = 3
"""Transforms in pieces: each of 8 pieces is transformed alone, and one last stage of radix 8 joins them, as in one piece."""
_JOINED = 128  # elements of each piece that are joined at a time: 4 KiB of float32


@kernel
def sampled_transform_of_pieces(x, length, words, rows, work, out):
    """out ← S·H·D·pad(x)/√rows for every row of x, with working memory for one piece and for `rows` numbers of each.

    The numbers are those of `sampled_transform` to the last bit. Of each piece only the sampled rows are kept.
    """
    size = rows.size
    piece_log = log_of(2 * length - 1) - PIECES_LOG
    piece = np.int64(1) << piece_log
    found = work[piece : piece + size << PIECES_LOG]
    flat, scale, joined = x.reshape(-1), x.dtype.type(1 / np.sqrt(size)), np.empty(1 << PIECES_LOG, x.dtype)
    for item in range(x.shape[0]):
        for number in range(1 << PIECES_LOG):
            first = number * piece
            some = min(piece, length - first)
            if some > 0:
                signed_transform(flat, item * x.shape[1] + first, some, words[first >> 5 :], work, piece_log)
            for k in range(size):
                found[number * size + k] = work[np.uint64(rows[k] & (piece - 1))] if some > 0 else 0
        for k in range(size):
            for number in range(1 << PIECES_LOG):
                joined[number] = found[number * size + k]
            _small(joined, 0, 1 << PIECES_LOG)
            out[item, k] = scale * joined[rows[k] >> piece_log]


@kernel
def _transform_of_few(values, scale, rows, k, origin, x, start, size_log):
    """x[start : start + 2^size_log] ← H x, where x is scale·values[k] in row rows[k] − origin and otherwise zero.

    Rows ascend. Returns the number of the first row beyond. Each block is written when its transform begins, and is then in the
    first-level cache. Most of its bases hold zeros only, and so do their transforms.
    """
    base, block_log = np.int64(1) << _base_log(x), _block_log(x, size_log)
    block = np.int64(1) << block_log
    for index in range(np.int64(1) << (size_log - block_log)):
        first = start + index * block
        x[first : first + block] = 0
        for offset in range(first, first + block, base):
            beyond, begun = origin + offset - start + base, k
            while k < rows.size and rows[k] < beyond:
                x[start + rows[k] - origin] = scale * values[k]
                k += 1
            if k > begun:
                transform_block(x, offset, x, offset, np.uint64(0))
        _stages(x, first, block_log, _base_log(x))
        _merge(x, first + block, index, block_log, size_log)
    return k


@kernel
def sampled_transform_adjoint_in_place(y, length, words, rows, work, out):
    """out ← D·H·Sᵀ·y/√rows, transformed in `out` itself. `work` holds the pieces that reach beyond `length`."""
    size = rows.size
    piece_log = log_of(2 * length - 1) - PIECES_LOG
    piece = np.int64(1) << piece_log
    whole, scale = length >> piece_log, y.dtype.type(1 / np.sqrt(size))
    flat, joined = out.reshape(-1), np.empty(_JOINED << PIECES_LOG, y.dtype)
    lanes = np.int64(REGISTER_BYTES // y.itemsize)
    for item in range(y.shape[0]):
        start, k = item * out.shape[1], 0
        for number in range(1 << PIECES_LOG):
            if number < whole:
                k = _transform_of_few(y[item], scale, rows, k, number * piece, flat, start + number * piece, piece_log)
            else:
                k = _transform_of_few(y[item], scale, rows, k, number * piece, work, (number - whole) * piece, piece_log)
        for first in range(0, piece, _JOINED):
            for offset in range(0, _JOINED, lanes):
                butterfly8_of_pieces(flat, start, work, whole, piece, first + offset, joined, offset, _JOINED)
            for number in range(1 << PIECES_LOG):
                begin = number * piece + first
                some = min(_JOINED, length - begin)
                if some > 0:
                    negate(joined[number * _JOINED :], words[begin >> 5 :], some, flat, start + begin)


def hadamard_(x: Tensor) -> Tensor:
    """In place over the last dimension, a power of two: H x with H of entries ±1. CPU, contiguous, float32 or float64."""
    size_log = x.shape[-1].bit_length() - 1
    flat = x.detach().reshape(-1).numpy()
    for start in range(0, flat.size, 1 << size_log):
        transform(flat, start, size_log)
    return x


def hadamard_twin(x: Tensor) -> Tensor:
    """The same over the last dimension with torch operations, on any device; returns a new tensor."""
    size, half = x.shape[-1], 1
    while half < size:
        pairs = x.reshape(*x.shape[:-1], size // (2 * half), 2, half)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        x = torch.stack([first + second, first - second], dim=-2).reshape(*x.shape)
        half *= 2
    return x
