"""The workload of a run whose built-in loop minimises a function of the model and a batch, on data of any kind."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from sketchfed.algorithms import Algorithm, Replica
from sketchfed.config import Config
from sketchfed.data import DataSet
from sketchfed.errors import InputError
from sketchfed.runs.evaluation import Evaluation
from sketchfed.runs.fingerprints import fingerprint
from sketchfed.runs.workload import KEYS, check_recipe
from sketchfed.seeds import PublicSeed
from sketchfed.training import BatchLoss, Collate, OfBatch, Recipe, Score, Trainer, examples_in, make_trainer

_CHUNK = 256  # examples scored at a time
_TRIED = 5  # number of clients whose examples are tried before the model is refused


@dataclass(frozen=True, kw_only=True)
class LossWorkload:
    """A federated learning problem on data of any kind: clients minimise a function of the model and a batch."""

    module: nn.Module
    clients: Sequence[Any]
    test: Any
    batch_loss: BatchLoss
    collate: Collate | None = None
    evaluation: Evaluation | None = None
    recipe: Recipe = field(default_factory=Recipe)

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
        own: dict[str, Any] = {"batch_loss": self.batch_loss, "collate": self.collate}
        own["evaluate"] = None if self.evaluation is None else self.evaluation.function
        return {name: function for name, function in own.items() if function is not None}

    def digests(self) -> dict[str, Any]:
        """Digests of the data, for the run's identity."""
        clients = [fingerprint(data) for data in self.clients]
        return {"clients": clients, "test": fingerprint(self.test), "prepared": None, "redrawn": False}

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys of a line of this run's metrics."""
        return (*KEYS, *(() if self.evaluation is None else self.evaluation.others()))

    def trainer(self) -> Trainer:
        """Check that model, loss and data fit each other, and return the trainer."""
        trainer = make_trainer(self.module, OfBatch(self.batch_loss), self.recipe)
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
        """Refuse settings that contradict how steps are taken."""
        check_recipe(config, self.recipe)

    def examples(self, client: int) -> Any:
        """What a client trains on."""
        return examples_in(self.clients[client], self.collate, owner=f"client {client}")

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
    """Scores a model by the mean of its loss on the test data, and by a function of the user's own if there is one."""

    def __init__(self, workload: LossWorkload, trainer: Trainer, seed: PublicSeed) -> None:
        self._workload, self._trainer, self._seed = workload, trainer, seed
        self._test = None if workload.test is None else examples_in(workload.test, workload.collate, owner="test")

    def score(self, replica: Replica) -> Score:
        loss, accuracy, others = self._loss(replica.weights), None, dict[str, float]()
        evaluation = self._workload.evaluation
        if evaluation is not None:
            found = evaluation.measured(replica.weights, replica.round, self._seed)
            others = evaluation.expected(found, self._workload.keys[len(KEYS) :])
            loss, accuracy = found.get("loss", loss), found.get("accuracy")
        return Score(loss, accuracy, others)

    def _loss(self, weights: Tensor) -> float | None:
        """The mean over all test examples."""
        if self._test is None:
            return None
        total, count = 0.0, 0
        for part in self._test.chunks(_CHUNK):
            total += self._trainer.score(weights, part)[0]
            count += part.size
        return total / count

    def captured(self, algorithm: Algorithm, replica: Replica) -> None:
        """The share of the gradient that packets carry is not measured on data of any kind."""

    def close(self) -> None:
        """Nothing is held."""
