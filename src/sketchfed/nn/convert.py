"""Whole models: which layers are sketched, and their full and blind forms."""

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear as OutProjection

from sketchfed.errors import InputError, UnknownNameError
from sketchfed.nn.compound import (
    BlindCompound,
    SketchedCompound,
    blind_compound,
    full_compound,
    is_compound,
    is_whole,
    matrices,
)
from sketchfed.nn.layers import BlindConv2d, BlindLinear, SketchedConv2d, SketchedLinear, blind_layer
from sketchfed.nn.model_sketch import bias_of
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import Sketch

SketchedLayer = SketchedLinear | SketchedConv2d | SketchedCompound
OUT = "out_proj"
"""The output projection of attention, within it."""


def output_layer(model: nn.Module) -> str:
    """The name of the last dense or convolutional layer, in the order in which modules were added."""
    names = [name for name, layer in layers_of(model).items() if isinstance(layer, nn.Linear | nn.Conv2d)]
    if not names:
        raise InputError(f"{type(model).__name__} has neither an nn.Linear nor an nn.Conv2d, so it has no output layer.")
    return names[-1]


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """All dense, convolutional and recurrent layers and attention, by their names in the model, with all subclasses."""
    kinds = (nn.Linear, nn.Conv2d, nn.RNNBase, nn.MultiheadAttention)
    return {name: module for name, module in model.named_modules() if isinstance(module, kinds)}


def sketched_layers(model: nn.Module, exclude: Iterable[str] = (), *, output: bool = False) -> dict[str, nn.Module]:
    """The layers that sketching applies to, by their names in the model. The output projection of attention is one of them.

    All but those in `exclude` and the output layer, which comes along if `output` is true. Attention that is excluded keeps its
    output projection as it is, too. Convolutions in groups stay plain. So do layers that share a parameter with another module,
    which would go on with the unsketched one, layers whose weights are computed from others, attention with add_bias_kv, and
    subclasses of torch's layers, which may compute something else.
    """
    layers = layers_of(model)
    if isinstance(exclude, str):
        raise InputError(f"exclude is a list of names of layers, got the text {exclude!r}. Write exclude=[{exclude!r}].")
    left_out = list(exclude)
    for name in left_out:
        if name not in layers:
            raise UnknownNameError("layer", name, layers)
    if not output and any(isinstance(layer, nn.Linear | nn.Conv2d) for layer in layers.values()):
        left_out.append(output_layer(model))
    able: dict[str, nn.Module] = {}
    for name, layer in layers.items():
        if name not in left_out and _able(layer, able.get(name.rpartition(".")[0])) and not _tied(model, layer):
            able[name] = layer
    return able


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
    choice = {"family": family, "ratio": ratio, "size": size, "options": options, "fold_bias": fold_bias}
    forms: dict[int, Any] = {}  # a copy takes these for the layers that have these ids
    layers = sketched_layers(model, exclude)
    for name, layer in layers.items():
        if is_compound(layer):
            inner = f"{name}.{OUT}" if name else OUT
            forms[id(layer)] = full_compound(
                layer, [*matrices(layer), *([f"{OUT}.weight"] if inner in layers else [])], **choice
            )
        elif type(layer) is not OutProjection:
            forms[id(layer)] = _full(layer, **choice)
    return deepcopy(model, forms)


def draw(model: nn.Module, seed: PublicSeed) -> None:
    """A fresh sketch for every layer of a sketched model: layer i in module order draws from `seed.child("layer", i)`."""
    for i, layer in enumerate(_full_forms(model)):
        layer.draw(seed.child("layer", i))


def blind(model: nn.Module) -> nn.Module:
    """What a client gets of a sketched model: a copy with WS in place of W in every sketched layer, and all else as it is."""
    forms: dict[int, Any] = {}  # a copy takes these for the layers that have these ids
    for layer in _full_forms(model):
        if isinstance(layer, SketchedCompound):
            if layer.sketches:
                forms[id(layer)] = blind_compound(layer, layer.sketches, layer.folded)
        elif layer.sketch is not None:
            forms[id(layer)] = blind_layer(layer, layer.sketch, fold_bias=layer.fold_bias)
        if id(layer) not in forms:
            raise InputError("a layer has no sketch yet, so there is nothing to blind it with. Call draw(model, seed) first.")
    return _on_slow_paths(deepcopy(model, forms))


def blinded(model: nn.Module, sketches: Iterable[tuple[str, Sketch]], folded: frozenset[str]) -> nn.Module:
    """A copy of a plain model with WS in place of W. `sketches` and `folded` have the names of weights and of biases in it."""
    by_layer: dict[str, dict[str, Sketch]] = {}
    for weight, sketch in sketches:
        name, local = _root(model, weight)
        by_layer.setdefault(name, {})[local] = sketch
    forms: dict[int, Any] = {}  # a copy takes these for the layers that have these ids
    for name, own in by_layer.items():
        layer, prefix = model.get_submodule(name), f"{name}." if name else ""
        folds = [bias_of(local) for local in own if prefix + bias_of(local) in folded]
        if is_compound(layer):
            forms[id(layer)] = blind_compound(layer, own, folds)
        elif isinstance(layer, nn.Linear | nn.Conv2d):
            forms[id(layer)] = blind_layer(layer, own["weight"], fold_bias=bool(folds))
        else:
            raise InputError(
                f"'{prefix}{next(iter(own))}' belongs to a layer of type {type(layer).__name__}, which cannot be sketched. "
                "Make the sketches for this very module."
            )
    return _on_slow_paths(deepcopy(model, forms))


def _root(model: nn.Module, weight: str) -> tuple[str, str]:
    """The layer that has a blind form of its own, and the name of a weight within it."""
    name, _, leaf = weight.rpartition(".")
    outer, _, last = name.rpartition(".")
    if last == OUT and is_compound(model.get_submodule(outer)):
        return outer, f"{OUT}.{leaf}"
    return name, leaf


def _on_slow_paths(model: nn.Module) -> nn.Module:
    """Keep torch's encoders from their fast path of evaluation, which reads the weights of their layers and would read WS."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder | nn.TransformerEncoderLayer):
            if not any(isinstance(layer, BlindLinear | BlindConv2d | BlindCompound) for layer in module.modules()):
                continue
            if isinstance(module, nn.TransformerEncoder):
                module.use_nested_tensor = False
            else:
                module.activation_relu_or_gelu = 0
    return model


def _full_forms(model: nn.Module) -> Iterator[SketchedLayer]:
    return (module for module in model.modules() if isinstance(module, SketchedLinear | SketchedConv2d | SketchedCompound))


def _able(layer: nn.Module, around: nn.Module | None) -> bool:
    """Whether a layer can be sketched, if that holds for the layer `around` it."""
    if not is_whole(layer):
        return False
    if type(layer) is OutProjection:
        return type(around) is nn.MultiheadAttention
    return is_compound(layer) or (type(layer) in (nn.Linear, nn.Conv2d) and not _grouped(layer))


def _grouped(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Conv2d) and layer.groups != 1


def _tied(model: nn.Module, layer: nn.Module) -> bool:
    """Whether one of this layer's parameters has another name in the model, in another module or in this one."""
    names = [id(parameter) for _, parameter in layer.named_parameters(recurse=False, remove_duplicate=False)]
    others = (module for module in model.modules() if module is not layer)
    return len(set(names)) < len(names) or any(
        id(parameter) in names for other in others for parameter in other.parameters(recurse=False)
    )


def _full(layer: Any, **choice: Any) -> SketchedLinear | SketchedConv2d:
    made: SketchedLinear | SketchedConv2d
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
