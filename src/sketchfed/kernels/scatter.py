"""Sketches whose columns hold a few ±1: scatter into buckets, gather back.

A code is 2·bucket + sign bit. `codes` is `(nonzeros, columns)`, so nonzero k of a column lies in its k-th row.
"""

import numpy as np
import torch
from torch import Tensor

from sketchfed.kernels.jit import kernel
from sketchfed.kernels.simd import negate_if


@kernel
def scatter(x, source, codes, out, target):
    """out[target + bucket] += ±x[source + i] for every code i; x and out are flat."""
    here, there = np.uint64(source), np.uint64(target)
    for i in range(codes.size):
        code = np.uint64(codes[i])
        out[there + (code >> np.uint64(1))] += negate_if(x[here + np.uint64(i)], code)


@kernel
def gather(y, source, codes, out, target, fresh):
    """out[target + i] = ±y[source + bucket] for every code i, or += where `fresh` is false."""
    here, there = np.uint64(source), np.uint64(target)
    for i in range(codes.size):
        code = np.uint64(codes[i])
        value = negate_if(y[here + (code >> np.uint64(1))], code)
        place = there + np.uint64(i)
        out[place] = value if fresh else out[place] + value


@kernel
def scatter_rows(x, first, codes, out):
    """`scatter` the columns from `first` on of every row of x, for every nonzero."""
    flat, sums = x.reshape(-1), out.reshape(-1)
    for row in range(x.shape[0]):
        for k in range(codes.shape[0]):
            scatter(flat, row * x.shape[1] + first, codes[k], sums, row * out.shape[1])


@kernel
def gather_rows(y, codes, out, first):
    """`gather` the columns from `first` on of every row of out, for every nonzero."""
    flat, columns = y.reshape(-1), out.reshape(-1)
    for row in range(y.shape[0]):
        for k in range(codes.shape[0]):
            gather(flat, row * y.shape[1], codes[k], columns, row * out.shape[1] + first, k == 0)


@kernel
def scatter_runs(x, codes, runs, out):
    """`scatter` with codes that count buckets from the start of their run; `runs` has first columns and buckets, then ends."""
    flat, sums = x.reshape(-1), out.reshape(-1)
    for row in range(x.shape[0]):
        for r in range(runs.shape[0] - 1):
            start, stop = runs[r, 0], runs[r + 1, 0]
            scatter(flat, row * x.shape[1] + start, codes[start:stop], sums, row * out.shape[1] + runs[r, 1])


@kernel
def gather_runs(y, codes, runs, out):
    """`gather` with such codes."""
    flat, columns = y.reshape(-1), out.reshape(-1)
    for row in range(y.shape[0]):
        for r in range(runs.shape[0] - 1):
            start, stop = runs[r, 0], runs[r + 1, 0]
            gather(flat, row * y.shape[1] + runs[r, 1], codes[start:stop], columns, row * out.shape[1] + start, True)


def scatter_twin(x: Tensor, codes: Tensor, out: Tensor) -> None:
    """`scatter` of the columns `x` for int64 codes, on any device."""
    for row in codes:
        out.index_add_(1, row >> 1, torch.where((row & 1).bool(), -x, x))


def gather_twin(y: Tensor, codes: Tensor) -> Tensor:
    """`gather` for int64 codes, on any device."""
    columns: Tensor | None = None
    for row in codes:
        values = y[:, row >> 1]
        signed = torch.where((row & 1).bool(), -values, values)
        columns = signed if columns is None else columns + signed  # nothing is added to zero, so that −0 stays what it is
    return y.new_zeros(y.shape[0], codes.shape[1]) if columns is None else columns
