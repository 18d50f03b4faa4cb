"""What a client trains, and on which data. This follows from the run's agreement and the node's own settings."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

from sketchfed import vectors
from sketchfed.algorithms import Replica
from sketchfed.algorithms.forms import seen
from sketchfed.config import Config, EngineSettings, load_config
from sketchfed.data import from_clients
from sketchfed.devices import device_named
from sketchfed.errors import InputError, WireError
from sketchfed.flower.agreement import Agreement
from sketchfed.parts import resolve_function
from sketchfed.rounds.participant import Participant
from sketchfed.runs.own_loop import check_counted, size_of
from sketchfed.runs.workload import build_module, examples_of, loss_of, metrics_for, named_workload, shares_start
from sketchfed.training import (
    LOOPS,
    ClientMemory,
    Examples,
    Judge,
    Judged,
    OfBatch,
    OwnLoop,
    Trainer,
    examples_in,
    make_trainer,
)
from sketchfed.training.threads import one_thread
from sketchfed.training.total import TotalTrainer


class Hello(NamedTuple):
    """What a node says about itself before a run."""

    examples: int
    own: bool
    """Whether it has its own data. Otherwise it plays a client of the data set that the configuration names."""
    run: str = ""
    """The digest of the run configuration that its app was started with. Empty if the work needs none."""


class Work(NamedTuple):
    """Everything that the client's side of a round needs, except its memory."""

    participant: Participant
    examples: Callable[[], Examples]
    """Loads the examples. Not every stage needs them."""
    start: Replica | None
    """The replica before round 0, if everybody can rebuild it."""
    judged: Callable[[], Judged] | None = None
    """Loads the data on which the client is evaluated."""

    def check_round(self, index: int) -> None:
        """Refuse to work for a round after the last one."""
        rounds = self.participant.algorithm.rounds
        if index >= rounds:
            raise WireError(f"the run has {rounds:,} rounds, and the server asks for round {index + 1:,}. Begin another run.")


class WorkSource(ABC):
    """Where a client's work comes from, while one message is served."""

    round = 0
    """The current round, counted from 0. It is set before the work begins."""

    def __init__(self) -> None:
        self.metrics: dict[str, Any] = {}
        """Metrics of the work, for a server that may see them."""

    def threads(self) -> AbstractContextManager[None]:
        """The settings of torch during the work."""
        return one_thread()

    @property
    def names_data(self) -> bool:
        """Whether the data set that the server names is loaded here. A node with its own data does not need it."""
        return False

    def parameters(self, layout: str) -> int | None:
        """The number of parameters, if an agreement's `layout` says it."""
        return None

    @abstractmethod
    def hello(self, offer: bytes) -> Hello:
        """Describe this client to a server that offers a run."""

    @abstractmethod
    def work(self, agreement: Agreement, client: int) -> Work:
        """The work of a client of a run."""

    def evaluate(self, agreement: Agreement, client: int, work: Work, replica: Replica, memory: ClientMemory) -> bytes:
        """Evaluate the model on the client's own data, and return the reply."""
        if work.judged is None:
            raise WireError("this run does not evaluate on clients, and this client was asked to evaluate.")
        work.check_round(replica.round - 1)
        return work.participant.judged(replica, work.judged(), memory, client)


class NodeSource(WorkSource):
    """A model that the configuration names, on data that the node's `data` loads, or on its part of a named data set."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.settings = settings

    def hello(self, offer: bytes) -> Hello:
        tables, _ = json.loads(offer), self._device
        if self._loader:
            load_config({key: table for key, table in tables.items() if key != "data"})  # refuses parts that are missing here
            own = {"train", "batch_loss"} & tables.get("training", {}).keys()
            if own:
                check_counted(tables.get("algorithm", {}).get("weighting", "equal"), self._loaded(), "this node")
            examples = size_of(self._loaded()) if own else len(self._load().x)
            return Hello(examples=examples, own=True)
        client = self.settings.get("partition-id")
        if type(client) is not int:
            raise InputError(
                "this node has no data: give it --node-config 'data=\"package.module:function\"', a function that is called "
                "with the node's settings and returns its x and y; or partition-id=0 to play a client of the named data set."
            )
        parts = named_workload(load_config(tables)).parts
        if not 0 <= client < len(parts):
            raise InputError(f"this node is partition {client}, and the configuration has data.clients = {len(parts)}.")
        return Hello(examples=len(parts[client]), own=False)

    def work(self, agreement: Agreement, client: int) -> Work:
        device = self._device
        config = replace(agreement.config, engine=EngineSettings(device=str(device)))
        module = build_module(config, shape=agreement.shape, outputs=agreement.outputs)
        chosen = config.training
        trainer: Trainer = (
            make_trainer(module, loss_of(config, agreement.task), chosen.recipe(config.algorithm.rounds), device)
            if chosen.train is None
            else OwnLoop(module, LOOPS[chosen.train], chosen.options, name=chosen.train, device=device)
        )
        participant = total(config.participant(trainer, agreement.sizes, module), agreement)
        start = None
        if shares_start(config):
            algorithm = participant.algorithm
            start = seen(algorithm.given(participant.seed, 0), algorithm.begin(vectors.flatten(module)).replica)

        def examples() -> Examples:
            found = self._load(agreement) if self._loader else named_workload(config).examples(client)
            if tuple(found.x.shape[1:]) != agreement.shape or not agreement.counts_on(len(found.x), client):
                wanted = f"the run counts on {agreement.sizes[client]:,} examples of shape {agreement.shape}"
                changed = "Its data changed since it joined, or it is not for this run."
                raise WireError(
                    f"this node's {len(found.x):,} examples have shape {tuple(found.x.shape[1:])}, and {wanted}. {changed}"
                ).telling(f"{wanted}, and this node has others. {changed}")
            trainer.check(Examples(found.x[:2], found.y[:2]))
            return found

        def whole() -> Any:
            """What the node's function loads, as it is, or its part of a named data set."""
            if not self._loader:
                return TensorDataset(*named_workload(config).examples(client))
            found = self._loaded()
            if not agreement.counts_on(size_of(found), client):
                wanted = f"the run counts on {agreement.sizes[client]:,} examples"
                raise WireError(f"this node has {size_of(found):,} examples, and {wanted}. Its data changed.").telling(
                    f"{wanted}, and this node has others."
                )
            return found

        def items() -> Any:
            """What the node's function loads, as batches of any kind."""
            collate = None if chosen.collate is None else LOOPS[chosen.collate]
            found = examples_in(whole(), collate, owner="this node")
            trainer.check(found.part(0, 2))
            return found

        training = items if chosen.batch_loss is not None and self._loader else examples

        def judged() -> Judged:
            """The node's own data, or what is held out of its part of a named data set."""
            if not self._loader:
                return named_workload(config).judged(client)
            return Judged(training() if chosen.train is None else None, whole())

        if chosen.evaluate_clients:
            participant = replace(participant, judge=_judge(config, module, agreement.task, device))
        own = judged if chosen.evaluate_clients else None
        return Work(participant, training if chosen.train is None else whole, start, own)

    @property
    def names_data(self) -> bool:
        return not self._loader

    @property
    def _device(self) -> torch.device:
        """Where this node trains and encodes. Its owner says it, never the server."""
        return device_named(self.settings.get("device", "cpu"), "the node's setting device")

    @property
    def _loader(self) -> str:
        return str(self.settings.get("data", ""))

    def _loaded(self) -> Any:
        """What the node's own function returns."""
        return resolve_function(self._loader, "data loader")(self.settings)

    def _load(self, agreement: Agreement | None = None) -> Examples:
        own = self._loaded()
        task = _task(own) if agreement is None else agreement.task
        outputs = None if agreement is None else agreement.outputs
        redraw = self.settings.get("redraw")
        if redraw is not None and type(redraw) is not bool:
            raise InputError(f"the node's setting redraw must be true or false, got {redraw!r}.")
        dataset, (rows,) = from_clients([own], test=_a_few(own), task=task, outputs=outputs, name="node", redraw=redraw)  # type: ignore[arg-type]
        return examples_of(dataset, rows)


def _judge(config: Config, module: nn.Module, task: str, device: torch.device) -> Judge:
    """What a run measures on its clients."""
    chosen = config.training
    about: dict[str, Any] = {}
    if chosen.train is None:
        loss = loss_of(config, task)
        classes = task == "classification" and not isinstance(loss, OfBatch)
        about = {"loss": loss, "classes": classes, "metrics": metrics_for(task, config.model.metric)}
    if chosen.evaluate is not None:
        settings = {} if chosen.train is None else chosen.options
        about |= {"evaluate": LOOPS[chosen.evaluate], "name": chosen.evaluate, "settings": settings}
    return Judge(module=module, device=device, **about)


def total(participant: Participant, agreement: Agreement) -> Participant:
    """The participant with a trainer that does not fail because of the data, where the server must not see whether it does.

    It contains all other trainers: what travels beside an update must not fail either.
    """
    return replace(participant, trainer=TotalTrainer(participant.trainer)) if agreement.hides else participant


def _task(own: Any) -> str:
    """The task that a node's targets are for. Numbers with a fraction mean regression."""
    targets = own[0][1] if isinstance(own, Dataset) else own[1] if isinstance(own, tuple) and len(own) == 2 else 0
    return "regression" if isinstance(targets, float) or getattr(targets, "is_floating_point", bool)() else "classification"


def _a_few(own: Any) -> Any:
    """Test data for a node on which nothing is tested: one of its examples."""
    if isinstance(own, Dataset):
        return Subset(own, [0])
    return tuple(part[:1] for part in own) if isinstance(own, tuple) and all(isinstance(part, Tensor) for part in own) else own
