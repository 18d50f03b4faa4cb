"""The workload of a run: the clients' data, the model and its loss, made from a configuration or given as objects."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property, partial
from secrets import randbits, token_bytes
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sketchfed import data, models
from sketchfed.algorithms import Algorithm
from sketchfed.config import Config
from sketchfed.data import DataSet
from sketchfed.data.dataset import held_out_parts
from sketchfed.data.generators import drawing_from
from sketchfed.data.reading import FIRST
from sketchfed.devices import CPU
from sketchfed.errors import InputError
from sketchfed.runs.fingerprints import tensors_digest
from sketchfed.runs.problem import ProblemScorer
from sketchfed.seeds import PublicSeed
from sketchfed.training import (
    LOSSES,
    Examples,
    Judge,
    Judged,
    LiveExamples,
    Loss,
    Metric,
    OfBatch,
    Recipe,
    Score,
    Trainer,
    make_trainer,
)
from sketchfed.training.base import spans
from sketchfed.training.losses import TASK_OF
from sketchfed.training.metrics import METRICS, metric_key, metric_named, suits
from sketchfed.training.objective import BATCH_LOSSES
from sketchfed.vectors import flatten, hollow

if TYPE_CHECKING:
    from sketchfed.runs.evaluation import Evaluation

DEFAULT_CLIENTS = 20
_CHUNK = 1_000  # examples scored at a time
KEYS = (
    "round", "loss", "accuracy", "participants", "uplink_bytes", "downlink_bytes", "broadcast_bytes", "captured", "epsilon",
    "seconds",
)  # fmt: skip
"""The keys of a line of metrics. A chosen metric adds one more."""
Chosen = str | Metric | Sequence[str | Metric] | None
"""Metrics as they are chosen: none, one, or several."""
_TRIAL = 16  # examples on which `prepare` is tried
_TRIED = 5  # number of clients whose examples are tried before the model is refused


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A federated learning problem."""

    dataset: DataSet
    parts: Sequence[Tensor]
    """The indices of each client's training examples."""
    module: nn.Module
    loss: str | Loss | OfBatch
    shared_start: bool
    """Whether every party can rebuild the first weights from the seed, so that nobody has to send them."""
    metrics: Sequence[str | Metric] = ()
    """Additional metrics for the held-out data, besides loss and accuracy."""
    recipe: Recipe = field(default_factory=Recipe)
    """How local steps are taken."""
    evaluation: "Evaluation | None" = None
    """A function of the user's own that measures more on the held-out data."""
    own_tests: tuple[DataSet, Sequence[Tensor]] | None = None
    """A data set and each client's rows in it, on which the client is evaluated. By default, what it trains on."""
    own_objects: Sequence[Any] | None = None
    """The same as objects, as `evaluate` gets them. By default, torch Datasets of prepared pairs."""
    device: torch.device = CPU
    """Where clients train and encode, and where the model is scored."""
    built_again: Callable[[], nn.Module] | None = None
    """Builds the module with its first weights once more. None if nobody can."""

    @classmethod
    def from_config(cls, config: Config) -> "Workload":
        """The data, clients and model that a configuration names."""
        return from_config(config)

    looks_inside = True

    @property
    def description(self) -> str:
        layers = [layer for layer in self.module.modules() if isinstance(layer, nn.Linear)]
        widths = (
            "-".join(str(width) for width in [layers[0].in_features, *(layer.out_features for layer in layers)])
            if layers
            else ""
        )
        plain = all(isinstance(layer, nn.Linear | nn.ReLU | nn.Flatten | nn.Sequential) for layer in self.module.modules())
        return widths if plain and layers else type(self.module).__name__

    @property
    def sizes(self) -> list[int]:
        """The number of examples of each client."""
        return [len(part) for part in self.parts]

    @property
    def data_name(self) -> str:
        return self.dataset.name

    @property
    def code(self) -> dict[str, Any]:
        """The user's code on which the result depends, for the run's identity."""
        own = {"batch_loss": self.loss.function} if isinstance(self.loss, OfBatch) else {"loss": self.loss}
        return own if self.evaluation is None else own | {"evaluate": self.evaluation.function}

    def digests(self) -> dict[str, Any]:
        """Digests of the data, for the run's identity.

        A client has none if its data cannot be read, or if no seed makes its random transforms repeatable.
        """
        data, first = self.dataset, self.parts[0][:_TRIAL]
        tested, parts = self.own_tests or (data, ())
        own = {"client_test": [_digest(tested, part) for part in parts]} if parts else {}
        return own | {
            "clients": [_digest(data, part) for part in self.parts],
            "test": tensors_digest(data.x_test, data.y_test),
            "prepared": None if _unstable(data, first) else tensors_digest(data.prepare(data.x_train[first])),
            "redrawn": data.reader is not None and data.reader.redrawn,
        }

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys of a line of this run's metrics."""
        named = (*KEYS, *map(metric_key, self.metrics))
        return named if self.evaluation is None else (*named, *self.evaluation.others(named))

    def trainer(self) -> Trainer:
        """Check that the model, the loss and the data fit each other, and return the trainer."""
        trainer = make_trainer(self.module, self.loss, self.recipe, self.device)
        examples = self._check(trainer)
        _ = self.keys
        if self.loss == "cross_entropy":
            self._check_outputs(trainer.outputs(flatten(self.module), examples.x))
        return trainer

    def _check(self, trainer: Trainer) -> Examples:
        """Return the first examples on which the model can be trained. An error of a single client is left to the rounds."""
        failures: list[InputError] = []
        readable = [part for part in self.parts if not self.dataset.unread(part)]
        for part in readable[:_TRIED]:
            rows = part[:2]
            examples = Examples(self.dataset.prepare(self.dataset.x_train[rows]), self.dataset.y_train[rows])
            try:
                trainer.check(examples)
                return examples
            except InputError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        raise InputError(
            f"the data of none of the {len(self.parts)} clients can be read, so nothing can be trained. Read an item of "
            "a client's Dataset to see its error."
        )

    def _check_outputs(self, outputs: Tensor) -> None:
        wanted = self.dataset.outputs
        if outputs.ndim != 2 or outputs.shape[1] < wanted:
            raise InputError(
                f"the model's outputs for an example have shape {tuple(outputs.shape[1:])}, but data set '{self.dataset.name}' "
                f"has {wanted:,} classes. Give the model's last layer {wanted:,} outputs."
            )

    def check(self, config: Config) -> None:
        """Refuse settings that contradict how steps are taken."""
        check_recipe(config, self.recipe)

    def scorer(self, trainer: Trainer, seed: PublicSeed, *, workers: int) -> ProblemScorer:
        """What measures the model between rounds."""
        from sketchfed.runs.scoring import Scorer  # it samples workloads

        return Scorer(self, trainer, seed, workers=workers)

    def forget_weights(self) -> None:
        if self.built_again is not None:  # the module is not changed, for the function that made it may keep it
            object.__setattr__(self, "module", hollow(self.module))

    @property
    def first_module(self) -> nn.Module:
        """The module with its first weights, even if they were forgotten."""
        return self.module if self.built_again is None else self.built_again()

    def advice(self, algorithm: Algorithm, trainer: Trainer) -> str:
        """What to change after training diverged."""
        from sketchfed.runs.advice import advise  # it looks into workloads

        return advise(algorithm, self, trainer)

    def examples(self, client: int) -> Examples:
        """The prepared training data of a client."""
        return examples_of(self.dataset, self.parts[client])

    def judged(self, client: int) -> Judged:
        """The data on which a client is evaluated."""
        dataset, parts = self.own_tests or (self.dataset, self.parts)
        if not len(parts[client]):
            raise InputError("it has too few examples to hold one out.")
        examples = examples_of(dataset, parts[client])
        return Judged(examples, TensorDataset(*examples) if self.own_objects is None else self.own_objects[client])

    def judge(self) -> Judge:
        """What is measured on clients."""
        own = self.evaluation
        about: dict[str, Any] = {"module": self.module, "loss": self.loss, "classes": self._classes, "metrics": self.metrics}
        if own is not None:
            about |= {"evaluate": own.function, "name": own.name, "settings": own.settings}
        return Judge(device=self.device, **about)

    @property
    def _classes(self) -> bool:
        """Whether the share of correct answers is known."""
        return self.dataset.task == "classification" and not isinstance(self.loss, OfBatch)

    def test_chunks(self) -> list[Examples]:
        """The prepared held-out data, in chunks that are scored one at a time."""
        x, y = self.dataset.x_test, self.dataset.y_test
        parts = spans(len(x), _CHUNK)
        return [Examples(self.dataset.prepare(x[start:stop]), y[start:stop]) for start, stop in parts]

    def summarise(self, parts: Sequence[tuple[float, int]]) -> Score:
        """Combine the scores of the chunks into one score."""
        count = len(self.dataset.y_test)
        right = sum(right for _, right in parts) / count if self._classes else None
        return Score(sum(loss for loss, _ in parts) / count, right)


def _unstable(data: DataSet, rows: Tensor) -> bool:
    return data.unread(rows) or (data.live(rows) and data.reader is not None and not data.reader.repeatable)


def _digest(data: DataSet, rows: Tensor) -> str | None:
    return None if _unstable(data, rows) else tensors_digest(data.x_train[rows], data.y_train[rows])


def examples_of(dataset: DataSet, rows: Tensor) -> Examples:
    """Return prepared training examples. If their Dataset could not be read before, it is read now and may raise an error."""
    if dataset.unread(rows):
        first = Examples(*dataset.read(rows, FIRST))
    else:
        first = Examples(dataset.prepare(dataset.x_train[rows]), dataset.y_train[rows])
    if not dataset.live(rows):
        return first
    return LiveExamples(*first, read=lambda chosen, seed: Examples(*dataset.read(rows[chosen], seed)))


def from_config(config: Config) -> Workload:
    """The workload of a configuration whose clients train by the built-in loop."""
    check_followed(config)
    return named_workload(config)


def check_followed(config: Config) -> None:
    """Refuse local steps that nobody else can follow: all but those of plain SGD."""
    if config.training.train is not None:
        raise InputError(
            f"training.train = '{config.training.train}' names a loop of your own, which shows only whole updates, and "
            "gradients and losses of examples are needed here. Pass the loss as training.batch_loss instead: the "
            "built-in loop then trains."
        )
    if not config.training.recipe(1).usual:
        raise InputError(
            "[training] changes how steps are taken, and here the steps of plain SGD are followed, with momentum and weight "
            "decay at most. Remove the optimiser, schedules, clipping, precision and accumulation from [training]."
        )
    if config.training.proximal:
        raise InputError(
            f"training.proximal = {config.training.proximal:g} pulls local steps towards the round's weights, and here the "
            "steps of plain SGD are followed. Remove it."
        )


def check_recipe(config: Config, recipe: Recipe) -> None:
    """Refuse an optimiser that cannot be made, and one whose steps the algorithm or the protection would take itself."""
    privacy = config.privacy
    if config.training.proximal and privacy is not None and (privacy.unit, privacy.placement) == ("example", "sent"):
        raise InputError(
            f"training.proximal = {config.training.proximal:g} changes a step in all coordinates, but with noise on what is "
            "sent, a step consists of clipped codes. Remove it, or use privacy.placement = 'steps' or privacy.unit = 'client'."
        )
    if config.training.proximal and config.algorithm.feddyn:
        raise InputError(
            f"training.proximal = {config.training.proximal:g} and algorithm.feddyn = {config.algorithm.feddyn:g} both pull "
            "local steps towards the round's weights, and FedDyn's server step goes with its own pull only. Remove one."
        )
    if recipe.usual:
        return
    recipe.check(config.algorithm.work)
    if config.algorithm.scaffold:
        raise InputError(
            "algorithm.scaffold = true computes a client's mean gradient from its change, which only plain SGD steps allow. "
            "Remove the optimiser, schedules, clipping, precision and accumulation from [training], or remove scaffold."
        )
    if not config.algorithm.shows_weights:
        raise InputError(
            f"algorithm '{config.algorithm.name}' takes local steps through sketched layers itself, so [training] cannot "
            "change them. Remove the optimiser, schedules, clipping, precision and accumulation from [training]."
        )
    if privacy is not None and (privacy.unit == "example" or privacy.placement == "steps"):
        raise InputError(
            "privacy.unit = 'example' takes local steps from clipped gradients with noise, so [training] cannot change them. "
            "Remove the optimiser, schedules, clipping, precision and accumulation, or use privacy.unit = 'client'."
        )


def named_workload(config: Config) -> Workload:
    """Load the data, hold out the validation set, partition the rest and build the model, as the configuration says."""
    seed = PublicSeed(config.seed)
    loading, spreading = config.data.split_options()
    dataset = data.load(config.data.name, **loading)
    if config.data.validation:
        dataset = data.hold_out(dataset, config.data.validation, seed.child("validation"))
    clients = config.data.clients or (None if config.data.partition == "natural" else DEFAULT_CLIENTS)
    parts = data.partition(dataset, name=config.data.partition, clients=clients, seed=seed.child("partition"), **spreading)
    build = partial(build_module, config, shape=dataset.shape, outputs=dataset.outputs)
    own_tests = None
    if config.data.client_validation is not None:
        parts, held = held_out_parts(parts, config.data.client_validation, seed.child("client validation"))
        own_tests = dataset, held
    workload = Workload(
        dataset=dataset,
        parts=parts,
        own_tests=own_tests,
        module=build(),
        loss=loss_of(config, dataset.task),
        shared_start=shares_start(config),
        metrics=metrics_for(dataset.task, config.model.metric),
        recipe=config.training.recipe(config.algorithm.rounds),
        built_again=build if config.algorithm.public_start else None,
    )
    return workload


def loss_of(config: Config, task: str) -> str | Loss | OfBatch:
    """The loss that a configuration names, or the default loss of the task."""
    if config.training.batch_loss is None:
        return loss_for(task, config.model.loss)
    if config.model.loss is not None:
        raise InputError(
            f"model.loss = '{config.model.loss}' and training.batch_loss = '{config.training.batch_loss}' both name a loss. "
            "Remove one."
        )
    return OfBatch(BATCH_LOSSES[config.training.batch_loss])


def build_module(config: Config, *, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Build the model that a configuration names, with its first weights, for examples of this shape."""
    secret = not config.algorithm.public_start
    start = PublicSeed.from_bytes(token_bytes(16)) if secret else PublicSeed(config.seed).child("model")
    with torch.random.fork_rng(devices=[]):
        # Third-party models draw their own first weights from torch's generator.
        torch.manual_seed(randbits(63) if secret else config.seed % 2**63)
        made = models.build(config.model.name, shape=shape, outputs=outputs, seed=start, **config.model.options)
    return config.model.shared(made)


def loss_for(task: str, chosen: str | Loss | None = None) -> str | Loss:
    """The chosen loss, or the default loss of the task."""
    usual = next(loss for loss, targets in TASK_OF.items() if targets == task)
    if chosen in LOSSES.built_in and chosen != usual:
        raise InputError(f"model.loss = '{chosen}' does not suit the data, a {task}. Use '{usual}', or a loss of your own.")
    return chosen or usual


def metrics_for(task: str, chosen: Chosen) -> tuple[str | Metric, ...]:
    """The chosen metrics, but for the accuracy, which is always reported for classification."""
    listed = () if chosen is None else (chosen,) if isinstance(chosen, str) or callable(chosen) else tuple(chosen)
    found: dict[str, str | Metric] = {}
    for metric in listed:
        if isinstance(metric, str) and METRICS.is_built_in(metric) and not suits(metric, task):
            others = ", ".join(f"'{name}'" for name in METRICS.built_in if suits(name, task))
            raise InputError(
                f"model.metric = '{metric}' does not suit the data, a task of {task}. Use one of {others}, or your own."
            )
        if metric == "accuracy":
            continue
        metric_named(metric)  # raises an error if there is none, before anybody trains
        key = metric_key(metric)
        if key in KEYS or key in found:
            raise InputError(f"metrics.jsonl already has a column '{key}'. Give the function behind model.metric another name.")
        found[key] = metric
    return tuple(found.values())


def shares_start(config: Config) -> bool:
    """Whether every party is able and allowed to rebuild the first weights of a configuration."""
    return config.model.name in models.MODELS.built_in and config.algorithm.shows_weights


def classes_of(module: nn.Module, x: Tensor) -> int | None:
    """The number of classes that a model has outputs for. None if it has no such outputs for these examples."""
    try:
        with torch.no_grad(), drawing_from(FIRST):
            found = deepcopy(module).eval()(x.to(torch.float32))
    except Exception:  # of the model's own; the trial before round 1 reports it
        return None
    return found.shape[1] if isinstance(found, Tensor) and found.ndim == 2 else None


def from_objects(
    module: nn.Module,
    clients: Sequence[Any],
    test: Any,
    loss: Loss | str | None,
    task: str,
    metric: Chosen = None,
    *,
    redraw: bool | None = None,
    recipe: Recipe | None = None,
    device: torch.device = CPU,
) -> Workload:
    """Make a workload from a module, a loss and data. Each client has one pair of tensors or one torch Dataset.

    `redraw` has the same meaning as in `from_clients`.
    """
    classes = partial(classes_of, module) if loss_for(task, loss) == "cross_entropy" else None
    dataset, parts = data.from_clients(clients, test=test, task=task, redraw=redraw, classes=classes)  # type: ignore[arg-type]
    return Workload(
        dataset=dataset,
        parts=parts,
        own_objects=clients,
        module=module,
        loss=loss_for(task, loss),
        shared_start=False,
        metrics=metrics_for(task, metric),
        recipe=recipe or Recipe(),
        device=device,
    )
