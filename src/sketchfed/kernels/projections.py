"""Randomised Hadamard projections of many clients at once.

Client i has Gᵢ = E·H·D/√width in every block of a layout: D its signs, `words[i, block]`, and E its rows, `rows[i]`. A block
(start, stop, first, last, width) maps the coordinates start to stop, `width` of them, to the coefficients first to last.
"""

import numpy as np

from sketchfed.kernels.fwht import log_of, negate, signed_transform, take, transform
from sketchfed.kernels.jit import kernel


@kernel
def _spread(z, rows, scale, width, work):
    work[:width] = 0
    for k in range(rows.size):
        work[np.uint64(rows[k])] = scale * z[k]


@kernel
def forward(v, layout, words, rows, first_client, last_client, work, out):
    """out[i] ← Gᵢv for every client from first to last."""
    for i in range(first_client, last_client):
        for block in range(layout.shape[0]):
            start, stop, first, last, width = layout[block]
            signed_transform(v, start, stop - start, words[i, block], work, log_of(width))
            take(work, rows[i, first:last], v.dtype.type(1 / np.sqrt(width)), out[i, first:last])


@kernel
def adjoint(z, layout, words, rows, first_client, last_client, work, total):
    """total += Σ Gᵢᵀzᵢ over the clients from first to last."""
    for i in range(first_client, last_client):
        for block in range(layout.shape[0]):
            start, stop, first, last, width = layout[block]
            _spread(z[i, first:last], rows[i, first:last], z.dtype.type(1 / np.sqrt(width)), width, work)
            transform(work, 0, log_of(width))
            negate(work, words[i, block], stop - start, work, 0)
            for j in range(stop - start):
                total[start + j] += work[j]


@kernel
def gram(layout, words, rows, work, ones, out):
    """out += GGᵀ. Rows a of client i and b of client j meet in (H·(sᵢ∘sⱼ))[a xor b]/width, one transform a pair of clients."""
    clients, size = rows.shape
    both = np.empty(words.shape[2], np.uint32)
    for block in range(layout.shape[0]):
        start, stop, first, last, width = layout[block]
        for i in range(clients):
            for j in range(i + 1):
                for w in range(both.size):
                    both[w] = words[i, block, w] ^ words[j, block, w]
                signed_transform(ones, 0, stop - start, both, work, log_of(width))
                for a in range(first, last):
                    for b in range(first, last):
                        value = work[np.uint64(rows[i, a] ^ rows[j, b])] / width
                        out[i * size + a, j * size + b] = value
                        out[j * size + b, i * size + a] = value
