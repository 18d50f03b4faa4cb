"""What is known of local changes before anything is heard: which directions are likely."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchfed.training import LocalWork
from sketchfed.vectors import Layout

_OF_ONE, _OF_SEVERAL = 0.03, 0.2
"""What is left of other directions, as a share of the deviation: for one example where all nodes are heard, and otherwise.

Of 0.01, 0.03, 0.1, 0.2 and 0.3, these did best on digits, on a ring and on a complete graph of six nodes.
"""


@dataclass(frozen=True, eq=False)
class Likely:
    """The deviation of changes as a symmetric linear map. Here, all numbers of a change are alike."""

    def apply(self, x: Tensor) -> Tensor:
        """Changes `(rounds, nodes, dim)` with this deviation, from numbers of deviation 1."""
        return x


@dataclass(frozen=True, eq=False)
class AlongBiases(Likely):
    """The gradient of a dense layer's weights is δxᵀ, and that of its bias is δ, with the layer's input x.

    So the rows of the weights' change are multiples of one vector, and a first estimate of the bias says which. This holds for
    one step on one example. For a batch it is a sum of such products, and still more likely to point there than elsewhere.
    """

    layers: Sequence[tuple[slice, Tensor]]
    """Where the weights of a layer lie, and the direction of its bias in each round and node, `(rounds, nodes, outputs)`."""
    left: float

    def apply(self, x: Tensor) -> Tensor:
        found, end = [], 0
        for place, unit in self.layers:
            rows = x[..., place].reshape(*unit.shape, -1)
            along = unit[..., None] * (unit[..., None] * rows).sum(-2, keepdim=True)
            scaled = math.sqrt(unit.shape[-1]) * (self.left * rows + (1 - self.left) * along)
            found += [x[..., end : place.start], scaled.flatten(-2)]
            end = place.stop
        return torch.cat([*found, x[..., end:]], dim=-1)


def likely(layout: Layout, work: LocalWork, changes: Tensor, *, all_heard: bool) -> Likely | None:
    """What a first estimate says of the directions of changes. None if it says nothing: steps of several batches add up."""
    places = dict(zip(layout.names, _places(layout), strict=True))
    layers = []
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        owner, dot, leaf = name.rpartition(".")
        bias = places.get(f"{owner}{dot}bias")
        if leaf == "weight" and len(shape) == 2 and bias is not None and bias.stop - bias.start == shape[0]:
            told = changes[..., bias]
            layers.append((places[name], told / told.norm(dim=-1, keepdim=True).clamp(min=1e-30)))
    if work.steps != 1 or not layers:
        return None
    return AlongBiases(layers, _OF_ONE if work.batch == 1 and all_heard else _OF_SEVERAL)


def _places(layout: Layout) -> list[slice]:
    found, start = [], 0
    for shape in layout.shapes:
        found.append(slice(start, start + math.prod(shape)))
        start += math.prod(shape)
    return found
