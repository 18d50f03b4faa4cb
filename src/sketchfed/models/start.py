"""First weights from a public seed, the same on every platform."""

import math

import torch
from torch import nn

from sketchfed.draws import uniform
from sketchfed.seeds import PublicSeed


def initialise(module: nn.Module, seed: PublicSeed) -> nn.Module:
    """Fill each dense or convolutional layer with U(−a, a), a = 1/√(inputs of a unit), as torch does from its own generator.

    A model that is one affine layer is convex and starts at zero, where theory measures its distance from.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    for index, layer in enumerate(layers):
        bound = 1 / math.sqrt(layer.weight[0].numel()) if len(layers) > 1 else 0.0
        for name, parameter in layer.named_parameters():
            with torch.no_grad():
                parameter.copy_(uniform(seed.child(f"layer.{name}", index), parameter.shape, bound=bound))
    return module
