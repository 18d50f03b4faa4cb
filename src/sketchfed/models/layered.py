"""Models made of dense layers alone; their local training has a fast path (`sketchfed.training.perceptron`)."""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from sketchfed.errors import InputError


def mlp(*, shape: tuple[int, ...], outputs: int, hidden: Sequence[int] = (64, 64)) -> nn.Module:
    """A multilayer perceptron with ReLU; `hidden = [200, 200]` on MNIST is the one of McMahan et al. 2017."""
    if not isinstance(hidden, list | tuple) or not hidden or not all(type(width) is int and width > 0 for width in hidden):
        raise InputError(
            f"model 'mlp' needs a list of positive widths in hidden, got {hidden!r}. For no hidden layer use 'logistic' or "
            "'linear'."
        )
    widths = [math.prod(shape), *hidden]
    layers = [layer for i, o in pairwise(widths) for layer in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(widths[-1], outputs))


def logistic(*, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Multinomial logistic regression, started at zero: convex."""
    return _affine(shape, outputs)


def linear(*, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Linear regression, started at zero: convex."""
    return _affine(shape, outputs)


def _affine(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs))
