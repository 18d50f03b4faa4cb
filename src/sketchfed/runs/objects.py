"""The problem of a run: what its configuration names, or what was passed as Python objects."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from sketchfed.config import GIVEN, Config, DataSettings, ModelSettings
from sketchfed.errors import InputError
from sketchfed.runs.own_loop import LoopWorkload, loop_of
from sketchfed.runs.problem import FederatedProblem
from sketchfed.runs.workload import Chosen, from_objects, named_workload
from sketchfed.training import Evaluate, Loss, Train


def problem_of(config: Config) -> FederatedProblem:
    """The problem that a configuration names."""
    chosen = config.training
    if chosen.train is None and (chosen.evaluate is not None or chosen.options):
        given = "evaluate" if chosen.evaluate is not None else next(iter(chosen.options))
        raise InputError(
            f"training.{given} is for a training loop of your own, but training.train names none. Name one, or remove "
            "[training]."
        )
    workload = named_workload(config)
    return workload if chosen.train is None else loop_of(config, workload)


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

    def named_in(self, config: Config) -> Config:
        """The configuration that says that these were given as objects."""
        self._check(config)
        loops: dict[str, Any] = {name: GIVEN for name in ("train", "evaluate") if getattr(self, name) is not None}
        return replace(
            config,
            data=DataSettings(name=GIVEN, clients=len(self.clients or ())),
            model=ModelSettings(name=GIVEN),
            training=replace(config.training, **loops),
        )

    def problem(self, config: Config) -> FederatedProblem:
        """The problem that these objects are."""
        if self.model is None or self.clients is None:
            raise InputError("a run needs a model and the data of its clients. Pass model and clients.")
        if self.train is None:
            return from_objects(self.model, self.clients, self.test, self.loss, self.task, self.metric, redraw=self.redraw)
        return LoopWorkload(
            module=self.model,
            clients=self.clients,
            test=self.test,
            train=self.train,
            evaluate=self.evaluate,
            settings=config.training.options,
            train_name=_named(self.train),
            evaluate_name=_named(self.evaluate),
        )

    def _check(self, config: Config) -> None:
        if self.train is None and self.evaluate is not None:
            raise InputError("evaluate is for a training loop of your own. Pass train as well, or use metric.")
        if self.train is None and config.training.train is not None:
            raise InputError(
                f"training.train = '{config.training.train}' names a loop, but model and clients were passed as objects, and "
                "train was not passed. Pass the function: train=..."
            )
        needed = {"model": self.model, "clients": self.clients} | ({"test": self.test} if self.train is None else {})
        if any(given is None for given in needed.values()):
            raise InputError(
                "model, clients and test belong together: give all three, or name them in the configuration. With train, "
                "model and clients suffice."
            )
        builtin = {"loss": self.loss, "metric": self.metric, "redraw": self.redraw}
        if self.train is not None and (given := [name for name, value in builtin.items() if value is not None]):
            raise InputError(
                f"{given[0]} is for the built-in loop, but train does the training. Remove it, and use it inside of your "
                "functions."
            )
        if self.train is None and config.training.options:
            raise InputError("[training] holds options for a loop of your own, but train was not passed. Pass it.")


def _named(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))
