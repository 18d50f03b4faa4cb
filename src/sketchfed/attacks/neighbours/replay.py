"""Runs of nodes as a linear function of their local changes, and the most likely changes behind what was heard.

All nodes start from one model, codecs are linear, and mixing is linear. So everything that a node says is a linear function of
the changes that all nodes made, plus what the listener knows already: its own messages, and estimates that were built from
messages it heard. If changes are modelled as independent Gaussian numbers, all with the same variance, their mean given all
messages solves a least-squares problem. Conjugate gradients solve it without forming the matrix (Hestenes & Stiefel 1952). This
is what Kalman's filter and a smoother would compute, without their covariances. A second pass takes the directions of changes
from the first one (`prior`).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sketchfed.attacks.knowledge.base import Heard, spread
from sketchfed.attacks.neighbours.prior import Likely, likely
from sketchfed.attacks.neighbours.scene import NeighbourChange, Scene
from sketchfed.attacks.observation import through
from sketchfed.codecs.linear import LinearMap
from sketchfed.errors import InputError

MOST_NUMBERS = 2**25
"""The largest amount of numbers of changes that are estimated together. If there are more, only first rounds are looked at."""
MOST_CHANGES = 500
"""The largest number of changes, of all nodes in all rounds, that are estimated together. It bounds the time."""
ITERATIONS = 300
TOLERANCE = 1e-6
"""Conjugate gradients stop when the gradient is this much shorter than at the start."""


@dataclass
class Path:
    """A run, as a function of changes. All models are differences from the first one."""

    heard: list[Tensor] = field(default_factory=list)
    """What the node would have heard, one entry per round and neighbour."""
    before: list[Tensor] = field(default_factory=list)
    """For each of these, what the message would have shown without the neighbour's change of this round, before the map."""
    models: list[Tensor] = field(default_factory=list)
    """For each of these, the model from which the neighbour trained."""


class Replay(ABC):
    """A run that can be replayed with other changes."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.nodes = (*scene.neighbours, *scene.unseen)
        """The nodes whose changes are unknown. The neighbours come first."""
        most = min(MOST_NUMBERS // scene.dim, max(MOST_CHANGES, len(self.nodes))) // len(self.nodes)
        if not most:
            raise InputError(
                f"the changes of {len(self.nodes):,} nodes have {scene.dim:,} numbers each in a round, and at most "
                f"{MOST_NUMBERS:,} are estimated together. Audit a smaller model, or a graph with fewer links."
            )
        self.rounds = scene.rounds[:most]
        self.order = [(index, node) for index in self.rounds for node in scene.neighbours]
        """The round and the neighbour of each entry of a path."""

    @abstractmethod
    def run(self, changes: Tensor, *, known: bool) -> Path:
        """Replay with changes `(rounds, nodes, dim)`. Without what is `known`, the result is linear in the changes."""

    @property
    @abstractmethod
    def heard(self) -> list[Tensor]:
        """What was really heard, in the order of a path."""

    @abstractmethod
    def map(self, index: int, node: int) -> LinearMap | None:
        """The map through which a neighbour's change shows in its message of a round."""

    @property
    def noise(self) -> float:
        """The variance of the noise in each number that was heard. Noise in local steps is a part of the changes."""
        protection = self.scene.protection
        return 0.0 if protection.noise_before_code else protection.variance(1)

    def told(self) -> list[NeighbourChange]:
        """What the messages reveal about each neighbour's change in each round."""
        heard, start, shape = self.heard, self.scene.start.weights, (len(self.rounds), len(self.nodes), self.scene.dim)
        changes = torch.zeros(shape, dtype=torch.float64)
        if not self._is_plain:
            changes = self._explained(heard, shape, Likely())
            then = (
                None
                if self._is_noisy
                else likely(self.scene.layout, self.scene.algorithm.work, changes, all_heard=not self.scene.unseen)
            )
            changes = changes if then is None else self._explained(heard, shape, then)
        return self._read(changes, heard, start)

    @property
    def _is_noisy(self) -> bool:
        return self.scene.protection.budget is not None

    @property
    def _is_plain(self) -> bool:
        """Whether all is known without a search: the messages are the models, and all of them are heard without noise."""
        return not self.noise and not self.scene.unseen and all(self.map(*each) is None for each in self.order)

    def _read(self, changes: Tensor, heard: list[Tensor], start: Tensor) -> list[NeighbourChange]:
        found = []
        if self._is_plain:
            for index in range(len(self.rounds)):  # round by round: what comes next depends on the changes before
                path = self.run(changes, known=True)
                for place in range(len(self.scene.neighbours)):
                    entry = index * len(self.scene.neighbours) + place
                    changes[index, place] = heard[entry] - path.before[entry]
        path = self.run(changes, known=True)
        for entry, (index, node) in enumerate(self.order):
            known = self.map(index, node)
            before = path.before[entry] if known is None else known.apply(path.before[entry])
            found.append(
                NeighbourChange(
                    round=index,
                    nodes=(node,),
                    weights=(start + path.models[entry]).float(),
                    heard=Heard((heard[entry] - before).float(), known),
                    change=changes[self.rounds.index(index), self.nodes.index(node)].float(),
                    direct=index == 0,
                )
            )
        return found

    def _explained(self, heard: list[Tensor], shape: tuple[int, ...], prior: Likely) -> Tensor:
        """The most likely changes. They are `prior` of the numbers that are solved for."""
        nothing = torch.zeros(shape, dtype=torch.float64)
        wanted = [told - known for told, known in zip(heard, self.run(nothing, known=True).heard, strict=True)]
        numbers = nothing.clone().requires_grad_()
        with torch.enable_grad():
            graph = self.run(prior.apply(numbers), known=False).heard

        def back(rows: list[Tensor]) -> Tensor:
            used = [(told, row) for told, row in zip(graph, rows, strict=True) if told.requires_grad]
            (found,) = torch.autograd.grad([told for told, _ in used], numbers, [row for _, row in used], retain_graph=True)
            return found

        damping = self.noise / self._size_of_changes(heard) if self.noise else 0.0
        solution, left = nothing.clone(), wanted
        gradient = back(left)
        direction, square = gradient, float(gradient.square().sum())
        first = square
        for _ in range(ITERATIONS):
            if square <= TOLERANCE**2 * first or not square:
                break
            image = self.run(prior.apply(direction), known=False).heard
            step = square / (_square(image) + damping * float(direction.square().sum()))
            solution = solution + step * direction
            left = [each - step * moved for each, moved in zip(left, image, strict=True)]
            gradient = back(left) - damping * solution
            now = float(gradient.square().sum())
            direction, square = gradient + now / square * direction, now
        return prior.apply(solution)

    def _size_of_changes(self, heard: list[Tensor]) -> float:
        """Estimate the variance of a number of a change from the first messages, in which the model before is known."""
        squares = []
        for entry, (index, node) in enumerate(self.order):
            if index == 0:
                squares.append(
                    max(0.0, float(heard[entry].square().mean()) - self.noise) / spread(self.map(0, node), self.scene.dim)
                )
        most = self.scene.protection.clip
        floor = 1e-3 * self.noise if most is None else 1e-3 * most**2 / self.scene.dim
        return max(sum(squares) / len(squares), floor)


def mapped(known: LinearMap | None, x: Tensor) -> Tensor:
    """A map that can be differentiated."""
    return x if known is None else through(known, x)


def _square(rows: list[Tensor]) -> float:
    return sum(float(row.square().sum()) for row in rows)
