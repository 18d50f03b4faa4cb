"""Replays of algorithms in which nodes say sketches of their whole models: 'dbcl' on a graph, and 'gossip_models'."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from sketchfed.algorithms import Dbcl
from sketchfed.algorithms.gossip_models import GossipModels
from sketchfed.attacks.neighbours.replay import Path, Replay, mapped
from sketchfed.attacks.neighbours.scene import Scene
from sketchfed.codecs.linear import LinearMap, RoundTrip
from sketchfed.nn.model_sketch import ModelSketch
from sketchfed.rounds.peers.models import link_form, projected
from sketchfed.wire import Packet, unpack


class ModelsReplay(Replay):
    """A message is S(x + Δ). What a link moves is known if both its ends speak to the node under the sketch of that link."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._shown = cache(self._difference)

    @abstractmethod
    def sketch(self, index: int, link: Sequence[int]) -> LinearMap:
        """The sketch of a link in a round, from `(..., dim)`."""

    @abstractmethod
    def pull(self, index: int, link: Sequence[int]) -> LinearMap:
        """P: what the ends of a link exchange of the difference between their models."""

    @abstractmethod
    def pulled(self, index: int, link: Sequence[int], seen: Tensor) -> Tensor:
        """P·x, from S·x."""

    @abstractmethod
    def is_known(self, a: int, b: int) -> bool:
        """Whether this node can compute what a link moves from the messages alone."""

    @property
    @abstractmethod
    def mixing_rate(self) -> float: ...

    def said(self, index: int, sender: int, link: Sequence[int]) -> Tensor:
        """S·(model of the sender) in what it said, as a difference from the first model, over a link of this node."""
        return self._shown(index, sender, *link)

    def _difference(self, index: int, sender: int, a: int, b: int) -> Tensor:
        sketch = self.sketch(index, (a, b))
        packet = unpack(self.scene.message(index, sender, a if sender == b else b))
        return self.values(packet, index).double() - sketch.apply(self.scene.start.weights.double())

    def values(self, packet: Packet, index: int) -> Tensor:
        """The numbers in a message."""
        [found] = packet.arrays.values()
        return found if isinstance(found, Tensor) else found.values

    def map(self, index: int, node: int) -> LinearMap:
        return self.sketch(index, (self.scene.node, node))

    @property
    def heard(self) -> list[Tensor]:
        return [self.said(index, node, (self.scene.node, node)) for index, node in self.order]

    def run(self, changes: Tensor, *, known: bool) -> Path:
        path, scene = Path(), self.scene
        models = [torch.zeros(scene.dim, dtype=torch.float64) for _ in self.nodes]
        for index in self.rounds:
            path.models += models[: len(scene.neighbours)]
            path.before += models[: len(scene.neighbours)]
            models = [model + change for model, change in zip(models, changes[index], strict=True)]
            path.heard += [mapped(self.map(index, node), x) for node, x in zip(scene.neighbours, models, strict=False)]
            models = self._mixed(index, dict(zip(self.nodes, models, strict=True)), known)
        return path

    def _mixed(self, index: int, models: dict[int, Tensor], known: bool) -> list[Tensor]:
        moved = dict(models)
        for a, b in self.scene.graph.edges:
            if a not in models and b not in models:
                continue
            if self.is_known(a, b):
                if not known:
                    continue
                step = self._known_step(index, a, b)
            elif a in models and b in models:
                step = mapped(self.pull(index, (a, b)), models[b] - models[a])
            else:
                continue  # it leads too far away
            step = self.mixing_rate * self.scene.weight(a, b) * step
            for node, part in ((a, step), (b, -step)):
                if node in moved:
                    moved[node] = moved[node] + part
        return [moved[node] for node in self.nodes]

    @abstractmethod
    def _known_step(self, index: int, a: int, b: int) -> Tensor:
        """P·(x_b − x_a), from messages."""


class PairwiseReplay(ModelsReplay):
    """Each link has a sketch of its own for each layer, so only the node's own links are known."""

    def __init__(self, scene: Scene, algorithm: Dbcl) -> None:
        super().__init__(scene)
        self.dbcl = algorithm
        self._form = cache(self._drawn)

    def _drawn(self, index: int, low: int, high: int) -> "ModelMap":
        return ModelMap(link_form(self.dbcl, self.scene.seed, (low, high), self.scene.graph.nodes, index).sketch)

    def sketch(self, index: int, link: Sequence[int]) -> "ModelMap":
        low, high = sorted(link)
        return self._form(index, low, high)

    def pull(self, index: int, link: Sequence[int]) -> LinearMap:
        form = self.sketch(index, link).sketch
        return RoundTrip(lambda x: projected(form, form.apply(x)))

    def pulled(self, index: int, link: Sequence[int], seen: Tensor) -> Tensor:
        return projected(self.sketch(index, link).sketch, seen)

    def is_known(self, a: int, b: int) -> bool:
        return self.scene.node in (a, b)

    def _known_step(self, index: int, a: int, b: int) -> Tensor:
        return self.pulled(index, (a, b), self.said(index, b, (a, b)) - self.said(index, a, (a, b)))

    @property
    def mixing_rate(self) -> float:
        return self.dbcl.global_rate or 1.0


class SharedReplay(ModelsReplay):
    """All nodes use the same sketch in a round, so all links between nodes that are heard are known."""

    def __init__(self, scene: Scene, algorithm: GossipModels) -> None:
        super().__init__(scene)
        self.models = algorithm
        self.codec = algorithm.sketch.codec(scene.dim)
        self._at = cache(self._drawn)

    def _drawn(self, index: int) -> LinearMap:
        return self.codec.sketch(self.scene.context(index, 0).shared)

    def sketch(self, index: int, link: Sequence[int]) -> LinearMap:
        return self._at(index)

    def pull(self, index: int, link: Sequence[int]) -> LinearMap:
        return Weighed(self._at(index), self.codec.shares)

    def pulled(self, index: int, link: Sequence[int], seen: Tensor) -> Tensor:
        return self.codec.shares * self._at(index).adjoint(seen)

    def is_known(self, a: int, b: int) -> bool:
        return {a, b} <= {self.scene.node, *self.scene.neighbours}

    def _known_step(self, index: int, a: int, b: int) -> Tensor:
        own, to = self.scene.node, {self.scene.node: min(self.scene.neighbours)}
        first, second = (self.said(index, node, (node, to.get(node, own))) for node in (a, b))
        return self.pulled(index, (a, b), second - first)

    def values(self, packet: Packet, index: int) -> Tensor:
        return self.codec.read(packet, self.scene.context(index, 0).shared)

    @property
    def mixing_rate(self) -> float:
        return self.models.mixing_rate


@dataclass(frozen=True, eq=False)
class ModelMap:
    """The sketches of a model's layers, for several vectors at once."""

    sketch: ModelSketch

    def apply(self, x: Tensor) -> Tensor:
        return self._each(self.sketch.apply, x, self.sketch.size)

    def adjoint(self, y: Tensor) -> Tensor:
        return self._each(self.sketch.adjoint, y, self.sketch.dim)

    def _each(self, function: Callable[[Tensor], Tensor], x: Tensor, size: int) -> Tensor:
        if x.ndim == 1:
            return function(x)
        rows = [function(row) for row in x.reshape(-1, x.shape[-1])]
        return torch.stack(rows).reshape(*x.shape[:-1], size)


@dataclass(frozen=True, eq=False)
class Weighed:
    """A sketch, its adjoint, and a factor for each coordinate."""

    sketch: LinearMap
    factors: float | Tensor

    def apply(self, x: Tensor) -> Tensor:
        return self.factors * self.sketch.adjoint(self.sketch.apply(x))

    def adjoint(self, y: Tensor) -> Tensor:
        return self.sketch.adjoint(self.sketch.apply(self.factors * y))
