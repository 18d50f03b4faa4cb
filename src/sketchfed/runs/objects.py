"""The problem of a run: what its configuration names, or what was passed as Python objects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sketchfed.config import GIVEN, Config, DataSettings
from sketchfed.data import DataSet, from_clients
from sketchfed.devices import device_named
from sketchfed.errors import InputError
from sketchfed.runs.evaluation import Evaluation
from sketchfed.runs.own_loop import LoopWorkload, loop_of, test_of
from sketchfed.runs.own_loss import LossWorkload
from sketchfed.runs.own_pairs import as_tensors, is_plain, keeps_integers, objective_for, task_of
from sketchfed.runs.problem import FederatedProblem
from sketchfed.runs.workload import Chosen, from_objects, loss_for, metrics_for, named_workload
from sketchfed.training import LOOPS, BatchLoss, Collate, Evaluate, Loss, OfBatch, Recipe, Train
from sketchfed.training.called import TAKEN, called_name, check_function

FUNCTIONS = ("train", "evaluate", "batch_loss", "collate")
"""The functions that are passed as objects, and the keys of [training] under which a configuration names them."""


def problem_of(config: Config) -> FederatedProblem:
    """The problem that a configuration names."""
    chosen = config.training
    workload = replace(named_workload(config), device=device_named(config.engine.device))
    if chosen.train is not None:
        return loop_of(config, workload)
    if chosen.collate is not None:
        raise InputError(
            f"training.collate = '{chosen.collate}' makes batches of single examples, and data set '{config.data.name}' holds "
            "tensors, which are cut. Remove it."
        )
    if chosen.evaluate is None:
        return workload
    evaluation = Evaluation(
        function=LOOPS[chosen.evaluate],
        name=chosen.evaluate,
        module=workload.module,
        data=test_of(workload),
        device=workload.device,
    )
    return replace(workload, evaluation=evaluation)


@dataclass(frozen=True, kw_only=True)
class Objects:
    """Python objects that `run` and `resume` take in place of names in a configuration."""

    model: nn.Module | None
    clients: Sequence[Any] | None
    test: Any = None
    loss: Loss | str | None = None
    metric: Chosen = None
    task: str = "classification"
    redraw: bool | None = None
    train: Train | None = None
    evaluate: Evaluate | None = None
    batch_loss: BatchLoss | None = None
    collate: Collate | None = None
    client_test: Sequence[Any] | None = None

    def named_in(self, config: Config) -> Config:
        """The configuration that says that these were given as objects."""
        self._check(config)
        loops: dict[str, Any] = {name: GIVEN for name in FUNCTIONS if getattr(self, name) is not None}
        return replace(
            config,
            data=DataSettings(name=GIVEN, clients=len(self.clients or ())),
            model=replace(config.model, name=GIVEN, options={}, loss=None, metric=None),
            training=replace(config.training, **loops),
        )

    def problem(self, config: Config) -> FederatedProblem:
        """The problem that these objects are."""
        if self.model is None or self.clients is None:
            raise InputError("a run needs a model and the data of its clients. Pass model and clients.")
        recipe, model = config.training.recipe(config.algorithm.rounds), config.model.shared(self.model)
        device, on_clients = device_named(config.engine.device), config.training.evaluate_clients
        evaluation = None
        if self.train is None and self.evaluate is not None:
            about: dict[str, Any] = {"name": called_name(self.evaluate, "evaluate"), "module": model, "data": self.test}
            evaluation = Evaluation(function=self.evaluate, on_clients=on_clients, device=device, **about)
        if self.batch_loss is not None:
            return LossWorkload(
                module=model,
                clients=self.clients,
                test=self.test,
                objective=OfBatch(self.batch_loss),
                collate=self.collate,
                evaluation=evaluation,
                recipe=recipe,
                client_test=self.client_test,
                device=device,
            )
        if self.train is None:
            return self._of_pairs(model, self.clients, evaluation, recipe, device)
        return LoopWorkload(
            module=model,
            clients=self.clients,
            test=self.test,
            train=self.train,
            evaluate=self.evaluate,
            client_test=self.client_test,
            on_clients=on_clients,
            settings=config.training.options,
            train_name=called_name(self.train, "train"),
            evaluate_name=called_name(self.evaluate, "evaluate"),
            device=device,
        )

    def _of_pairs(
        self, model: nn.Module, given: Sequence[Any], evaluation: Evaluation | None, recipe: Recipe, device: torch.device
    ) -> FederatedProblem:
        """The problem of a loss of outputs and targets."""
        task, test = task_of(self.loss, self.task), as_tensors(self.test)
        clients, tests = ([as_tensors(data) for data in each] for each in (given, self.client_test or ()))
        plain = self.collate is None and all(is_plain(data, task) for data in (*clients, test, *tests))
        if plain and not keeps_integers(model, clients[0] if clients else None):
            built_in: dict[str, Any] = {"redraw": self.redraw, "recipe": recipe, "device": device}
            made = from_objects(model, clients, test, self.loss, task, self.metric, **built_in)
            own_tests = _own_tests(tests, made.dataset) if tests else None
            return replace(made, evaluation=evaluation, own_tests=own_tests, own_objects=self.client_test or given)
        if self.redraw is not None:
            raise InputError(
                f"redraw = {self.redraw} is for Datasets that are read before round 1. Here batches are made in another form, "
                "and Datasets are read anew in every pass. Remove redraw."
            )
        clients, tests = ([tuple(data) if _is_pair(data) else data for data in each] for each in (clients, tests))
        return LossWorkload(
            module=model,
            clients=clients,
            test=tuple(test) if _is_pair(test) else test,
            client_test=tests or None,
            device=device,
            objective=objective_for(model, clients, self.collate, loss_for(task, self.loss), task),
            collate=self.collate,
            metrics=metrics_for(task, self.metric),
            evaluation=evaluation,
            recipe=recipe,
        )

    def _check_kinds(self) -> None:
        """Refuse objects of a kind that none of them can have."""
        if self.model is not None and not isinstance(self.model, nn.Module):
            given = f"the class {self.model.__name__}" if isinstance(self.model, type) else f"{type(self.model).__name__}"
            raise InputError(f"model must be a torch.nn.Module, got {given}. Pass an instance, such as nn.Linear(4, 3).")
        if self.clients is not None and (
            isinstance(self.clients, str | bytes | Mapping | Tensor | np.ndarray) or not isinstance(self.clients, Sequence)
        ):
            raise InputError(
                f"clients must be a list with the data of each client, got {type(self.clients).__name__}. Write "
                "clients=[first, second], or list(clients)."
            )
        for usual in TAKEN:
            given = getattr(self, usual)
            for function in given if isinstance(given, list | tuple) else [given]:
                named = usual in ("loss", "metric") and isinstance(function, str)
                if function is not None and not named:
                    check_function(function, usual)

    def _check(self, config: Config) -> None:
        if self.train is None and config.training.train is not None:
            raise InputError(
                f"training.train = '{config.training.train}' names a loop, but model and clients were passed as objects, and "
                "train was not passed. Pass the function: train=..."
            )
        self._check_kinds()
        self._check_client_test(config)
        pairs = self.train is None and self.batch_loss is None
        needed = {"model": self.model, "clients": self.clients} | ({"test": self.test} if pairs else {})
        if any(given is None for given in needed.values()):
            raise InputError(
                "model, clients and test belong together: give all three, or name them in the configuration. With train or "
                "batch_loss, model and clients suffice."
            )
        own = {"batch_loss": self.batch_loss, "collate": self.collate}
        of_pairs = {"loss": self.loss, "metric": self.metric, "redraw": self.redraw}
        for unused, why in (
            ({**own, **of_pairs} if self.train is not None else {}, "the built-in loop, but train does the training"),
            (
                of_pairs if self.batch_loss is not None else {},
                "pairs of inputs and targets, and only batch_loss knows what is what in a batch",
            ),
        ):
            if given := [name for name, value in unused.items() if value is not None]:
                of_metric = "measure it in evaluate(model, data, context): sketchfed.training.METRICS has the functions by name"
                instead = of_metric if given[0] == "metric" else "use it in your function"
                raise InputError(f"{given[0]} is for {why}. Remove it, and {instead}.")

    def _check_client_test(self, config: Config) -> None:
        if self.client_test is None:
            return
        if not config.training.evaluate_clients:
            raise InputError(
                "client_test was passed, and nothing evaluates the clients. Set evaluate_clients = true in [training], or "
                "remove client_test."
            )
        if len(self.client_test) != len(self.clients or ()):
            raise InputError(
                f"client_test holds data of {len(self.client_test):,} clients, and there are {len(self.clients or ()):,}. Give "
                "one for each client, in the same order."
            )


def _own_tests(client_test: Sequence[Any], dataset: DataSet) -> tuple[DataSet, list[Tensor]]:
    """The data on which clients are evaluated. It must have the form of what they train on."""
    test = dataset.x_test[:1], dataset.y_test[:1]
    try:
        return from_clients(client_test, test=test, task=dataset.task, name="client_test")
    except InputError as error:
        raise InputError(f"client_test must have the form of clients and test, and it does not: {error}") from error


def _is_pair(data: Any) -> bool:
    return isinstance(data, list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data)
