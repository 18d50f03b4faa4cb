"""The workload of a run whose clients train by a function of the user's own."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sketchfed.algorithms import Algorithm, Replica
from sketchfed.config import Config
from sketchfed.data import DataSet
from sketchfed.data.reading import is_stored
from sketchfed.devices import CPU
from sketchfed.errors import InputError
from sketchfed.runs.evaluation import check_tested
from sketchfed.runs.fingerprints import data_digests
from sketchfed.runs.workload import KEYS, Workload
from sketchfed.seeds import PublicSeed
from sketchfed.training import Judge, Judged, LocalWork, Score
from sketchfed.training.memory import Turn
from sketchfed.training.own import LOOPS, Evaluate, OwnLoop, Train, evaluated
from sketchfed.vectors import flatten

log = logging.getLogger("sketchfed")

_SHOWN = ("loss", "accuracy")
_OF_THE_BUILT_IN_LOOP = {
    "rate": "local_rate",
    "steps": "local_steps",
    "epochs": "local_epochs",
    "batch": "batch",
    "momentum": "local_momentum",
    "decay": "weight_decay",
}
"""Parts of `LocalWork`, and the settings in [algorithm] that they come from."""


@dataclass(frozen=True, kw_only=True)
class LoopWorkload:
    """A federated learning problem in which a function of the user's own trains each client.

    A client's data is handed to that function as it is.
    """

    module: nn.Module
    clients: Sequence[Any]
    test: Any
    train: Train
    evaluate: Evaluate | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    train_name: str = "train"
    evaluate_name: str = "evaluate"
    device: torch.device = CPU
    """The device that holds the module in both functions."""
    named: Workload | None = None
    """The workload of a named data set, from which the data comes. None if the data was passed as objects."""
    client_test: Sequence[Any] | None = None
    """The data on which each client is evaluated, as objects. By default, what it trains on."""
    on_clients: bool = False
    """Whether clients are evaluated, too."""

    looks_inside = False

    def __post_init__(self) -> None:
        if self.evaluate is not None:
            check_tested(self.test, on_clients=self.on_clients)
        elif self.on_clients:
            raise InputError(
                "training.evaluate_clients = true needs a function that evaluates, because training.train names a loop of your "
                "own. Pass evaluate, or set training.evaluate."
            )

    @property
    def shared_start(self) -> bool:
        return self.named is not None and self.named.shared_start

    @property
    def description(self) -> str:
        return type(self.module).__name__ if self.named is None else self.named.description

    @property
    def sizes(self) -> list[int]:
        return [size_of(data) for data in self.clients] if self.named is None else self.named.sizes

    @property
    def data_name(self) -> str:
        return "clients" if self.named is None else self.named.data_name

    @property
    def dataset(self) -> DataSet:
        """The named data set."""
        if self.named is None:
            raise InputError("the data of this run was passed as objects. Name a data set in [data].")
        return self.named.dataset

    @property
    def code(self) -> dict[str, Any]:
        """The user's code on which the result depends, for the run's identity."""
        return {"train": self.train} | ({} if self.evaluate is None else {"evaluate": self.evaluate})

    def digests(self) -> dict[str, Any]:
        """Digests of the data, for the run's identity."""
        if self.named is not None:
            return self.named.digests()
        return data_digests(self.clients, self.test, self.client_test)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys of a line of this run's metrics. The function for evaluation says which there are."""
        first = self.evaluated(flatten(self.module), 0)
        others = [name for name in first if name not in _SHOWN]
        if taken := set(others) & set(KEYS):
            raise InputError(
                f"metrics.jsonl already has a column '{min(taken)}'. Give the metric of '{self.evaluate_name}' another name."
            )
        return (*KEYS, *others)

    def trainer(self) -> OwnLoop:
        """Return the trainer. The function for evaluation is tried on the first weights."""
        _ = self.keys
        return OwnLoop(self.module, self.train, self.settings, name=self.train_name, device=self.device)

    def check(self, config: Config) -> None:
        """Refuse settings of the built-in loop, and privacy that needs more than whole updates."""
        given, usual = config.algorithm.work, LocalWork(rate=type(config.algorithm).local_rate)
        for part, setting in _OF_THE_BUILT_IN_LOOP.items():
            if getattr(given, part) != getattr(usual, part):
                raise InputError(
                    f"algorithm.{setting} = {getattr(given, part)} is for the built-in loop, and training.train names a loop "
                    f"of your own. Move it to [training]: the loop finds it in context.settings['{setting}']."
                )
        if self.named is None:
            for client, data in enumerate(self.clients):
                check_counted(config.algorithm.weighting, data, f"client {client}")
            warn_of_workers(self.clients)
        if config.algorithm.correction:
            raise InputError(
                f"{config.algorithm.correction} corrects the gradient of each local step, and a loop of your own shows only "
                "whole updates. Remove it, or pass the loss as batch_loss(model, batch) instead of a loop."
            )
        if config.privacy is not None and (config.privacy.unit == "example" or config.privacy.placement == "steps"):
            raise InputError(
                "privacy.unit = 'example' clips the gradient of each example, and a loop of your own shows only whole updates. "
                "Use privacy.unit = 'client', or pass the loss as batch_loss(model, batch) instead of a loop."
            )

    def examples(self, client: int) -> Any:
        """The data of a client, as it was given."""
        return self.clients[client]

    def judged(self, client: int) -> Judged:
        """The data on which a client is evaluated."""
        if self.named is not None:
            return self.named.judged(client)
        return Judged(None, (self.client_test or self.clients)[client])

    def judge(self) -> Judge:
        """What is measured on clients."""
        called: dict[str, Any] = {"settings": self.settings, "name": self.evaluate_name, "device": self.device}
        return Judge(module=self.module, evaluate=self.evaluate, **called)

    def scorer(self, trainer: OwnLoop, seed: PublicSeed, *, workers: int) -> "LoopScorer":
        return LoopScorer(self, seed)

    def forget_weights(self) -> None:
        """The module is the user's own, or their loop copies it."""

    def advice(self, algorithm: Algorithm, trainer: OwnLoop) -> str:
        """What to change after training diverged."""
        return (
            f"Steps may be too long: try smaller ones in '{self.train_name}', or a tenth of algorithm.global_rate = "
            f"{algorithm.global_rate:g}."
        )

    def evaluated(self, weights: Tensor, index: int, seed: PublicSeed | None = None) -> dict[str, float | None]:
        """The metrics of the server's test data after `index` rounds. Empty without the data or a function for evaluation."""
        if self.evaluate is None or self.test is None:
            return {}
        turn = Turn(seed=(seed or PublicSeed(0)).child("evaluation", index), round=index)
        called: dict[str, Any] = {"settings": self.settings, "turn": turn, "name": self.evaluate_name, "device": self.device}
        return evaluated(self.evaluate, self.module, weights, self.test, **called)


class LoopScorer:
    """Scores a model by a function of the user's own."""

    def __init__(self, workload: LoopWorkload, seed: PublicSeed) -> None:
        self._workload, self._seed = workload, seed

    def score(self, replica: Replica) -> Score:
        found = self._workload.evaluated(replica.weights, replica.round, self._seed)
        others = {name: value for name, value in found.items() if name not in _SHOWN}
        expected = set(self._workload.keys) - set(KEYS)
        if others.keys() != expected:
            raise InputError(
                f"'{self._workload.evaluate_name}' returned the metrics {sorted(others)}, and before round 1 it returned "
                f"{sorted(expected)}. Return the same ones each time."
            )
        return Score(found.get("loss"), found.get("accuracy"), others)

    def captured(self, algorithm: Algorithm, replica: Replica) -> None:
        """The share of the gradient that packets carry is not known, because there are no gradients."""

    def close(self) -> None:
        """Nothing is held."""


def loop_of(config: Config, workload: Workload) -> LoopWorkload:
    """The workload of a configuration that names a training loop. Clients hold torch Datasets of pairs."""
    chosen = config.training
    if chosen.train is None:
        raise InputError("training.train names no loop.")
    if config.model.loss is not None or config.model.metric is not None:
        given = "loss" if config.model.loss is not None else "metric"
        raise InputError(
            f"model.{given} is for the built-in loop, but training.train names a loop of your own. Remove it, and use it "
            "inside of your functions."
        )
    return LoopWorkload(
        module=workload.module,
        clients=_HandedOut(workload),
        test=test_of(workload),
        train=LOOPS[chosen.train],
        evaluate=None if chosen.evaluate is None else LOOPS[chosen.evaluate],
        on_clients=chosen.evaluate_clients,
        settings=chosen.options,
        train_name=chosen.train,
        evaluate_name=chosen.evaluate or "",
        device=workload.device,
        named=workload,
    )


class _HandedOut(Sequence[Any]):
    """The data of each client of a named data set. It is prepared when it is asked for."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def __len__(self) -> int:
        return len(self._workload.parts)

    def __getitem__(self, client: int) -> Any:  # type: ignore[override]
        return TensorDataset(*self._workload.examples(client))


def test_of(workload: Workload) -> TensorDataset:
    """The test data of a named data set, prepared."""
    chunks = workload.test_chunks()
    return TensorDataset(torch.cat([chunk.x for chunk in chunks]), torch.cat([chunk.y for chunk in chunks]))


def size_of(data: Any) -> int:
    """The number of examples that a client holds. 1 if nobody can tell."""
    return counted(data) or 1


def counted(data: Any) -> int | None:
    """The number of examples that a client holds. None if nobody can tell, as for a path, or if there are none."""
    if isinstance(data, DataLoader):
        data = data.dataset
    if isinstance(data, Mapping | tuple):
        columns = tuple(data.values()) if isinstance(data, Mapping) else data
        if not all(isinstance(column, Tensor | np.ndarray) for column in columns):
            return None
        data = columns[0] if columns else ()
    if isinstance(data, str | bytes):
        return None
    try:
        return len(data) or None
    except Exception:  # of whatever the user's own loop reads
        return None


def warn_of_workers(clients: Sequence[Any]) -> None:
    """Warn of worker processes whose generators cannot be seeded anew in each round."""
    for client, data in enumerate(clients):
        if isinstance(data, DataLoader) and data.persistent_workers and not is_stored(data.dataset):
            log.warning(
                "client %d's DataLoader has persistent workers, whose random generators go on from round to round. If its "
                "Dataset or its collate function draws random numbers, a resumed run draws others than an uninterrupted one. "
                "Set persistent_workers = False.",
                client,
            )
            return


def check_counted(weighting: str, data: Any, owner: str) -> None:
    """Refuse weights by examples if nobody can tell how many a client has."""
    if weighting == "examples" and counted(data) is None:
        raise InputError(
            f"algorithm.weighting = 'examples' needs the number of examples of each client, and {owner} holds an object of "
            f"type {type(data).__name__}, which does not tell it. Give a list of examples, tensors, a Dataset with __len__, or "
            "a DataLoader of one. Or use weighting = 'equal'."
        )
