"""The sketches of a model's layers as one linear map on its flat weights."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sketchfed.draws import uniform
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import Sketch
from sketchfed.vectors import Layout


@dataclass(frozen=True, kw_only=True)
class ModelSketch:
    """R: from a model's weights `(dim,)` to those of its client form `(size,)`.

    Paper: Zhang & Wang 2021, Sec. 4.2. A sketched weight W, `(outputs, inputs)` with a kernel's positions among the inputs,
    becomes W̃ = WS; what is plain stays; what is withheld does not travel at all and has values that anyone can rebuild:
    zero for biases, fixed random ones for weights. A folded bias is one more column of W, whose input is always 1.

    Training the weights through R means that clients see R·w, and w moves by Rᵀu where clients say u. So what they see moves
    by RRᵀu (`gram`): diagonal for most families, the loads of the buckets.
    """

    layout: Layout
    """Of the whole model."""
    layers: tuple[tuple[str, Sketch], ...]
    """The sketch of each sketched weight, by the name of the parameter."""
    folded: frozenset[str] = frozenset()
    """Biases that are sketched along with the weight of their layer."""
    withheld: frozenset[str] = frozenset()
    """Parameters that never travel."""

    @cached_property
    def sketches(self) -> Mapping[str, Sketch]:
        return dict(self.layers)

    @cached_property
    def seen(self) -> Layout:
        """The parameters of the client form, in the order in which they lie in its flat vector."""
        shapes = {
            name: (shape[0], self.sketches[name].size) if name in self.sketches else shape
            for name, shape in zip(self.layout.names, self.layout.shapes, strict=True)
            if name not in self.folded | self.withheld
        }
        return Layout(tuple(shapes), tuple(shapes.values()))

    @property
    def dim(self) -> int:
        return self.layout.dim

    @property
    def size(self) -> int:
        """Numbers that a client sees."""
        return self.seen.dim

    def apply(self, x: Tensor) -> Tensor:
        """What clients see of weights: `(dim,)` to `(size,)`."""
        parts = self.layout.views(x)
        return torch.cat([self._sketched(name, parts).reshape(-1) for name in self.seen.names])

    def adjoint(self, y: Tensor) -> Tensor:
        """What clients say, as a change of weights: `(size,)` to `(dim,)`; what is withheld does not change."""
        out = y.new_zeros(self.dim)
        targets = self.layout.views(out)
        for name, part in self.seen.views(y).items():
            rows = self.sketches[name].adjoint(part) if name in self.sketches else part
            bias = self._bias(name)
            if bias is not None:
                targets[bias].copy_(rows[:, -1])
                rows = rows[:, :-1]
            targets[name].copy_(rows.reshape(targets[name].shape))
        return out

    def gram(self, y: Tensor) -> Tensor:
        """RRᵀy: how what clients see moves when the weights move by Rᵀy."""
        if self.loads is not None:
            return self._loads_on(y.device) * y
        pieces = [
            self.sketches[name].apply(self.sketches[name].adjoint(part)) if name in self.sketches else part
            for name, part in self.seen.views(y).items()
        ]
        return torch.cat([piece.reshape(-1) for piece in pieces])

    @cached_property
    def loads(self) -> Tensor | None:
        """The diagonal `(size,)` of RRᵀ, or None if it is not diagonal."""
        if not all(sketch.orthogonal for _, sketch in self.layers):
            return None
        loads = torch.ones(self.size)
        for name, part in self.seen.views(loads).items():
            if name in self.sketches:
                part.copy_(self.sketches[name].loads.expand_as(part))
        return loads

    def _loads_on(self, device: torch.device) -> Tensor:
        """The loads on a device, moved once."""
        if device not in self._moved_loads:
            self._moved_loads[device] = torch.empty(0) if self.loads is None else self.loads.to(device)
        return self._moved_loads[device]

    @cached_property
    def _moved_loads(self) -> dict[torch.device, Tensor]:
        return {}

    def fixed(self) -> dict[str, Tensor]:
        """The values of what is withheld."""
        shapes = dict(zip(self.layout.names, self.layout.shapes, strict=True))
        return {name: _public_values(name, shapes[name]) for name in sorted(self.withheld)}

    def _sketched(self, name: str, parts: Mapping[str, Tensor]) -> Tensor:
        if name not in self.sketches:
            return parts[name]
        return self.sketches[name].apply(self.rows(name, parts))

    def rows(self, name: str, parts: Mapping[str, Tensor]) -> Tensor:
        """A sketched weight of the whole model, `(outputs, inputs)`, its folded bias among the inputs."""
        rows, bias = parts[name].reshape(parts[name].shape[0], -1), self._bias(name)
        return rows if bias is None else torch.cat([rows, parts[bias][:, None]], 1)

    def _bias(self, weight: str) -> str | None:
        """The bias that is folded into a weight."""
        bias = bias_of(weight)
        return bias if weight in self.sketches and bias in self.folded else None


def bias_of(weight: str) -> str:
    """The name that the bias beside a weight has, if there is one."""
    owner, dot, leaf = weight.rpartition(".")
    return owner + dot + leaf.replace("weight", "bias")


def _public_values(name: str, shape: tuple[int, ...]) -> Tensor:
    if len(shape) < 2:
        return torch.zeros(shape)
    return uniform(PublicSeed(0).child(f"withheld.{name}"), shape, bound=1 / math.sqrt(math.prod(shape[1:])))
