"""What everybody knows of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from sketchfed.algorithms import Algorithm, Replica, RoundContext, cohort
from sketchfed.attacks.knowledge import Knowledge, knowledge_of
from sketchfed.graphs import Topology
from sketchfed.nn.model_sketch import ModelSketch
from sketchfed.protection import Protection
from sketchfed.rounds import Participant
from sketchfed.seeds import PublicSeed, SecretSeed
from sketchfed.sketches import Sketch
from sketchfed.training import Examples, Loss, OfBatch, make_trainer
from sketchfed.training.blind import Latest, client_form
from sketchfed.vectors import Layout


@dataclass(frozen=True, kw_only=True, eq=False)
class Public:
    """What everybody is assumed to know of a run: its configuration, the model without its weights, and the public seed.

    The number of examples of each client is assumed to be known too, which favours the attack.
    """

    protection: Protection
    """For an algorithm that is resolved for the module. It contains neither weights nor fixed noise seeds."""
    module: nn.Module
    loss: str | Loss | OfBatch
    seed: PublicSeed
    shape: tuple[int, ...]
    """The shape of an example."""
    sizes: tuple[int, ...]
    """The number of examples of each client."""
    start: Replica | None = None
    """The first replica, if it follows from the public seed."""
    topology: Topology | None = None
    """Who is whose neighbour, in a run without a server."""

    @cached_property
    def participant(self) -> Participant:
        trainer = make_trainer(self.module, self.loss)
        return Participant(trainer=trainer, seed=self.seed, protection=self.protection)

    @property
    def algorithm(self) -> Algorithm:
        return self.protection.algorithm

    @cached_property
    def knowledge(self) -> Knowledge[Algorithm]:
        """What the algorithm's messages reveal. Raises `InputError` if nobody has said."""
        return knowledge_of(self.algorithm)

    @property
    def dim(self) -> int:
        return self.participant.trainer.dim

    def given(self, index: int) -> tuple[nn.Module, ModelSketch | None]:
        """Return the model in the form that clients get in a round, and the sketches in between, if any."""
        form = self.sketch(index)
        if form is None:
            return self.module, None
        return self._forms.get(index, lambda: client_form(self.module, form)), form

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(self.module)

    def sketches(self, index: int) -> Mapping[str, Sketch]:
        """The sketches through which clients see the weights in a round."""
        form = self.sketch(index)
        return {} if form is None else form.sketches

    def sketch(self, index: int) -> ModelSketch | None:
        """The sketches of the model that clients get in a round. None if they get the model itself, or train their own."""
        return None if self.topology is not None else self.algorithm.given(self.seed, index).sketch

    def trains(self, index: int) -> bool:
        """Whether a round trains the weights."""
        return self.algorithm.given(self.seed, index).trains

    @cached_property
    def _forms(self) -> Latest[nn.Module]:
        return Latest()

    @property
    def of_examples(self) -> bool:
        """Whether single examples are protected. Then batches are hidden or cut from passes. Sums are divided as planned."""
        return self.protection.batches is not None

    def used(self, index: int, client: int) -> tuple[int, ...] | None:
        """Which of a client's examples are behind its reply in a round. None if batches are hidden, which are not public."""
        size, context = self.sizes[client], RoundContext(round=index, seed=self.seed, client=client)
        batches = self.protection.batches
        if batches is None:
            order, slices = self.algorithm.work.order(size, context.own)
            return tuple(sorted(set(order[: slices[-1][1]].tolist())))
        if batches.drawn_in_secret:
            return None
        numbers = torch.arange(size)
        drawn = [batch for batch, _ in batches.draw(Examples(numbers, numbers), context, SecretSeed())]
        return tuple(sorted({int(number) for batch in drawn for number in batch.x}))

    def count(self, index: int, client: int) -> int:
        """The number of a client's examples behind its reply in a round. If batches are hidden, the planned number."""
        used, size, work = self.used(index, client), self.sizes[client], self.algorithm.work
        return max(1, min(size, work.count(size) * (work.batch or size)) if used is None else len(used))

    @property
    def clip(self) -> float | None:
        """The largest norm of what a client sends, without noise. None if no single bound applies."""
        return self.protection.clip

    def cohort(self, index: int) -> tuple[int, ...]:
        """The clients of a round. Everybody can compute them, unless cohorts are hidden."""
        if self.protection.hidden:
            return ()
        population = len(self.sizes)
        return tuple(cohort(self.seed, index, population=population, count=self.algorithm.planned(population)))
