"""A few long rows B, `(rows, dim)`, and what is done with them: inner products, combinations, small matrices from the left.

Each result is one sequence of products and sums in the type of the rows, with inner products of a few thousand coordinates
added up in float64. It depends on nothing but the numbers: neither on the processor, nor on threads, nor on how many vectors
come together. That is why this is not left to a BLAS.
"""

import numpy as np

from sketchfed.kernels.jit import kernel
from sketchfed.kernels.simd import (
    REGISTER_BYTES,
    REGISTERS,
    add_inner,
    add_inner_one,
    add_inner_rows,
    add_inner_vectors,
    add_rows,
)

BLOCK = 4096
_SHORT = 1024  # of as many coordinates, some hundred rows stay in the second-level cache
_ROWS_AT_ONCE = 8  # as many streams as processors fetch ahead


@kernel
def inner_block(rows, start, stride, count, vectors, begin, step, number, length, out, place, pitch):
    """out[place + i + j·pitch] += ⟨rows[start + i·stride : …], vectors[begin + j·step : …]⟩ over `length` coordinates."""
    lanes = REGISTER_BYTES // rows.itemsize
    whole = length // lanes
    for i in range(0, count - count % 4, 4):
        here, there = start + i * stride, place + i
        for j in range(0, number - number % 2, 2):
            add_inner(rows, here, stride, vectors, begin + j * step, step, whole, out, there + j * pitch, pitch)
        if number % 2:
            j = number - 1
            add_inner_rows(rows, here, stride, vectors, begin + j * step, step, whole, out, there + j * pitch, pitch)
    for i in range(count - count % 4, count):
        here, there = start + i * stride, place + i
        for j in range(0, number - number % 2, 2):
            add_inner_vectors(rows, here, stride, vectors, begin + j * step, step, whole, out, there + j * pitch, pitch)
        if number % 2:
            j = number - 1
            add_inner_one(rows, here, stride, vectors, begin + j * step, step, whole, out, there + j * pitch, pitch)
    if whole * lanes < length:
        for i in range(count):
            for j in range(number):
                total = rows.dtype.type(0)
                for k in range(whole * lanes, length):
                    total += rows[start + i * stride + k] * vectors[begin + j * step + k]
                out[place + i + j * pitch] += total


@kernel
def _combine_block(rows, start, stride, factors, origin, step, count, out, end, length):
    """out[end : end + length] += Σ factors[origin + k·step]·rows[start + k·stride : …] over k < count, in this order."""
    part = REGISTERS * REGISTER_BYTES // rows.itemsize
    whole = length // part * part
    for first in range(0, count, _ROWS_AT_ONCE):
        number = min(_ROWS_AT_ONCE, count - first)
        here, place = start + first * stride, origin + first * step
        for j in range(0, whole, part):
            add_rows(out, end + j, rows, here + j, stride, factors, place, step, number)
        for k in range(number):
            factor = factors[place + k * step]
            for j in range(whole, length):
                out[end + j] += factor * rows[here + k * stride + j]


@kernel
def _inner_blocks(rows, dim, count, vectors, number, start, length, out):
    """out[i + j·count] += ⟨rows[i], vectors[j]⟩ over `length` coordinates from `start` on, a few rows at a time."""
    for i in range(0, count, 4):
        few = min(4, count - i)
        for here in range(start, start + length, _SHORT):
            short = min(_SHORT, start + length - here)
            inner_block(rows, i * dim + here, dim, few, vectors, here, dim, number, short, out, i, count)


@kernel
def inner(rows, x, out):
    """out[b, i] ← ⟨rows[i], x[b]⟩, float64."""
    count, dim, number = rows.shape[0], rows.shape[1], x.shape[0]
    flat, vectors, sums = rows.reshape(-1), x.reshape(-1), out.reshape(-1)
    sums[:] = 0
    for start in range(0, dim, BLOCK):
        _inner_blocks(flat, dim, count, vectors, number, start, min(BLOCK, dim - start), sums)


@kernel
def combine(rows, factors, out):
    """out[b] += Σ factors[b, i]·rows[i]."""
    dim, flat, vectors, scales = rows.shape[1], rows.reshape(-1), out.reshape(-1), factors.reshape(-1)
    count = rows.shape[0]
    for start in range(0, dim, BLOCK):
        length = min(BLOCK, dim - start)
        for b in range(out.shape[0]):
            _combine_block(flat, start, dim, scales, b * count, 1, count, vectors, b * dim + start, length)


@kernel
def remove(rows, factors, x, out):
    """x −= Σ factors[i]·rows[i], and out[i] ← ⟨rows[i], x⟩ after that, both while a block of the rows is in cache."""
    dim, flat, negative = rows.shape[1], rows.reshape(-1), -factors
    count = rows.shape[0]
    out[:] = 0
    for start in range(0, dim, BLOCK):
        length = min(BLOCK, dim - start)
        _combine_block(flat, start, dim, negative, 0, 1, count, x, start, length)
        _inner_blocks(flat, dim, count, x, 1, start, length, out)


@kernel
def gram(rows, out):
    """out ← rows·rowsᵀ, float64."""
    count, dim, flat, sums = rows.shape[0], rows.shape[1], rows.reshape(-1), out.reshape(-1)
    sums[:] = 0
    for start in range(0, dim, _SHORT):
        length = min(_SHORT, dim - start)
        for j in range(0, count, 4):
            here, number = j * dim + start, min(4, count - j)
            inner_block(flat, start, dim, j + number, flat, here, dim, number, length, sums, j * count, count)
    for i in range(count):
        for j in range(i):
            out[j, i] = out[i, j]


@kernel
def _turned_block(rows, start, length, matrix, copy, out):
    """out ← matrix·rows[:, start : start + length]; `copy` holds as much of the rows."""
    count, width = rows.shape[0], out.shape[1]
    for k in range(count):
        copy[k, :length] = rows[k, start : start + length]
    out[:] = 0
    flat, turned, factors = copy.reshape(-1), out.reshape(-1), matrix.reshape(-1)
    for i in range(matrix.shape[0]):
        _combine_block(flat, 0, copy.shape[1], factors, i * count, 1, count, turned, i * width, length)


@kernel
def turn(rows, matrix, out):
    """out[:len(matrix)] ← matrix·rows."""
    width = _narrow(rows)
    copy, turned = np.empty((rows.shape[0], width), rows.dtype), np.empty((matrix.shape[0], width), rows.dtype)
    for start in range(0, rows.shape[1], width):
        length = min(width, rows.shape[1] - start)
        _turned_block(rows, start, length, matrix, copy, turned)
        for i in range(matrix.shape[0]):
            out[i, start : start + length] = turned[i, :length]


@kernel
def squares(rows, matrix, out):
    """out[j] += Σ over i of (matrix·rows)[i, j]²."""
    width = _narrow(rows)
    copy, turned = np.empty((rows.shape[0], width), rows.dtype), np.empty((matrix.shape[0], width), rows.dtype)
    for start in range(0, rows.shape[1], width):
        length = min(width, rows.shape[1] - start)
        _turned_block(rows, start, length, matrix, copy, turned)
        for i in range(matrix.shape[0]):
            for j in range(length):
                out[start + j] += turned[i, j] * turned[i, j]


@kernel
def _narrow(rows):
    """Coordinates of which a copy stays in the second-level cache, all rows together: eight registers at least."""
    part = REGISTERS * REGISTER_BYTES // rows.itemsize
    return max(1, min(8, 2**18 // (rows.itemsize * part * max(1, rows.shape[0])))) * part


@kernel
def products(rows, codes, runs, table, out):
    """out[j] += Σ table[i, code of j]·rows[i, j] over the rows, with codes as in `scatter_runs`."""
    for r in range(runs.shape[0] - 1):
        origin = np.uint64(2 * runs[r, 1])
        for start in range(runs[r, 0], runs[r + 1, 0], BLOCK):
            stop = min(start + BLOCK, runs[r + 1, 0])
            for i in range(rows.shape[0]):
                row, factors = rows[i], table[i]
                for j in range(start, stop):
                    out[j] += factors[origin + np.uint64(codes[j])] * row[j]
