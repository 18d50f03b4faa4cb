"""Exact 5-wise independent signs from the field GF(2^32), 64 at a time.

Bit i of a row with coefficients (c, u, v) is c ⊕ ⟨u, i⟩ ⊕ ⟨v, i³⟩, where i³ is a cube in the field and ⟨·,·⟩ the parity of a
bitwise and. The columns (1, i, i³) form the parity-check matrix of an extended BCH code of distance 6, so any five of the
bits are independent (Alon, Babai & Itai 1986). Within a block of 64 consecutive i everything is linear in a few words:
i³ is the same for all rows, and tables over its bytes give a row's 64 signs in a handful of look-ups.
"""

import numpy as np
import torch
from torch import Tensor

from sketchfed.kernels.jit import inlined, kernel

MODULUS = 0x8D  # x^32 = x^7 + x^3 + x^2 + 1


@kernel
def multiply(a, b):
    """The product of two elements of GF(2^32), as uint64 below 2^32."""
    product = np.uint64(0)
    while b:
        if b & np.uint64(1):
            product ^= a
        a <<= np.uint64(1)
        if a >> np.uint64(32):
            a ^= np.uint64(1) << np.uint64(32) | np.uint64(MODULUS)
        b >>= np.uint64(1)
    return product


@inlined
def parity(word):
    """The sum of a word's 32 bits, modulo 2."""
    word ^= word >> np.uint64(16)
    word ^= word >> np.uint64(8)
    word ^= word >> np.uint64(4)
    return np.uint64(0x6996) >> (word & np.uint64(15)) & np.uint64(1)


@kernel
def low_patterns(out):
    """out[u] ← the word whose bit j is ⟨u, j⟩, for u and j below 64."""
    for u in range(64):
        word = np.uint64(0)
        for j in range(64):
            word |= parity(np.uint64(u & j)) << np.uint64(j)
        out[u] = word


@kernel
def cube_planes(out):
    """out[p] ← the word whose bit j is bit p of j³, for j below 64."""
    out[:] = 0
    for j in range(64):
        cube = multiply(multiply(np.uint64(j), np.uint64(j)), np.uint64(j))
        for p in range(32):
            out[p] |= (cube >> np.uint64(p) & np.uint64(1)) << np.uint64(j)


@kernel
def cube_tables(start, low, planes, tables):
    """tables[k, byte] ← the word whose bit j is ⟨byte·2^(8k), (start + j)³⟩, for a start that is a multiple of 64.

    There start + j is the sum of the two in the field, whose cube is start³ + start²·j + start·j² + j³. The middle terms are
    linear in the bits of j; `low` and `planes` are what `low_patterns` and `cube_planes` give.
    """
    base = np.uint64(start)
    square = multiply(base, base)
    cube = multiply(square, base)
    slopes = np.empty(6, np.uint64)
    for t in range(6):
        slopes[t] = multiply(square, np.uint64(1) << np.uint64(t)) ^ multiply(base, np.uint64(1) << np.uint64(2 * t))
    for k in range(4):
        tables[k, 0] = 0
        for bit in range(8):
            p = np.uint64(8 * k + bit)
            plane = planes[p] ^ (np.uint64(0) - (cube >> p & np.uint64(1)))
            for t in range(6):
                plane ^= low[1 << t] & (np.uint64(0) - (slopes[t] >> p & np.uint64(1)))
            for lower in range(1 << bit):
                tables[k, 1 << bit | lower] = tables[k, lower] ^ plane


@inlined
def sign_word(row, start, low, tables):
    """The 64 sign bits of a row (c, u, v) at start, start + 1, ...: start is a multiple of 64 and fits the tables."""
    u, v = np.uint64(row[1]), np.uint64(row[2])
    word = low[u & np.uint64(63)] ^ tables[0, v & np.uint64(255)] ^ tables[1, v >> np.uint64(8) & np.uint64(255)]
    word ^= tables[2, v >> np.uint64(16) & np.uint64(255)] ^ tables[3, v >> np.uint64(24)]
    return word ^ (np.uint64(0) - (parity(u & np.uint64(start)) ^ np.uint64(row[0]) & np.uint64(1)))


def _multiply_twin(a: Tensor, b: Tensor) -> Tensor:
    product = torch.zeros_like(a)
    for _ in range(32):
        product = product ^ torch.where((b & 1).bool(), a, 0)
        a = a << 1
        a = torch.where((a >> 32).bool(), a ^ (1 << 32 | MODULUS), a)
        b = b >> 1
    return product


def sign_bits_twin(rows: Tensor, columns: Tensor) -> Tensor:
    """The sign bits `(rows, columns)` for coefficients `(rows, 3)` and column numbers, all int64 below 2^32."""
    cubes = _multiply_twin(_multiply_twin(columns, columns), columns)
    bits = rows[:, 1, None] & columns ^ rows[:, 2, None] & cubes ^ rows[:, 0, None] & 1
    for shift in (16, 8, 4, 2, 1):
        bits = bits ^ bits >> shift
    return bits & 1
