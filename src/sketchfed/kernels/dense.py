"""Dense random matrices that are never stored: signs from GF(2^32), normals from Philox, a strip at a time.

The work is dim·size whatever one does, so these are for small problems: about 5 billion signs or
a third of a billion normals a second on one core.
"""

import numpy as np

from sketchfed.kernels import field, normals
from sketchfed.kernels.jit import inlined, kernel
from sketchfed.kernels.simd import REGISTER_BYTES, REGISTERS, add_signed_block, add_signed_value

STRIP = 1024
_LANES = 16


@inlined
def _column_block(x, row, start, buffer):
    """Copy 64 columns of a row to a buffer, zeros beyond its end."""
    for j in range(64):
        buffer[j] = x[row, start + j] if start + j < x.shape[1] else 0


@kernel
def apply_signs(rows, x, scale, out):
    """out ← scale·x·Aᵀ for the sign matrix A whose rows have the field coefficients `rows`."""
    factor = x.dtype.type(scale)
    lanes, part = REGISTER_BYTES // x.itemsize, REGISTERS * REGISTER_BYTES // x.itemsize
    batch, size = out.shape
    low, planes, tables = np.empty(64, np.uint64), np.empty(32, np.uint64), np.empty((4, 256), np.uint64)
    field.low_patterns(low)
    field.cube_planes(planes)
    buffers = np.empty((batch, 64), x.dtype)
    flat = buffers.reshape(-1)
    sums = np.zeros(batch * size * lanes, x.dtype)
    for start in range(0, x.shape[1], 64):
        field.cube_tables(start, low, planes, tables)
        for item in range(batch):
            _column_block(x, item, start, buffers[item])
        for row in range(size):
            word = field.sign_word(rows[row], start, low, tables)
            for item in range(batch):
                for offset in range(0, 64, part):
                    bits = word >> np.uint64(offset)
                    add_signed_block(flat, item * 64 + offset, sums, (item * size + row) * lanes, bits)
    for item in range(batch):
        for row in range(size):
            total = sums[(item * size + row) * lanes]
            for lane in range(1, lanes):
                total += sums[(item * size + row) * lanes + lane]
            out[item, row] = factor * total


@kernel
def adjoint_signs(rows, y, scale, out):
    """out ← scale·y·A."""
    factor = y.dtype.type(scale)
    part = REGISTERS * REGISTER_BYTES // y.itemsize
    batch, size = y.shape
    low, planes, tables = np.empty(64, np.uint64), np.empty(32, np.uint64), np.empty((4, 256), np.uint64)
    field.low_patterns(low)
    field.cube_planes(planes)
    sums = np.empty(batch * 64, y.dtype)
    for start in range(0, out.shape[1], 64):
        field.cube_tables(start, low, planes, tables)
        sums[:] = 0
        for row in range(size):
            word = field.sign_word(rows[row], start, low, tables)
            for item in range(batch):
                for offset in range(0, 64, part):
                    add_signed_value(y[item, row], sums, item * 64 + offset, word >> np.uint64(offset))
        for item in range(batch):
            for j in range(min(64, out.shape[1] - start)):
                out[item, start + j] = factor * sums[item * 64 + j]


@kernel
def apply_normals(stream, x, scale, out):
    """out ← scale·x·Gᵀ for the normals G of a stream."""
    factor = x.dtype.type(scale)
    strip = np.empty(STRIP, np.float32)
    sums = np.empty((x.shape[0], _LANES), x.dtype)
    for row in range(out.shape[1]):
        sums[:] = 0
        for start in range(0, x.shape[1], STRIP):
            normals.fill(stream, row, start, strip)
            count = min(STRIP, x.shape[1] - start)
            for item in range(x.shape[0]):
                source, total = x[item, start : start + count], sums[item]
                for i in range(0, count - _LANES + 1, _LANES):
                    for lane in range(_LANES):
                        total[lane] += strip[i + lane] * source[i + lane]
                for i in range(count // _LANES * _LANES, count):
                    total[0] += strip[i] * source[i]
        for item in range(x.shape[0]):
            total = sums[item, 0]
            for lane in range(1, _LANES):
                total += sums[item, lane]
            out[item, row] = factor * total


@kernel
def adjoint_normals(stream, y, scale, out):
    """out ← scale·y·G."""
    factor = y.dtype.type(scale)
    strip = np.empty(STRIP, np.float32)
    out[:] = 0
    for start in range(0, out.shape[1], STRIP):
        count = min(STRIP, out.shape[1] - start)
        for row in range(y.shape[1]):
            normals.fill(stream, row, start, strip)
            for item in range(y.shape[0]):
                target, step = out[item, start : start + count], factor * y[item, row]
                for i in range(count):
                    target[i] += step * strip[i]
