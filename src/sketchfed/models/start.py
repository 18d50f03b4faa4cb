"""First weights from a public seed, the same on every platform."""

import math

import torch
from torch import nn

from sketchfed.draws import uniform
from sketchfed.seeds import PublicSeed


def initialise(module: nn.Module, seed: PublicSeed) -> nn.Module:
    """Fill each dense or convolutional layer with U(−a, a), a = 1/√(inputs of a unit), as torch does from its own generator.

    So are recurrent layers, with a = 1/√(hidden numbers), and attention, with a = 1/√(its width). A model that is one affine
    layer is convex and starts at zero, where theory measures its distance from. All other layers, such as embeddings, are left
    as they are.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    others = [layer for layer in module.modules() if isinstance(layer, nn.RNNBase | nn.MultiheadAttention)]
    for index, layer in enumerate(layers):
        bound = 1 / math.sqrt(layer.weight[0].numel()) if len(layers) > 1 or others else 0.0
        _fill(layer, bound, seed, "layer", index)
    for index, other in enumerate(others):
        width = other.hidden_size if isinstance(other, nn.RNNBase) else other.embed_dim
        _fill(other, 1 / math.sqrt(width), seed, "compound", index)
    return module


def _fill(layer: nn.Module, bound: float, seed: PublicSeed, kind: str, index: int) -> None:
    for name, parameter in layer.named_parameters(recurse=False):
        with torch.no_grad():
            parameter.copy_(uniform(seed.child(f"{kind}.{name}", index), parameter.shape, bound=bound))
