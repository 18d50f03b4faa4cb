"""Attacks on the server's steps: what clients learn about the changes of weights that they are not shown."""

from abc import abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from torch import Tensor

from sketchfed.attacks.base import Attack
from sketchfed.attacks.estimation import Estimate, Seen, by_adjoint, by_pseudo_inverse
from sketchfed.attacks.smoothing import smoothed_weights
from sketchfed.attacks.view import View
from sketchfed.errors import InputError

Steps = dict[int, dict[str, Tensor]]
"""For each round, the change of each weight matrix, `(outputs, inputs)`."""


@dataclass(frozen=True, kw_only=True)
class StepAttack(Attack):
    """Estimates how the server's weights moved."""

    goal = "steps"

    @abstractmethod
    def steps(self, view: View) -> Steps:
        """Estimate the steps of as many rounds as this view allows. Raises `InputError` with the reason if there is none."""


@dataclass(frozen=True, kw_only=True)
class AsSent(StepAttack):
    """The difference of two models, or the update between them. This is no attack: clients are told it."""

    name: ClassVar[str] = "as sent"
    summary = "the difference of models that clients are shown"
    source = "what is sent"

    def steps(self, view: View) -> Steps:
        algorithm = view.public.algorithm
        if not algorithm.shows_weights:
            raise InputError(
                f"algorithm '{algorithm.name}' shows nobody the weights, only sketches of them. Use 'all broadcasts'."
            )
        replicas = view.replicas()
        found = {}
        for index in sorted(replicas):
            if index + 1 in replicas:
                views = view.public.layout.views(replicas[index + 1].weights - replicas[index].weights)
                found[index] = {name: part.reshape(len(part) if part.ndim else 1, -1) for name, part in views.items()}
        return _some(found, view)


@dataclass(frozen=True, kw_only=True)
class TwoBroadcasts(StepAttack):
    """Undoes two sketched broadcasts as well as possible, and subtracts them."""

    estimate: ClassVar[Estimate]

    def steps(self, view: View) -> Steps:
        seen = _sketched(view)
        found: Steps = {}
        for index in sorted(seen):
            if index + 1 in seen:
                old, new = seen[index], seen[index + 1]
                found[index] = {name: -type(self).estimate(old[name], new[name]) for name in old}
        return _some(found, view)


@dataclass(frozen=True, kw_only=True)
class ByAdjoint(TwoBroadcasts):
    """Option I."""

    estimate = by_adjoint
    name: ClassVar[str] = "option I"
    summary = "two broadcasts, each de-sketched by the adjoint"
    source = "Zhang & Wang 2021, Sec. 5.1"


@dataclass(frozen=True, kw_only=True)
class ByPseudoInverse(TwoBroadcasts):
    """Option II."""

    estimate = by_pseudo_inverse
    name: ClassVar[str] = "option II"
    summary = "two broadcasts, each de-sketched by the pseudo-inverse"
    source = "Zhang & Wang 2021, Sec. 5.1"


@dataclass(frozen=True, kw_only=True)
class AllBroadcasts(StepAttack):
    """Applies Kalman's filter and a smoother to all broadcasts that were seen. It bridges rounds that were missed."""

    name: ClassVar[str] = "all broadcasts"
    summary = "all broadcasts together, by a smoother that knows how weights move"
    source = "here; Rauch, Tung & Striebel 1965"

    def steps(self, view: View) -> Steps:
        public = view.public
        if not public.algorithm.moves_by_mean:
            raise InputError(
                "the smoother knows no server momentum and no server optimiser. Use 'option I', or algorithm.global_momentum = "
                "0 without algorithm.server."
            )
        seen = _sketched(view)
        rounds = range(min(seen, default=0), max(seen, default=-1) + 1)
        found: Steps = {index: {} for index in rounds[:-1]}
        for name in next(iter(seen.values()), {}):
            told = [seen[i][name] if i in seen else public.sketches(i)[name] for i in rounds]
            weights = smoothed_weights(told)
            for index, (old, new) in zip(rounds[:-1], pairwise(weights), strict=True):
                found[index][name] = (new - old).float()
        return _some(found, view)


@dataclass(frozen=True, kw_only=True)
class AllMessages(Attack):
    """Estimates the local changes of neighbours on a graph, from everything that was said in all rounds."""

    goal = "steps"
    name: ClassVar[str] = "all messages"
    summary = "neighbours' changes that explain everything that they said, by least squares"
    source = "here; Rauch, Tung & Striebel 1965"

    def changes(self, view: View) -> dict[tuple[int, int], Tensor]:
        """The most likely change of each neighbour in each round, `(dim,)`. Raises `InputError` with the reason if none."""
        found = {(told.round, told.nodes[0]): told.change for told in view.told if told.change is not None}
        if not found:
            raise InputError(
                "what one round's messages show of a change is all there is: other rounds tell nothing more. Use an attack on "
                "examples."
            )
        return found


def _sketched(view: View) -> dict[int, dict[str, Seen]]:
    """The sketched layers of each broadcast that was seen, by round."""
    if view.public.algorithm.shows_weights:
        raise InputError("clients are shown the weights themselves, so there is nothing to estimate. Use 'as sent'.")
    found = {}
    for index, replica in view.replicas().items():
        form = view.public.sketch(index)
        if form is None:
            continue
        parts = form.seen.views(replica.weights)
        found[index] = {name: Seen(rows=parts[name], sketch=sketch) for name, sketch in form.layers}
    return found


def _some(found: Steps, view: View) -> Steps:
    if not found:
        raise InputError(
            f"the {view.role} was not sent the models of two rounds in a row. Let clients take part more often "
            "(algorithm.participation), or look from another view."
        )
    return found
