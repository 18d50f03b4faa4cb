"""Which parameters of a model are sketched, which are withheld, and which travel as they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from sketchfed.errors import InputError, UnknownNameError
from sketchfed.nn.convert import output_layer, sketched_layers
from sketchfed.nn.layers import Layer, columns
from sketchfed.vectors import Layout

Way = Literal["plain", "sketched", "withheld"]
"""How a parameter travels."""


@dataclass(frozen=True)
class Structure:
    """What of a model is sketched, folded into a sketch, or withheld; all else travels as it is."""

    layout: Layout
    weights: tuple[tuple[str, int], ...]
    """Sketched weights, and the inputs of a unit of theirs, a folded bias among them."""
    folded: frozenset[str]
    withheld: frozenset[str]


def structure_of(module: nn.Module, *, exclude: Sequence[str], output: Way, biases: Way) -> Structure:
    """Sketch all dense and convolutional layers but those excluded; the output layer and the others' biases as is said."""
    layout, last = Layout.of(module), output_layer(module)
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    owners = [_owner(name) for name, shape in shapes.items() if len(shape) > 1]
    layers = _layers(module, owners, exclude, sketch_output=output == "sketched")
    inner = {_parameter(name, "bias") for name in layers} & shapes.keys()
    folded = frozenset(inner if biases == "sketched" else ())
    withheld = inner if biases == "withheld" else set()
    if output == "withheld":
        withheld |= {_parameter(last, part) for part in ("weight", "bias")} & shapes.keys()
    inputs = [
        (_parameter(name, "weight"), columns(layer, fold_bias=_parameter(name, "bias") in folded))
        for name, layer in layers.items()
    ]
    return Structure(layout, tuple(inputs), folded, frozenset(withheld))


def _layers(module: nn.Module, owners: Sequence[str], exclude: Sequence[str], *, sketch_output: bool) -> dict[str, Layer]:
    """The layers that are sketched, of all that own matrices: none travels as it is unless that was said."""
    for name in exclude:
        if name not in owners:
            raise UnknownNameError("layer", name, owners)
    dense = {name for name, layer in module.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)}
    able = sketched_layers(module, [name for name in exclude if name in dense], output=sketch_output)
    layers = {name: layer for name, layer in able.items() if name in owners}
    spared = {*layers, *exclude, *([] if sketch_output else [output_layer(module)])}
    for name in owners:
        if name not in spared:
            raise InputError(
                f"layer '{name}' ({type(module.get_submodule(name)).__name__}) cannot be sketched, so clients would see its "
                "weights: only nn.Linear and nn.Conv2d with groups = 1 and weights of their own can. If that is meant, say "
                f'algorithm.exclude = ["{name}"].'
            )
    if not layers:
        raise InputError(
            f"nothing of {type(module).__name__} would be sketched: it has no layers but its output layer and those that are "
            "excluded. Use algorithm.output = 'sketched', exclude less, or choose algorithm 'fedavg'."
        )
    return layers


def _owner(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _parameter(layer: str, part: str) -> str:
    """The name of a layer's parameter; a model that is one layer has no name for it."""
    return f"{layer}.{part}" if layer else part
