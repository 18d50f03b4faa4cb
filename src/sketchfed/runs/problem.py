"""What a run needs to know about its model and its data, whoever trains it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from torch import nn

from sketchfed.algorithms import Algorithm, Replica
from sketchfed.config import Config
from sketchfed.seeds import PublicSeed
from sketchfed.training import Judge, Judged, Score
from sketchfed.vectors import flatten

_TRIED = 3
"""Clients whose first example is tried."""


class ProblemScorer(Protocol):
    """Measures a model between rounds."""

    def score(self, replica: Replica) -> Score:
        """The metrics on the held-out data."""

    def captured(self, algorithm: Algorithm, replica: Replica) -> float | None:
        """The share of the training gradient that the next round's packets carry. None if it is not known."""

    def close(self) -> None:
        """Release all threads."""


class FederatedProblem(Protocol):
    """A federated learning problem: a model, and the data of each client."""

    @property
    def module(self) -> nn.Module:
        """The model with its first weights."""

    @property
    def shared_start(self) -> bool:
        """Whether every party can rebuild the first weights from the seed, so that nobody has to send them."""

    @property
    def looks_inside(self) -> bool:
        """Whether gradients and cheap trial steps of single clients are available before and between rounds."""

    @property
    def sizes(self) -> Sequence[int]:
        """The number of examples of each client."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of a line of this run's metrics."""

    @property
    def description(self) -> str:
        """The model in a few words."""

    @property
    def data_name(self) -> str:
        """The name of the data."""

    @property
    def code(self) -> Mapping[str, Any]:
        """The user's code on which the result depends, for the run's identity."""

    def digests(self) -> dict[str, Any]:
        """Digests of the data, for the run's identity."""

    def trainer(self) -> Any:
        """Check that model and data fit each other, and return the trainer."""

    def check(self, config: Config) -> None:
        """Refuse, before anything else, settings with which this problem cannot be trained."""

    def examples(self, client: int) -> Any:
        """What a client trains on."""

    def judged(self, client: int) -> Judged:
        """The data on which a client is evaluated."""

    def judge(self) -> Judge:
        """What is measured on clients."""

    def scorer(self, trainer: Any, seed: PublicSeed, *, workers: int) -> ProblemScorer:
        """What measures the model between rounds."""

    def forget_weights(self) -> None:
        """Free the memory of the first weights, if the model can be built again."""

    def advice(self, algorithm: Algorithm, trainer: Any) -> str:
        """What to change after training diverged."""


def try_single_example(problem: FederatedProblem, trainer: Any) -> None:
    """Raise `InputError` if the model has no gradient for a single example. Data that cannot be read is left to the rounds."""
    for client in range(min(_TRIED, len(problem.sizes))):
        with suppress(Exception):
            example = problem.examples(client).part(0, 1)
            break
    else:
        return
    trainer.gradients(flatten(problem.module), example)
