"""Eigenvalues and eigenvectors of a diagonal matrix plus a rank-one term, in a number of steps that grows like the square.

Roots of the secular equation by rational interpolation (Li 1993, "Solving secular equations stably and efficiently") or, where
that leads astray, by bisection; and vectors from the rank-one term to which the computed roots belong exactly (Gu and Eisenstat
1994, "A stable and efficient algorithm for the rank-one modification of the symmetric eigenproblem"), so that they are
orthogonal to the last bits. Only sums, products, quotients and roots are taken: the same bits everywhere.
"""

import numpy as np

from sketchfed.kernels.jit import kernel

_TRIES = 24  # interpolations, of which a handful does but in contrived cases
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
    turns, angles = np.empty((n, 2), np.int64), np.empty((n, 2))
    active, turned = _deflated(d, w, weight, turns, angles)
    values = d.copy()
    if active.size:
        _solve(d, w, active, values, vectors)
    descending = np.argsort(-values, kind="mergesort")
    out = np.empty((n, n))
    for i in range(n):
        vector = vectors[descending[i]]
        for t in range(turned - 1, -1, -1):
            a, b, c, s = vector[turns[t, 0]], vector[turns[t, 1]], angles[t, 0], angles[t, 1]
            vector[turns[t, 0]], vector[turns[t, 1]] = c * a + s * b, c * b - s * a
        for j in range(n):
            out[order[j], i] = vector[j]
    return values[descending], out


@kernel
def _deflated(d, w, weight, turns, angles):
    """Which entries the rank-one term changes. Of two equal diagonal entries one is turned out of its way, as `angles` say."""
    n = d.size
    largest = weight
    for i in range(n):
        largest = max(largest, abs(d[i]))
    least = 8 * _ROUNDING * largest
    length = np.sqrt(weight)
    active = np.empty(n, np.int64)
    count = turned = 0
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
                turns[turned, 0], turns[turned, 1] = p, i
                angles[turned, 0], angles[turned, 1] = c, s
                turned += 1
                count -= 1
        active[count] = i
        count += 1
    return active[:count], turned


@kernel
def _solve(d, w, active, values, vectors):
    """The eigenpairs of the active part, into `values` and `vectors`."""
    n = active.size
    poles, z = d[active], w[active]
    gaps = np.empty((n, n))  # poles[j] − root i, to full relative precision
    for i in range(n):
        values[active[i]] = _root(poles, z, i, gaps[i])
    squares = np.empty(n)
    for j in range(n):
        squares[j] = abs(gaps[j, j])
    for i in range(n):
        for j in range(n):
            if i != j:
                squares[j] *= abs(gaps[i, j] / (poles[i] - poles[j]))
    for j in range(n):
        z[j] = np.sqrt(squares[j]) if z[j] > 0 else -np.sqrt(squares[j])
    for i in range(n):
        total = 0.0
        for j in range(n):
            entry = z[j] / gaps[i, j]
            gaps[i, j] = entry
            total += entry * entry
        norm = np.sqrt(total)
        vectors[active[i]] = 0
        for j in range(n):
            vectors[active[i], active[j]] = gaps[i, j] / norm


@kernel
def _secular(poles, z, i, origin, shift):
    """Σ z²/(pole − root) for the root poles[origin] + shift, and its derivative, up to pole i and above it."""
    below = above = below_slope = above_slope = 0.0
    for j in range(i + 1):
        part = z[j] / ((poles[j] - poles[origin]) - shift)
        below += z[j] * part
        below_slope += part * part
    for j in range(i + 1, poles.size):
        part = z[j] / ((poles[j] - poles[origin]) - shift)
        above += z[j] * part
        above_slope += part * part
    return below, above, below_slope, above_slope


@kernel
def _interpolated(near, far, f, below_slope, above_slope, is_last):
    """The step to the root of a sum of two poles, `near` below and `far` above, with f's value and both slopes; or NaN."""
    if is_last:
        return near + near * near * below_slope / (f - near * below_slope)
    a = (near + far) * f - near * far * (below_slope + above_slope)
    b = near * far * f
    c = f - near * below_slope - far * above_slope
    root = np.sqrt(a * a - 4 * b * c)
    return (a - root) / (2 * c) if a <= 0 else 2 * b / (a + root)


@kernel
def _root(poles, z, i, gaps):
    """The root above pole i, counted from the nearer of its two poles; fills the gaps to all poles."""
    n = poles.size
    is_last = i + 1 == n
    if is_last:
        width = 0.0
        for j in range(n):
            width += z[j] * z[j]
    else:
        width = poles[i + 1] - poles[i]
    origin, low, high = i, 0.0, width
    shift = width / 2
    if not is_last:
        high = width / 2
        below, above, _, _ = _secular(poles, z, i, i, shift)
        if 1 + below + above < 0:
            origin, low, high, shift = i + 1, -width / 2, 0.0, -width / 2
    for step in range(_STEPS):
        below, above, below_slope, above_slope = _secular(poles, z, i, origin, shift)
        f = 1 + below + above
        if abs(f) <= _ROUNDING * (1 + abs(below) + abs(above)):
            break
        if f < 0:
            low = shift
        else:
            high = shift
        if high - low <= _ROUNDING * min(abs(low), abs(high)):
            break
        near = (poles[i] - poles[origin]) - shift
        far = 0.0 if is_last else (poles[i + 1] - poles[origin]) - shift
        guess = shift + _interpolated(near, far, f, below_slope, above_slope, is_last)
        middle = (low + high) / 2
        if not low < guess < high or step >= _TRIES:
            guess = middle
        if guess <= low or guess >= high:
            break
        shift = guess
    if shift == 0:
        shift = high if origin == i else low
    for j in range(n):
        gaps[j] = (poles[j] - poles[origin]) - shift
    return poles[origin] + shift
