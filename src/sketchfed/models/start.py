"""First weights from a public seed, the same on every platform."""

import math

import numpy as np
import torch
from torch import Tensor, nn

from sketchfed.kernels import philox
from sketchfed.seeds import PublicSeed


def initialise(module: nn.Module, seed: PublicSeed) -> nn.Module:
    """Fill each dense or convolutional layer with U(−a, a), a = 1/√(inputs of a unit), as torch does from its own generator.

    A model that is one affine layer is convex and starts at zero, where theory measures its distance from.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    for index, layer in enumerate(layers):
        bound = 1 / math.sqrt(layer.weight[0].numel()) if len(layers) > 1 else 0.0
        for name, parameter in layer.named_parameters():
            fill(parameter, bound, seed.child(f"layer.{name}", index))
    return module


def fill(parameter: Tensor, bound: float, seed: PublicSeed) -> None:
    """Midpoints of 2^24 equal intervals: exact in float32 before they are scaled."""
    words = philox.words(seed.stream, parameter.numel())[: parameter.numel()] >> np.uint32(8)
    centred = (words.astype(np.float64) + 0.5) * 2.0**-23 - 1
    with torch.no_grad():
        parameter.copy_(torch.from_numpy((bound * centred).astype(np.float32)).view_as(parameter))
