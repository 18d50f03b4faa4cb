"""The problem of a run: what its configuration names, or what was passed as Python objects."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from sketchfed.config import GIVEN, Config, DataSettings
from sketchfed.devices import device_named
from sketchfed.errors import InputError
from sketchfed.runs.evaluation import Evaluation
from sketchfed.runs.own_loop import LoopWorkload, loop_of, test_of
from sketchfed.runs.own_loss import LossWorkload
from sketchfed.runs.problem import FederatedProblem
from sketchfed.runs.workload import Chosen, from_objects, named_workload
from sketchfed.training import LOOPS, BatchLoss, Collate, Evaluate, Loss, Train

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
        device = device_named(config.engine.device)
        evaluation = None
        if self.train is None and self.evaluate is not None:
            name = _named(self.evaluate)
            evaluation = Evaluation(function=self.evaluate, name=name, module=model, data=self.test, device=device)
        if self.batch_loss is not None:
            return LossWorkload(
                module=model,
                clients=self.clients,
                test=self.test,
                batch_loss=self.batch_loss,
                collate=self.collate,
                evaluation=evaluation,
                recipe=recipe,
                device=device,
            )
        if self.train is None:
            built_in: dict[str, Any] = {"redraw": self.redraw, "recipe": recipe, "device": device}
            made = from_objects(model, self.clients, self.test, self.loss, self.task, self.metric, **built_in)
            return replace(made, evaluation=evaluation)
        return LoopWorkload(
            module=model,
            clients=self.clients,
            test=self.test,
            train=self.train,
            evaluate=self.evaluate,
            settings=config.training.options,
            train_name=_named(self.train),
            evaluate_name=_named(self.evaluate),
            device=device,
        )

    def _check(self, config: Config) -> None:
        if self.train is None and config.training.train is not None:
            raise InputError(
                f"training.train = '{config.training.train}' names a loop, but model and clients were passed as objects, and "
                "train was not passed. Pass the function: train=..."
            )
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
            (of_pairs if self.batch_loss is not None else {}, "pairs of inputs and targets, but batch_loss reads the batch"),
            ({"collate": self.collate} if pairs else {}, "batches that batch_loss reads, which was not passed"),
        ):
            if given := [name for name, value in unused.items() if value is not None]:
                raise InputError(f"{given[0]} is for {why}. Remove it, and use it inside of your functions.")


def _named(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))
