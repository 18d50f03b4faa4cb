"""Eigenvalues and eigenvectors of a diagonal matrix plus a rank-one term, in a number of steps that grows like the square.

Roots of the secular equation by bisection, and vectors from the rank-one term to which the computed roots belong exactly (Gu
and Eisenstat 1994, "A stable and efficient algorithm for the rank-one modification of the symmetric eigenproblem"), so that
they are orthogonal to the last bits. Only sums, products, quotients and roots are taken: the same bits everywhere.
"""

import numpy as np

from sketchfed.kernels.jit import kernel

_STEPS = 200  # halvings after which an interval that began at one is below the square of the rounding error, and then some
_ROUNDING = 2.0**-52


@kernel
def rank_one(diagonal, z):
    """(values, vectors) of diag(diagonal) + zzᵀ, values descending, vectors in columns."""
    n = diagonal.size
    order = np.argsort(diagonal, kind="mergesort")
    d, w = diagonal[order], z[order]
    vectors = np.zeros((n, n))  # in rows, while at work; coordinates in ascending order of d
    weight = 0.0
    for i in range(n):
        vectors[i, i] = 1
        weight += w[i] * w[i]
    active = _deflated(d, w, weight, vectors)
    values = d.copy()
    if active.size:
        _solve(d, w, weight, active, values, vectors)
    descending = np.argsort(-values, kind="mergesort")
    out = np.empty((n, n))
    for i in range(n):
        for j in range(n):
            out[order[j], i] = vectors[descending[i], j]
    return values[descending], out


@kernel
def _deflated(d, w, weight, vectors):
    """Which entries the rank-one term changes. Of two equal diagonal entries one is turned out of its way."""
    n = d.size
    largest = weight
    for i in range(n):
        largest = max(largest, abs(d[i]))
    least = 8 * _ROUNDING * largest
    length = np.sqrt(weight)
    active = np.empty(n, np.int64)
    count = 0
    for i in range(n):
        if abs(w[i]) * length <= least:
            w[i] = 0
            continue
        if count:
            p = active[count - 1]
            norm = np.sqrt(w[p] * w[p] + w[i] * w[i])
            c, s = w[i] / norm, w[p] / norm
            if abs((d[i] - d[p]) * c * s) <= least:
                low, high = d[p], d[i]
                d[p], d[i] = low * c * c + high * s * s, low * s * s + high * c * c
                w[p], w[i] = 0, norm
                for j in range(n):
                    a, b = vectors[p, j], vectors[i, j]
                    vectors[p, j], vectors[i, j] = c * a - s * b, s * a + c * b
                count -= 1
        active[count] = i
        count += 1
    return active[:count]


@kernel
def _solve(d, w, weight, active, values, vectors):
    """The eigenpairs of the active part, into `values` and `vectors`."""
    n = active.size
    poles, z = d[active], w[active]
    gaps = np.empty((n, n))  # poles[j] − root i, to full relative precision
    for i in range(n):
        values[active[i]] = _root(poles, z, i, gaps[i])
    for j in range(n):
        square = abs(gaps[j, j])
        for i in range(n):
            if i != j:
                square *= abs(gaps[i, j] / (poles[i] - poles[j]))
        z[j] = np.sqrt(square) if z[j] > 0 else -np.sqrt(square)
    turned = np.zeros((n, vectors.shape[1]))
    for i in range(n):
        total = 0.0
        for j in range(n):
            entry = z[j] / gaps[i, j]
            gaps[i, j] = entry
            total += entry * entry
        norm = np.sqrt(total)
        for j in range(n):
            factor = gaps[i, j] / norm
            for k in range(vectors.shape[1]):
                turned[i, k] += factor * vectors[active[j], k]
    for i in range(n):
        vectors[active[i]] = turned[i]


@kernel
def _secular(poles, z, origin, shift):
    """1 + Σ z²/(pole − root) for the root poles[origin] + shift; it rises between poles."""
    total = 1.0
    for j in range(poles.size):
        total += z[j] * z[j] / ((poles[j] - poles[origin]) - shift)
    return total


@kernel
def _root(poles, z, i, gaps):
    """The root above pole i, counted from the nearer of its two poles; fills the gaps to all poles."""
    n = poles.size
    if i + 1 < n:
        width = poles[i + 1] - poles[i]
    else:
        width = 0.0
        for j in range(n):
            width += z[j] * z[j]
    origin, low, high = i, 0.0, width
    if i + 1 < n:
        high = width / 2
        if _secular(poles, z, i, high) < 0:
            origin, low, high = i + 1, -width / 2, 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if middle <= low or middle >= high or high - low <= _ROUNDING * min(abs(low), abs(high)):
            break
        if _secular(poles, z, origin, middle) < 0:
            low = middle
        else:
            high = middle
    shift = (low + high) / 2
    if shift == 0:
        shift = high if origin == i else low
    for j in range(n):
        gaps[j] = (poles[j] - poles[origin]) - shift
    return poles[origin] + shift
