"""Attacks that answer a question about examples: do they have a property, and were they trained on?"""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor

from sketchfed.attacks.base import Attack
from sketchfed.attacks.membership import by_alignment, by_loss
from sketchfed.attacks.property import PropertyInference
from sketchfed.attacks.reconstruction import OnStep
from sketchfed.attacks.shadows import shared
from sketchfed.attacks.view import Update, View
from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples
from sketchfed.training.objective import objective_of

MOST_EXAMPLES = 64
"""The largest number of examples behind an update whose property is guessed."""


@dataclass(frozen=True, kw_only=True)
class PropertyAttack(Attack):
    """A random forest over updates. The adversary trains it on updates that it makes from its own examples."""

    forest: PropertyInference = field(default_factory=PropertyInference)

    goal = "property"
    name: ClassVar[str] = "forest"
    summary = "a random forest over updates says whether their examples have a property"
    source = "Melis et al. 2019"

    def scores(
        self,
        view: View,
        examples: Examples,
        has: Tensor,
        *,
        rounds: int,
        seed: PublicSeed,
        on_step: OnStep | None = None,
    ) -> list[tuple[Update, float]]:
        """Estimate, for each update of the first `rounds` rounds, how likely one of its examples has the property.

        `has` says which of the adversary's own `examples` have it. Rounds are judged one by one, because each has its own
        sketch.
        """
        groups = _by_round(view.updates(), rounds)
        if not groups:
            raise InputError(f"the {view.role} sees nothing that is a function of one round's changes alone.")
        found: list[tuple[Update, float]] = []
        for updates in (part for group in groups for part in _alike(group)):
            count = updates[0].count
            if count > MOST_EXAMPLES:
                raise InputError(
                    f"an update that the {view.role} sees is of {count:,} examples, of which nearly all contain one with the "
                    f"property or none does; at most {MOST_EXAMPLES} are judged. Use smaller batches or cohorts."
                )
            forest = replace(self.forest, share=1 / count)
            judged = forest.score(
                [update.observation for update in updates],
                count=count,
                examples=examples,
                has=has,
                seed=seed.child("round", updates[0].round),
                clip=updates[0].clip,
                noise=updates[0].noise,
                on_step=on_step,
            )
            found += zip(updates, judged.tolist(), strict=True)
        return found


@dataclass(frozen=True, kw_only=True)
class MembershipAttack(Attack):
    """Scores how much an example looks as if it had been trained on."""

    goal = "members"

    @abstractmethod
    def scores(self, view: View, candidates: Examples, *, rounds: int, on_step: OnStep | None = None) -> Tensor:
        """Score each candidate, `(n,)`. Members should have higher scores.

        An attack that uses updates takes those of the first `rounds` rounds.
        """


@dataclass(frozen=True, kw_only=True)
class LossAttack(MembershipAttack):
    """Members have lower losses, under the final weights or under the last form that clients were given."""

    name: ClassVar[str] = "loss"
    summary = "members have been fitted, so their loss is low"
    source = "Yeom et al. 2018"

    def scores(self, view: View, candidates: Examples, *, rounds: int, on_step: OnStep | None = None) -> Tensor:
        loss = objective_of(view.public.loss)
        if view.released is not None:
            return by_loss(view.public.module, loss, view.released, candidates)
        replicas = view.replicas()
        if not replicas:
            raise InputError(f"the {view.role} was sent no model. Look from another view.")
        last = max(replicas)
        module, _ = view.public.given(last)
        return by_loss(module, loss, replicas[last].weights, candidates)


@dataclass(frozen=True, kw_only=True)
class AlignmentAttack(MembershipAttack):
    """Finds traces of members' own updates in what was sent."""

    name: ClassVar[str] = "alignment"
    summary = "the update that a member alone would make shows in those that were sent"
    source = "after Nasr et al. 2019; Andrew et al. 2024"

    def scores(self, view: View, candidates: Examples, *, rounds: int, on_step: OnStep | None = None) -> Tensor:
        updates = [update for group in _by_round(view.updates(), rounds) for update in group]
        if not updates:
            raise InputError(f"the {view.role} sees nothing that is a function of one round's changes alone.")
        return by_alignment([update.observation for update in updates], candidates, on_step=on_step)


def _alike(updates: list[Update]) -> list[list[Update]]:
    """Group updates that one forest can judge. Nodes of a graph train from models of their own, so each is judged alone."""
    return [[updates[place] for place in places] for places in shared([update.observation for update in updates])]


def _by_round(updates: Iterable[Update], rounds: int) -> list[list[Update]]:
    """Group the updates of the first `rounds` rounds by round and by number of examples."""
    groups: defaultdict[tuple[int, int], list[Update]] = defaultdict(list)
    looked_at: set[int] = set()
    for update in updates:
        if update.round not in looked_at and len(looked_at) == rounds:
            break
        looked_at.add(update.round)
        groups[update.round, update.count].append(update)
    return list(groups.values())
