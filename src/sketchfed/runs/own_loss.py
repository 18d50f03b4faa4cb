"""The workload of a run whose built-in loop works on data of any kind."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from sketchfed.algorithms import Algorithm, Replica
from sketchfed.config import Config
from sketchfed.data import DataSet
from sketchfed.devices import CPU
from sketchfed.errors import InputError
from sketchfed.runs.evaluation import Evaluation
from sketchfed.runs.fingerprints import data_digests
from sketchfed.runs.own_loop import check_counted, warn_of_workers
from sketchfed.runs.workload import KEYS, check_recipe
from sketchfed.seeds import PublicSeed
from sketchfed.training import (
    Collate,
    Judge,
    Judged,
    Metric,
    OfBatch,
    OfPairs,
    Recipe,
    Score,
    Trainer,
    examples_in,
    make_trainer,
)
from sketchfed.training.items import cut
from sketchfed.training.measuring import measure
from sketchfed.training.metrics import metric_key

_CHUNK = 256  # examples scored at a time
_TRIED = 5  # number of clients whose examples are tried before the model is refused


@dataclass(frozen=True, kw_only=True)
class LossWorkload:
    """A federated learning problem on data of any kind: clients minimise a loss of batches, pairs or others."""

    module: nn.Module
    clients: Sequence[Any]
    test: Any
    objective: OfBatch | OfPairs
    collate: Collate | None = None
    metrics: Sequence[str | Metric] = ()
    """Metrics of outputs and targets. Only pairs have them."""
    evaluation: Evaluation | None = None
    recipe: Recipe = field(default_factory=Recipe)
    client_test: Sequence[Any] | None = None
    """The data on which each client is evaluated. By default, what it trains on."""
    device: torch.device = CPU

    looks_inside = False
    shared_start = False
    data_name = "clients"

    @property
    def description(self) -> str:
        return type(self.module).__name__

    @cached_property
    def sizes(self) -> list[int]:
        return [self.examples(client).size for client in range(len(self.clients))]

    @property
    def dataset(self) -> DataSet:
        """There is none with a name."""
        raise InputError("the data of this run was passed as objects. Name a data set in [data].")

    @property
    def code(self) -> dict[str, Any]:
        """The user's code on which the result depends, for the run's identity."""
        own: dict[str, Any] = {**self.objective.code, "collate": self.collate}
        own["evaluate"] = None if self.evaluation is None else self.evaluation.function
        return {name: function for name, function in own.items() if function is not None}

    def digests(self) -> dict[str, Any]:
        """Digests of the data, for the run's identity."""
        return data_digests(self.clients, self.test, self.client_test)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys of a line of this run's metrics."""
        named = (*KEYS, *map(metric_key, self.metrics))
        return named if self.evaluation is None else (*named, *self.evaluation.others(named))

    def trainer(self) -> Trainer:
        """Check that model, loss and data fit each other, and return the trainer."""
        trainer = make_trainer(self.module, self.objective, self.recipe, self.device)
        failures: list[InputError] = []
        for client in range(min(_TRIED, len(self.clients))):
            try:
                trainer.check(self.examples(client).part(0, 2))
                _ = self.keys
                return trainer
            except InputError as error:
                failures.append(error)
        raise failures[0]

    def check(self, config: Config) -> None:
        """Refuse settings that contradict how steps are taken and batches are made."""
        if config.algorithm.batch is not None and any(isinstance(data, DataLoader) for data in self.clients):
            raise InputError(
                f"algorithm.batch = {config.algorithm.batch} has no effect on a DataLoader, which makes its own batches. "
                "Remove it, and set the batch_size of the loaders."
            )
        if any(isinstance(data, IterableDataset) for data in self.clients):
            cut(config.algorithm.batch)
        for client, data in enumerate(self.clients):
            if isinstance(data, DataLoader):
                check_counted(config.algorithm.weighting, data, f"client {client}")
        warn_of_workers(self.clients)
        check_recipe(config, self.recipe)

    def examples(self, client: int) -> Any:
        """What a client trains on."""
        return examples_in(self.clients[client], self.collate, owner=f"client {client}")

    def judged(self, client: int) -> Judged:
        """The data on which a client is evaluated."""
        if self.client_test is None:
            return Judged(self.examples(client), self.clients[client])
        own = self.client_test[client]
        return Judged(examples_in(own, self.collate, owner=f"client_test of client {client}"), own)

    def judge(self) -> Judge:
        """What is measured on clients."""
        own = None if self.evaluation is None else self.evaluation.function
        name = "evaluate" if self.evaluation is None else self.evaluation.name
        about: dict[str, Any] = {"loss": self.objective, "metrics": self.metrics, "device": self.device}
        return Judge(module=self.module, classes=self.objective.counts, evaluate=own, name=name, **about)

    def scorer(self, trainer: Trainer, seed: PublicSeed, *, workers: int) -> "LossScorer":
        return LossScorer(self, trainer, seed)

    def forget_weights(self) -> None:
        """The module is the user's own, or their loop copies it."""

    def advice(self, algorithm: Algorithm, trainer: Trainer) -> str:
        """What to change after training diverged."""
        return (
            f"Steps may be too long: local_rate = {algorithm.local_rate:g} and global_rate = {algorithm.global_rate:g}. Try a "
            "tenth of either, or training.clip_norm = 1.0."
        )


class LossScorer:
    """Scores a model by the mean of its loss on the test data, by metrics, and by a function of the user's own."""

    def __init__(self, workload: LossWorkload, trainer: Trainer, seed: PublicSeed) -> None:
        self._workload, self._trainer, self._seed = workload, trainer, seed
        self._test = None if workload.test is None else examples_in(workload.test, workload.collate, owner="test")

    def score(self, replica: Replica) -> Score:
        score = self._scored(replica.weights)
        evaluation = self._workload.evaluation
        if evaluation is not None:
            found = evaluation.measured(replica.weights, replica.round, self._seed)
            own = evaluation.expected(found, self._workload.keys[len(KEYS) + len(self._workload.metrics) :])
            score = Score(found.get("loss", score.loss), found.get("accuracy", score.accuracy), {**score.others, **own})
        return score

    def _scored(self, weights: Tensor) -> Score:
        """The means over all test examples, or over all their positions that have a target."""
        if self._test is None:
            return Score(None, None)
        trainer, workload = self._trainer, self._workload
        try:
            return measure(
                workload.objective,
                self._test.chunks(_CHUNK),
                lambda part: trainer.score(weights, part),
                lambda inputs: trainer.outputs(weights, inputs),
                metrics=workload.metrics,
                classes=workload.objective.counts,
            )
        except InputError as error:
            raise InputError(f"the test data cannot be scored: {error}") from error

    def captured(self, algorithm: Algorithm, replica: Replica) -> None:
        """The share of the gradient that packets carry is not measured on data of any kind."""

    def close(self) -> None:
        """Nothing is held."""
