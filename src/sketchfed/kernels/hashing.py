"""k-wise independent hashes: polynomials modulo the Mersenne prime 2^61 − 1.

A polynomial of degree k − 1 with uniform coefficients is k-wise independent (Wegman & Carter 1981). Sketches evaluate it at
consecutive integers, so all but the first values come from finite differences: additions only, many lanes at a time.
Products are formed in 128 bits; in 64 they would overflow and the independence with them.
"""

import numpy as np
import numpy.typing as npt

from sketchfed.kernels.draws import high_product
from sketchfed.kernels.jit import inlined, kernel
from sketchfed.kernels.philox import words
from sketchfed.seeds import PublicSeed

PRIME = 2**61 - 1
LANES = 32

Coefficients = npt.NDArray[np.uint64]


def coefficients(seed: PublicSeed, *, degree: int) -> Coefficients:
    """Uniform coefficients of a polynomial, lowest first: 61 bits of the stream each, the next ones if they are all set."""
    wanted = degree + 1
    drawn = words(seed.stream, 2 * wanted + 8)[: 2 * wanted + 8].view("<u8") >> np.uint64(3)
    kept = drawn[drawn < PRIME]
    return kept[:wanted]  # five values of 2^61 − 1 among the nine or more would leave too few: not in this universe


@inlined
def add(a, b):
    total = a + b
    return total - np.uint64(PRIME) if total >= np.uint64(PRIME) else total


@inlined
def subtract(a, b):
    return add(a, np.uint64(PRIME) - b)


@kernel
def multiply(a, b):
    """a·b mod 2^61 − 1 for a, b below 2^61."""
    low, high = a * b, high_product(a, b)
    total = (low & np.uint64(PRIME)) + (low >> np.uint64(61) | high << np.uint64(3))
    total = (total & np.uint64(PRIME)) + (total >> np.uint64(61))
    return total - np.uint64(PRIME) if total >= np.uint64(PRIME) else total


@kernel
def evaluate(polynomial, i):
    """Horner's rule."""
    value = polynomial[polynomial.size - 1]
    for k in range(polynomial.size - 2, -1, -1):
        value = add(multiply(value, i), polynomial[k])
    return value


@kernel
def _differences(polynomial, first, table):
    """table[k, lane] ← the k-th difference at step LANES of the polynomial at first + lane."""
    for lane in range(LANES):
        for k in range(table.shape[0]):
            table[k, lane] = evaluate(polynomial, np.uint64(first + lane + k * LANES))
        for level in range(1, table.shape[0]):
            for k in range(table.shape[0] - 1, level - 1, -1):
                table[k, lane] = subtract(table[k, lane], table[k - 1, lane])


@inlined
def _step(a, b):
    """a + b modulo the prime, signed: vector units compare signed 64-bit integers only."""
    total = a + b
    return total - (PRIME if total >= PRIME else 0)


@inlined
def _code(h, sign, origin, size):
    """2·(origin + ⌊h·size / 2^61⌋) + lowest bit of the sign hash, from two 32-bit products."""
    bucket = ((h >> 32) * size + ((h & 0xFFFFFFFF) * size >> 32)) >> 29
    return np.uint32((bucket + origin) * 2 | sign & 1)


@kernel
def hash_codes(buckets, signs, first, origin, size, codes):
    """codes[i] ← 2·(origin + bucket of column first + i) + sign bit, for a linear and a cubic polynomial; size < 2^31."""
    linear, cubic = np.empty((2, LANES), np.uint64), np.empty((4, LANES), np.uint64)
    _differences(buckets, first, linear)
    _differences(signs, first, cubic)
    h, rise = linear[0].view(np.int64).copy(), np.int64(linear[1, 0])
    s0, s1 = cubic[0].view(np.int64).copy(), cubic[1].view(np.int64).copy()
    s2, s3 = cubic[2].view(np.int64).copy(), np.int64(cubic[3, 0])
    whole = codes.size // LANES * LANES
    for start in range(0, whole, LANES):
        out = codes[start : start + LANES]
        for lane in range(LANES):
            out[lane] = _code(h[lane], s0[lane], origin, size)
            h[lane] = _step(h[lane], rise)
            slope, bend = s1[lane], s2[lane]
            s0[lane] = _step(s0[lane], slope)
            s1[lane] = _step(slope, bend)
            s2[lane] = _step(bend, s3)
    for lane in range(codes.size - whole):
        codes[whole + lane] = _code(h[lane], s0[lane], origin, size)
