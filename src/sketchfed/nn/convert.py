"""Whole models: which layers are sketched, and their full and blind forms."""

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from torch import nn

from sketchfed.errors import InputError, UnknownNameError
from sketchfed.nn.layers import Layer, SketchedConv2d, SketchedLinear, blind_layer
from sketchfed.seeds import PublicSeed

SketchedLayer = SketchedLinear | SketchedConv2d


def output_layer(model: nn.Module) -> str:
    """The name of the last dense or convolutional layer, in the order in which modules were added."""
    names = list(_layers(model))
    if not names:
        raise InputError(f"{type(model).__name__} has neither an nn.Linear nor an nn.Conv2d, so nothing in it can be sketched.")
    return names[-1]


def sketched_layers(model: nn.Module, exclude: Iterable[str] = (), *, output: bool = False) -> dict[str, Layer]:
    """The layers that sketching applies to, by their names in the model.

    All but those in `exclude` and the output layer, which comes along if `output` is true. Convolutions in groups stay plain.
    So do layers that share a parameter with another module, which would go on with the unsketched one, and subclasses of
    nn.Linear and nn.Conv2d, which may compute something else.
    """
    layers = _layers(model)
    if isinstance(exclude, str):
        raise InputError(f"exclude is a list of names of layers, got the text {exclude!r}. Write exclude=[{exclude!r}].")
    left_out = list(exclude)
    for name in left_out:
        if name not in layers:
            raise UnknownNameError("dense or convolutional layer", name, layers)
    if not output and layers:
        left_out.append(output_layer(model))
    return {
        name: layer
        for name, layer in layers.items()
        if name not in left_out and type(layer) in (nn.Linear, nn.Conv2d) and not _grouped(layer) and not _tied(model, layer)
    }


def sketch_model(
    model: nn.Module,
    *,
    exclude: Iterable[str] = (),
    family: str = "balanced",
    ratio: float = 0.5,
    size: int | None = None,
    options: Mapping[str, object] = {},
    fold_bias: bool = False,
) -> nn.Module:
    """A copy of the model whose `sketched_layers` have their full form, with the same weights and the same state_dict."""
    forms: dict[int, Any] = {}  # a copy takes these for the layers that have these ids
    for layer in sketched_layers(model, exclude).values():
        forms[id(layer)] = _full(layer, family=family, ratio=ratio, size=size, options=options, fold_bias=fold_bias)
    return deepcopy(model, forms)


def draw(model: nn.Module, seed: PublicSeed) -> None:
    """A fresh sketch for every layer of a sketched model: layer i in module order draws from `seed.child("layer", i)`."""
    for i, layer in enumerate(_full_forms(model)):
        layer.draw(seed.child("layer", i))


def blind(model: nn.Module) -> nn.Module:
    """What a client gets of a sketched model: a copy with WS in place of W in every sketched layer, and all else as it is."""
    forms: dict[int, Any] = {}  # a copy takes these for the layers that have these ids
    for layer in _full_forms(model):
        if layer.sketch is None:
            raise InputError("a layer has no sketch yet, so there is nothing to blind it with. Call draw(model, seed) first.")
        forms[id(layer)] = blind_layer(layer, layer.sketch, fold_bias=layer.fold_bias)
    return deepcopy(model, forms)


def _layers(model: nn.Module) -> dict[str, Layer]:
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)}


def _full_forms(model: nn.Module) -> Iterator[SketchedLayer]:
    return (module for module in model.modules() if isinstance(module, SketchedLinear | SketchedConv2d))


def _grouped(layer: Layer) -> bool:
    return isinstance(layer, nn.Conv2d) and layer.groups != 1


def _tied(model: nn.Module, layer: Layer) -> bool:
    """Whether a module other than this layer has one of its parameters."""
    own = {id(parameter) for parameter in layer.parameters(recurse=False)}
    others = (module for module in model.modules() if module is not layer)
    return any(id(parameter) in own for other in others for parameter in other.parameters(recurse=False))


def _full(layer: Layer, **choice: Any) -> SketchedLayer:
    made: SketchedLayer
    bias = layer.bias is not None
    if isinstance(layer, nn.Conv2d):
        moves = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "padding_mode")}
        made = SketchedConv2d(
            layer.in_channels, layer.out_channels, layer.kernel_size, bias=bias, device="meta", **moves, **choice
        )
    else:
        made = SketchedLinear(layer.in_features, layer.out_features, bias, device="meta", **choice)
    made.weight, made.bias = deepcopy(layer.weight), deepcopy(layer.bias)
    return made.train(layer.training)
