"""Steps of SGD on dense layers with ReLU, a whole epoch in one call.

A batch of ten is too small for a BLAS: calls, and passes over short vectors, then cost as much as the products. Sums have one
order, so the weights depend neither on the number of threads nor on a BLAS.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from sketchfed.kernels.directions import inner_block
from sketchfed.kernels.jit import kernel
from sketchfed.kernels.simd import REGISTER_BYTES, add_outer, add_outer_narrow, add_outer_one, add_outer_row

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

_COLUMNS = 512  # of a batch of ten, as many columns take 20 KiB
_WIDE = 4  # registers side by side


@kernel
def _units(weights, start, inputs, count, width, units, sums, out, rectified):
    """out[b, r] ← ⟨W[r], inputs[b]⟩ + bias[r], or zero if that is negative and `rectified`. The sums are in float64."""
    sums[: count * units] = 0
    inner_block(weights, start, width, units, inputs, 0, width, count, width, sums, 0, units)
    biases = start + units * width
    for b in range(count):
        for r in range(units):
            value = np.float32(sums[b * units + r] + weights[biases + r])
            out[b * units + r] = np.float32(0) if rectified and value <= 0 else value


@kernel
def _residual(outputs, count, units, targets, softmax, scale):
    """outputs ← scale·(softmax(outputs) − targets), or the same without softmax."""
    for b in range(count):
        first = b * units
        if softmax:
            largest = outputs[first]
            for r in range(1, units):
                largest = max(largest, outputs[first + r])
            total = 0.0
            for r in range(units):
                value = math.exp(np.float64(outputs[first + r]) - largest)
                total += value
                outputs[first + r] = value
            for r in range(units):
                outputs[first + r] = outputs[first + r] / total
        for r in range(units):
            outputs[first + r] = scale * (outputs[first + r] - targets[b, r])


@kernel
def _add_products(targets, end, pitch, number, rows, start, stride, factors, origin, apart, step, count, length):
    """targets[end + i·pitch : …] += Σ factors[origin + i·apart + k·step]·rows[start + k·stride : …] over k < count, i < number.

    Each is `length` numbers.
    """
    lanes = REGISTER_BYTES // rows.itemsize
    whole, wide = length // lanes * lanes, length // (_WIDE * lanes) * (_WIDE * lanes)
    for i in range(0, number - number % 2, 2):
        there, place = end + i * pitch, origin + i * apart
        for j in range(0, wide, _WIDE * lanes):
            add_outer(targets, there + j, pitch, rows, start + j, stride, factors, place, apart, step, count)
        for j in range(wide, whole, lanes):
            add_outer_narrow(targets, there + j, pitch, rows, start + j, stride, factors, place, apart, step, count)
    if number % 2:
        there, place = end + (number - 1) * pitch, origin + (number - 1) * apart
        for j in range(0, wide, _WIDE * lanes):
            add_outer_row(targets, there + j, pitch, rows, start + j, stride, factors, place, apart, step, count)
        for j in range(wide, whole, lanes):
            add_outer_one(targets, there + j, pitch, rows, start + j, stride, factors, place, apart, step, count)
    for i in range(number):
        for j in range(whole, length):
            total = targets[end + i * pitch + j]
            for k in range(count):
                total += factors[origin + i * apart + k * step] * rows[start + k * stride + j]
            targets[end + i * pitch + j] = total


@kernel
def _below(weights, start, delta, count, width, units, active, out):
    """out[b] ← Σ delta[b, r]·W[r] over r, and zero where `active` is."""
    out[: count * width] = 0
    _add_products(out, 0, width, count, weights, start, width, delta, 0, units, 1, units, width)
    for i in range(count * width):
        if active[i] <= 0:
            out[i] = 0


@kernel
def _move(weights, start, delta, inputs, count, width, units):
    """W[r] += Σ delta[b, r]·inputs[b] over b, and bias[r] += Σ delta[b, r]."""
    for first in range(0, width, _COLUMNS):
        length = min(_COLUMNS, width - first)
        _add_products(weights, start + first, width, units, inputs, first, width, delta, 0, 1, units, count, length)
    biases = start + units * width
    for r in range(units):
        total = np.float32(0)
        for b in range(count):
            total += delta[b * units + r]
        weights[biases + r] += total


@kernel
def _train(weights, widths, x, targets, order, slices, rate, softmax, values, delta, below, sums):
    layers = widths.size - 1
    starts = np.zeros(layers + 1, np.int64)
    for layer in range(layers):
        starts[layer + 1] = starts[layer] + (widths[layer] + 1) * widths[layer + 1]
    chosen = np.empty((slices[:, 1] - slices[:, 0]).max() if len(slices) else 0, np.int64)
    wanted = np.empty((chosen.size, widths[layers]), np.float32)
    for step in range(slices.shape[0]):
        count = slices[step, 1] - slices[step, 0]
        for b in range(count):
            row = order[slices[step, 0] + b]
            values[0, b * widths[0] : (b + 1) * widths[0]] = x[row]
            wanted[b] = targets[row]
        for layer in range(layers):
            last = layer == layers - 1
            inputs, out = values[layer], values[layer + 1]
            _units(weights, starts[layer], inputs, count, widths[layer], widths[layer + 1], sums, out, not last)
        delta[: count * widths[layers]] = values[layers, : count * widths[layers]]
        _residual(delta, count, widths[layers], wanted, softmax, np.float32(-rate / count))
        for layer in range(layers - 1, -1, -1):
            width, units = widths[layer], widths[layer + 1]
            if layer:
                _below(weights, starts[layer], delta, count, width, units, values[layer], below)
            _move(weights, starts[layer], delta, values[layer], count, width, units)
            if layer:
                delta[: count * width] = below[: count * width]


def train(
    weights: Floats,
    widths: tuple[int, ...],
    x: Floats,
    targets: Floats,
    order: Integers,
    slices: Any,
    *,
    rate: float,
    softmax: bool,
) -> None:
    """Take a step of SGD for each slice of `order`, in place.

    `weights` holds W `(widths[i + 1], widths[i])` and its bias, layer after layer. `x` is `(n, widths[0])` and `targets`
    `(n, widths[-1])`. The loss is the cross-entropy of the softmax, or half the square of the residual, averaged over a batch.
    """
    parts = np.array(slices, np.int64).reshape(-1, 2)
    largest = int((parts[:, 1] - parts[:, 0]).max(initial=0)) * max(widths)
    values = np.empty((len(widths), largest), np.float32)
    delta, below = np.empty(largest, np.float32), np.empty(largest, np.float32)
    sums = np.empty(largest, np.float64)
    _train(weights, np.array(widths, np.int64), x, targets, order, parts, rate, softmax, values, delta, below, sums)
