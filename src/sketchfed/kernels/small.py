"""Small dense matrices in float64: products, Cholesky factors, triangular systems and QR, the same to the bit everywhere.

Every party of a run recomputes these and must get the same numbers; those of a BLAS depend on the processor.
"""

import numpy as np
import numpy.typing as npt

from sketchfed.kernels.jit import kernel
from sketchfed.kernels.simd import REGISTER_BYTES, REGISTERS, add_rows

Small = npt.NDArray[np.float64]

_NEGLIGIBLE = 1e-14
_WIDTH = REGISTERS * REGISTER_BYTES // 8
_DEPTH = 64  # numbers per row: 16 KiB
_FEW = 8


def product(a: Small, b: Small) -> Small:
    """a·b."""
    return _product(np.ascontiguousarray(a), np.ascontiguousarray(b))


def solve_lower(lower: Small, b: Small) -> Small:
    """L⁻¹b for a matrix b."""
    return _solve_lower(lower, np.ascontiguousarray(b))


def solve_upper(lower: Small, b: Small) -> Small:
    """L⁻ᵀb for a matrix b, from the same L."""
    return _solve_upper(lower, np.ascontiguousarray(b))


@kernel
def _product(a, b):
    """Σ over k in order, whichever way: for a few rows along those of b, for many from pieces of b that stay in cache."""
    m, n = a.shape[0], b.shape[1]
    if m < _FEW or n < _FEW:
        out = np.zeros((m, n))
        for i in range(m):
            for k in range(a.shape[1]):
                factor = a[i, k]
                for j in range(n):
                    out[i, j] += factor * b[k, j]
        return out
    width = -(-n // _WIDTH) * _WIDTH
    sums, piece = np.zeros((m, width)), np.zeros((_DEPTH, _WIDTH))
    target, source, factors = sums.reshape(-1), piece.reshape(-1), a.reshape(-1)
    for first in range(0, a.shape[1], _DEPTH):
        depth = min(_DEPTH, a.shape[1] - first)
        for start in range(0, n, _WIDTH):
            stop = min(start + _WIDTH, n)
            for k in range(depth):
                piece[k, : stop - start] = b[first + k, start:stop]
            for i in range(m):
                add_rows(target, i * width + start, source, 0, _WIDTH, factors, i * a.shape[1] + first, 1, depth)
    return sums[:, :n].copy()


@kernel
def cholesky(a):
    """The lower L with L·Lᵀ = a; its first entry is NaN where a is not safely positive definite."""
    n = a.shape[0]
    upper = a.copy()  # row by row, so that the innermost loop runs along rows
    lower = np.zeros((n, n))
    for k in range(n):
        if not upper[k, k] > 1e-10 * a[k, k]:
            lower[0, 0] = np.nan
            return lower
        pivot = np.sqrt(upper[k, k])
        for j in range(k, n):
            upper[k, j] /= pivot
            lower[j, k] = upper[k, j]
        for i in range(k + 1, n):
            factor = upper[k, i]
            for j in range(i, n):
                upper[i, j] -= factor * upper[k, j]
    return lower


@kernel
def _solve_lower(lower, b):
    out = b.copy()
    for i in range(lower.shape[0]):
        for k in range(i):
            factor = lower[i, k]
            for j in range(b.shape[1]):
                out[i, j] -= factor * out[k, j]
        for j in range(b.shape[1]):
            out[i, j] /= lower[i, i]
    return out


@kernel
def _solve_upper(lower, b):
    out = b.copy()
    for i in range(lower.shape[0] - 1, -1, -1):
        for k in range(i + 1, lower.shape[0]):
            factor = lower[k, i]
            for j in range(b.shape[1]):
                out[i, j] -= factor * out[k, j]
        for j in range(b.shape[1]):
            out[i, j] /= lower[i, i]
    return out


@kernel
def orthonormal(a):
    """(Q, R) of a tall matrix by reflections, with R's diagonal not negative.

    Q has orthonormal columns whatever the rank: what is left of a dependent column, below 1e-14 of the matrix, counts as zero,
    and its direction is the one that the reflections so far make of a unit vector.
    """
    m, n = a.shape
    r, q = a.copy(), np.zeros((m, n))
    mirrors, signs = np.zeros((m, n)), np.ones(n)
    least = _NEGLIGIBLE * np.sqrt(_energy(a))
    row = np.empty(n)
    for k in range(n):
        q[k, k] = 1
        total = 0.0
        for i in range(k, m):
            total += r[i, k] * r[i, k]
        norm = np.sqrt(total)
        if norm <= least:
            r[k:, k] = 0
            continue
        signs[k] = -1.0 if r[k, k] > 0 else 1.0
        for i in range(k, m):
            mirrors[i, k] = r[i, k]
        mirrors[k, k] -= signs[k] * norm
        _reflect(mirrors, k, r, k, row)
        r[k + 1 :, k] = 0
    for k in range(n - 1, -1, -1):
        _reflect(mirrors, k, q, k, row)
    for k in range(n):
        if signs[k] < 0:
            q[:, k] = -q[:, k]
            r[k, :] = -r[k, :]
    return q, r[:n]


@kernel
def _energy(a):
    total = 0.0
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            total += a[i, j] * a[i, j]
    return total


@kernel
def _reflect(mirrors, k, a, first, row):
    """a[:, first:] ← (I − 2vvᵀ/‖v‖²)·a[:, first:] for v, column k of the mirrors; none where v is zero."""
    m, n = a.shape
    total = 0.0
    for i in range(k, m):
        total += mirrors[i, k] * mirrors[i, k]
    if total == 0:
        return
    row[:] = 0
    for i in range(k, m):
        factor = mirrors[i, k]
        for j in range(first, n):
            row[j] += factor * a[i, j]
    for i in range(k, m):
        factor = 2 * mirrors[i, k] / total
        for j in range(first, n):
            a[i, j] -= factor * row[j]
