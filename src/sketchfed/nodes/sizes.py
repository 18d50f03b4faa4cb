"""How large a run is, from the names and numbers in its settings alone. Nothing of it is built."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from sketchfed.models import MODELS

_NUMBER = 4
"""Bytes of a float32."""
_COPIES = 8
"""The weights, their gradient, the change, the replica, and what is packed, unpacked and kept of them."""
_LAYERS = 10_000

ParameterCount = Callable[[Sequence[int], int, Mapping[str, Any]], int | None]


def parameters_of(name: str, shape: Sequence[int], outputs: int, options: Mapping[str, Any]) -> int | None:
    """The number of parameters of a model. None if it is known only after the model was built.

    Models of others are tried on torch's meta device, where weights have a shape and no memory. They are functions that the
    node's owner allowed.

    >>> parameters_of("mlp", (784,), 10, {"hidden": [200, 200]})
    199210
    """
    if name in _COUNTS:
        return _COUNTS[name](shape, outputs, options)
    if name in MODELS.built_in:
        return None
    try:
        with torch.device("meta"):
            module = MODELS[name](shape=tuple(shape), outputs=outputs, **options)
        return sum(part.numel() for part in module.parameters())
    except Exception:  # it may read files, or know no meta device; it is counted when it is built
        return None


def memory_of(parameters: int, *, batch: int | None, example: int, noised_examples: bool, directions: int = 0) -> int:
    """About the bytes that a client's work takes: its copies of the model, and a batch of examples.

    With privacy at example level each example of a chunk has a gradient of its own, and `directions` vectors of a subspace are
    as long as the model. This is an estimate that catches what is out of all proportion, not a measurement.
    """
    vectors = _COPIES + directions + (min(batch or 1, 32) if noised_examples else 0)
    return _NUMBER * (parameters * vectors + (batch or 1) * example)


def _dense(widths: Sequence[int]) -> int:
    return sum((i + 1) * o for i, o in pairwise(widths))


def _mlp(shape: Sequence[int], outputs: int, options: Mapping[str, Any]) -> int | None:
    hidden = options.get("hidden", (64, 64))
    if not isinstance(hidden, list | tuple) or not all(type(width) is int and width > 0 for width in hidden):
        return None  # the configuration refuses it
    if len(hidden) > _LAYERS:
        return _NEVER
    return _dense([math.prod(shape), *hidden, outputs])


_NEVER = 2**63
"""More parameters than any limit allows, for models of more layers than anybody builds."""


def _affine(shape: Sequence[int], outputs: int, options: Mapping[str, Any]) -> int:
    return _dense([math.prod(shape), outputs])


def _convolutional(kernels: Sequence[tuple[int, int, int]], pools: Sequence[bool], hidden: Sequence[int]) -> ParameterCount:
    """Convolutions of (channels, side of the kernel, padding), each followed by pooling or not, then dense layers."""

    def count(shape: Sequence[int], outputs: int, options: Mapping[str, Any]) -> int | None:
        if len(shape) != 3:
            return None  # the model refuses such examples
        (channels, *sides), total = shape, 0
        for (made, kernel, padding), pooled in zip(kernels, pools, strict=True):
            total += (channels * kernel**2 + 1) * made
            sides = [(side + 2 * padding - kernel + 1) // (2 if pooled else 1) for side in sides]
            channels = made
        return total + _dense([channels * math.prod(sides), *hidden, outputs])

    return count


_COUNTS: dict[str, ParameterCount] = {
    "mlp": _mlp,
    "logistic": _affine,
    "linear": _affine,
    "lenet": _convolutional([(6, 5, 2), (16, 5, 0)], [True, True], [120, 84]),
    "cnn_mnist": _convolutional([(32, 5, 2), (64, 5, 2)], [True, True], [512]),
    "cnn_cifar": _convolutional([(32, 5, 2), (64, 5, 2), (128, 5, 2)], [False, True, True], [200]),
}
