"""Which parameters of a model are sketched, which are withheld, and which travel as they are."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from sketchfed.errors import InputError, UnknownNameError
from sketchfed.nn.compound import matrices
from sketchfed.nn.convert import OUT, layers_of, output_layer, sketched_layers
from sketchfed.nn.model_sketch import bias_of
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
    """Sketch all layers that can be, but those excluded; the output layer and the others' biases as is said."""
    layout = Layout.of(module)
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    last = _output(module)
    layers = _layers(module, shapes, exclude, sketch_output=output == "sketched")
    weights = [name for each, layer in layers.items() for name in _own(each, matrices(layer)) if name in shapes]
    inner = {name for each, layer in layers.items() for name in _own(each, layer._parameters) if name in shapes} - {*weights}
    folded = frozenset(inner if biases == "sketched" else ())
    for name in sorted(folded - {bias_of(weight) for weight in weights}):
        raise InputError(
            f"algorithm.biases = 'sketched': '{name}' is no column of one trainable weight. Attention with kdim or vdim, for "
            "example, has one bias for three weights. Use 'plain' or 'withheld', or exclude its layer."
        )
    withheld = inner if biases == "withheld" else set()
    if output == "withheld" and last is not None:
        withheld |= {_parameter(last, part) for part in ("weight", "bias")} & shapes.keys()
    inputs = [(name, math.prod(shapes[name][1:]) + (bias_of(name) in folded)) for name in weights]
    return Structure(layout, tuple(inputs), folded, frozenset(withheld))


def _output(module: nn.Module) -> str | None:
    """The output layer. A model may consist of recurrent layers alone, and then has none."""
    dense = any(isinstance(layer, nn.Linear | nn.Conv2d) for layer in layers_of(module).values())
    return output_layer(module) if dense else None


def _layers(
    module: nn.Module, shapes: Mapping[str, tuple[int, ...]], exclude: Sequence[str], *, sketch_output: bool
) -> dict[str, nn.Module]:
    """The layers that are sketched, of all that own matrices: none travels as it is unless that was said."""
    of_matrices = [name for name, shape in shapes.items() if len(shape) > 1]
    owners = list(dict.fromkeys(_owner(name) for name in of_matrices))
    for name in exclude:
        if name not in owners:
            raise UnknownNameError("layer", name, owners)
    known = layers_of(module)
    able = sketched_layers(module, [name for name in exclude if name in known], output=sketch_output)
    layers = {name: layer for name, layer in able.items() if name in owners}
    spared = {*exclude, *(_parameter(name, OUT) for name in exclude if isinstance(known.get(name), nn.MultiheadAttention))}
    if not sketch_output and (last := _output(module)) is not None:
        spared.add(last)
    for parameter in of_matrices:
        name = _owner(parameter)
        if name not in spared and not (name in layers and parameter in _own(name, matrices(layers[name]))):
            raise InputError(
                f"layer '{name}' ({type(module.get_submodule(name)).__name__}) cannot be sketched, so clients would see its "
                "weights. These can, with weights of their own: nn.Linear, nn.Conv2d with groups = 1, nn.LSTM, nn.GRU, nn.RNN, "
                "and nn.MultiheadAttention without add_bias_kv. If that is meant, say "
                f'algorithm.exclude = ["{name}"].'
            )
    if not layers:
        raise InputError(
            f"nothing of {type(module).__name__} would be sketched: it has no layers but its output layer and those that are "
            "excluded. Use algorithm.output = 'sketched', exclude less, or choose algorithm 'fedavg'."
        )
    return layers


def _own(layer: str, parameters: Iterable[str]) -> list[str]:
    """The names in the model of a layer's parameters."""
    return [_parameter(layer, name) for name in parameters]


def _owner(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _parameter(layer: str, part: str) -> str:
    """The name of a layer's parameter; a model that is one layer has no name for it."""
    return f"{layer}.{part}" if layer else part
