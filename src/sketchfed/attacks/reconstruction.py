"""Attacks on examples: they reconstruct what a client trained on from the updates of a view."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from sketchfed.attacks.analytic import first_inputs, unsketched
from sketchfed.attacks.base import Attack
from sketchfed.attacks.labels import inferred
from sketchfed.attacks.matching import MOST, Guess, Matching
from sketchfed.attacks.public import Public
from sketchfed.attacks.targets import Target, repeated
from sketchfed.attacks.view import View
from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed

OnStep = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Reconstruction(Attack):
    """Reconstructs the examples behind updates."""

    goal = "examples"

    def targets(self, view: View) -> list[Target]:
        """The targets that a view offers, the most promising first. Raises `InputError` with the reason if there is none."""
        updates = view.updates()
        if not updates:
            raise InputError(
                f"the {view.role} sees nothing that is a function of a round's changes alone: it was not sent the models of "
                "two rounds in a row, or server momentum or Adam mixes rounds. Look from the server's view."
            )
        few = [update for update in updates if update.count <= MOST]
        if not few:
            least = min(update.count for update in updates)
            raise InputError(
                f"every update that the {view.role} sees is of {least:,} examples or more; at most {MOST} are looked for "
                "together. For the worst case audit one step of one example: algorithm.local_steps = 1, algorithm.batch = 1."
            )
        return [Target(updates=(update,)) for update in few]

    @abstractmethod
    def reconstruct(self, target: Target, public: Public, seed: PublicSeed, on_step: OnStep | None = None) -> Guess:
        """Reconstruct the examples of a target as well as this attack can."""


@dataclass(frozen=True, kw_only=True)
class GradientMatching(Reconstruction):
    """Searches for examples whose training would have looked like one update, by the cosine distance with total variation."""

    matching: Matching = field(default_factory=Matching)

    name: ClassVar[str] = "matching"
    summary = "examples whose gradient looks like what was seen"
    source = "Geiping et al. 2020; Song et al. 2023, Sec. 7"

    def reconstruct(self, target: Target, public: Public, seed: PublicSeed, on_step: OnStep | None = None) -> Guess:
        return self.matching.reconstruct(target.observation, shape=public.shape, seed=seed, count=target.count, on_step=on_step)


@dataclass(frozen=True, kw_only=True)
class JointMatching(GradientMatching):
    """The same for all updates that come from the same examples, jointly."""

    name: ClassVar[str] = "joint matching"
    summary = "examples that explain all updates in which they were used"
    source = "here; the order of batches is public"

    def targets(self, view: View) -> list[Target]:
        found = repeated(target.first for target in super().targets(view))
        if not found:
            raise InputError(
                f"the {view.role} knows of no two updates that come from the same examples: batches are hidden or never met "
                "again, or only sums are seen. Use 'matching' on single updates."
            )
        return found


@dataclass(frozen=True, kw_only=True)
class DeepLeakage(GradientMatching):
    """Matches squares of differences with L-BFGS and searches for labels too. Many starts stall, so the best one counts."""

    matching: Matching = field(
        default_factory=lambda: Matching(
            objective="squares", optimiser="lbfgs", labels="searched", variation=0, iterations=80, restarts=4
        )
    )

    name: ClassVar[str] = "dlg"
    summary = "the least squared distance to what was seen, by L-BFGS, labels unknown"
    source = "Zhu et al. 2019; Song et al. 2023, Sec. 7.2"


@dataclass(frozen=True, kw_only=True)
class FirstLayer(Reconstruction):
    """Computes the input of a first dense layer by a division. If clients train sketches, it solves for what was sketched."""

    name: ClassVar[str] = "first layer"
    summary = "the input of a first dense layer, by dividing its gradient"
    source = "Phong et al. 2017"

    def targets(self, view: View) -> list[Target]:
        targets = super().targets(view)
        single = [target for target in targets if target.count == 1]
        if not single:
            raise InputError("of several examples together the division gives a mixture of them. Use 'matching'.")
        if view.public.layout.shapes[0][1:] != (math.prod(view.public.shape),):
            raise InputError(
                f"the model's first parameter, '{view.public.layout.names[0]}', is not the weight of a dense layer that takes "
                "all of an example, so its gradient is no multiple of the input. Use 'matching'."
            )
        usable = [target for target in single if _reads(target)]
        if not usable:
            first_inputs(single[0].first.observation)  # says what it lacks
        if usable[0].first.observation.gram is None:
            return usable
        return repeated(target.first for target in usable) or usable

    def reconstruct(self, target: Target, public: Public, seed: PublicSeed, on_step: OnStep | None = None) -> Guess:
        found = [(update.round, first_inputs(update.observation)) for update in target.updates]
        y = inferred(target.first.observation, count=1)
        weight = public.layout.names[0]
        sketched = [(seen, public.sketches(index)[weight]) for index, seen in found if weight in public.sketches(index)]
        x = unsketched(sketched) if sketched else found[0][1]
        return Guess(x=x.reshape(1, *public.shape).clamp(0, 1), y=y, mismatch=0.0)


def _reads(target: Target) -> bool:
    """Whether the inputs can be read off. They cannot if, for example, no unit of the first layer was active."""
    try:
        first_inputs(target.first.observation)
    except InputError:
        return False
    return True
