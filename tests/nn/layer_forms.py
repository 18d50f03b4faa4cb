"""Layers in both forms, for the tests of layers."""

import pytest
import torch

from sketchfed import PublicSeed
from sketchfed.nn import SketchedConv2d, SketchedLinear, blind_layer

SEED = PublicSeed(7)


FAMILIES = ("balanced", "count", "sampling", "srht")


CONVOLUTIONS = {
    "plain": {"kernel_size": 3},
    "strided": {"kernel_size": (2, 3), "stride": (2, 1), "padding": (1, 0)},
    "dilated": {"kernel_size": (3, 2), "dilation": (1, 2), "padding": 2},
    "same": {"kernel_size": (3, 5), "padding": "same"},
    "circular": {"kernel_size": 3, "padding": (2, 1), "padding_mode": "circular", "stride": 2},
    "circular same": {"kernel_size": (2, 3), "padding": "same", "padding_mode": "circular"},
    "reflected": {"kernel_size": 3, "padding": 1, "padding_mode": "reflect", "bias": False},
}


every_family = pytest.mark.parametrize("family", FAMILIES)


folded_or_not = pytest.mark.parametrize("fold_bias", [False, True], ids=["bias apart", "bias folded"])


both_forms = pytest.mark.parametrize("form", ["full", "blind"])


def random(*shape, seed=1):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def filled(layer):
    """The layer with fixed weights in float64."""
    with torch.no_grad():
        for number, parameter in enumerate(layer.double().parameters()):
            parameter.copy_(random(*parameter.shape, seed=10 + number))
    return layer


def dense_layer(inputs, *, outputs=4, family="balanced", size=3, fold_bias=False):
    """A dense layer in full form whose sketch is drawn."""
    layer = filled(SketchedLinear(inputs, outputs, family=family, size=size, fold_bias=fold_bias))
    layer.draw(SEED)
    return layer


def convolution(moves, *, family="balanced", fold_bias=False):
    layer = filled(SketchedConv2d(2, 3, family=family, ratio=0.45, fold_bias=fold_bias, **moves))
    layer.draw(SEED)
    return layer


def in_form(form, layer):
    return layer if form == "full" else blind_layer(layer, layer.sketch, fold_bias=layer.fold_bias)


def modules():
    yield from ((dense_layer(6, fold_bias=fold), random(3, 6)) for fold in (False, True))
    yield convolution(CONVOLUTIONS["strided"]), random(3, 2, 5, 5)
