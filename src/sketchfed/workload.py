"""What is trained on what: the data of each client, the model and its loss, made from a configuration or given as objects."""

from collections.abc import Sequence
from dataclasses import dataclass
from secrets import randbits, token_bytes
from typing import Any

import torch
from torch import Tensor, nn

from sketchfed import data, models
from sketchfed.config import Config
from sketchfed.data import DataSet
from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed
from sketchfed.training import LOSSES, Examples, Loss, Score, Trainer, make_trainer
from sketchfed.vectors import flatten

DEFAULT_CLIENTS = 20
_CHUNK = 1_000  # examples scored at a time


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A federated problem."""

    dataset: DataSet
    parts: Sequence[Tensor]
    """Which training examples belong to each client."""
    module: nn.Module
    loss: str | Loss
    shared_start: bool
    """Whether every party can rebuild the first weights from the seed, so that nobody has to send them."""

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

    def trainer(self) -> Trainer:
        """What trains the model, once it is clear that model, loss and data fit each other."""
        trainer = make_trainer(self.module, self.loss)
        first = self.parts[0][:2]
        examples = Examples(self.dataset.prepare(self.dataset.x_train[first]), self.dataset.y_train[first])
        trainer.check(examples)
        if self.loss in LOSSES:
            self._check_outputs(trainer.outputs(flatten(self.module), examples.x))
        return trainer

    def _check_outputs(self, outputs: Tensor) -> None:
        regression, wanted = self.loss == "squares", self.dataset.outputs
        if outputs.ndim != 2 or outputs.shape[1] < wanted or (regression and outputs.shape[1] > wanted):
            raise InputError(
                f"the model's outputs have shape {tuple(outputs.shape[1:])} for an example; data set '{self.dataset.name}' has "
                f"{wanted:,} {'target values' if regression else 'classes'}. Give the model's last layer {wanted:,} outputs."
            )

    def examples(self, client: int) -> Examples:
        """A client's training data, prepared."""
        rows = self.parts[client]
        return Examples(self.dataset.prepare(self.dataset.x_train[rows]), self.dataset.y_train[rows])

    def test_chunks(self) -> list[Examples]:
        """The held-out data, prepared, in chunks that are scored one at a time."""
        starts = range(0, len(self.dataset.x_test), _CHUNK)
        x, y = self.dataset.x_test, self.dataset.y_test
        return [Examples(self.dataset.prepare(x[s : s + _CHUNK]), y[s : s + _CHUNK]) for s in starts]

    def summarise(self, parts: Sequence[tuple[float, int]]) -> Score:
        """The score of all chunks from those of each."""
        count = len(self.dataset.y_test)
        right = sum(right for _, right in parts) / count if self.dataset.task == "classification" else None
        return Score(sum(loss for loss, _ in parts) / count, right)


def from_config(config: Config) -> Workload:
    """Load, hold out, partition and build what a configuration names."""
    seed = PublicSeed(config.seed)
    loading, spreading = config.data.split_options()
    dataset = data.load(config.data.name, **loading)
    if config.data.validation:
        dataset = data.hold_out(dataset, config.data.validation, seed.child("validation"))
    clients = config.data.clients or (None if config.data.partition == "natural" else DEFAULT_CLIENTS)
    parts = data.partition(dataset, name=config.data.partition, clients=clients, seed=seed.child("partition"), **spreading)
    module = build_module(config, shape=dataset.shape, outputs=dataset.outputs)
    return Workload(dataset=dataset, parts=parts, module=module, loss=loss_for(dataset.task), shared_start=shares_start(config))


def build_module(config: Config, *, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The model that a configuration names, for examples of a shape, with its first weights."""
    secret = config.algorithm.secret_start
    start = PublicSeed.from_bytes(token_bytes(16)) if secret else PublicSeed(config.seed).child("model")
    with torch.random.fork_rng(devices=[]):
        # For models that are not ours and draw their own first weights.
        torch.manual_seed(randbits(63) if secret else config.seed % 2**63)
        return models.build(config.model.name, shape=shape, outputs=outputs, seed=start, **config.model.options)


def loss_for(task: str) -> str:
    """The loss of a task, where no other is given."""
    return "cross_entropy" if task == "classification" else "squares"


def shares_start(config: Config) -> bool:
    """Whether every party can rebuild the first weights of a configuration, and may."""
    return config.model.name in models.MODELS and config.algorithm.shows_weights


def from_objects(module: nn.Module, clients: Sequence[Any], test: Any, loss: Loss | str | None, task: str) -> Workload:
    """A user's own module, loss and data: one pair of tensors or torch Dataset a client."""
    dataset, parts = data.from_clients(clients, test=test, task=task)  # type: ignore[arg-type]
    return Workload(dataset=dataset, parts=parts, module=module, loss=loss or loss_for(task), shared_start=False)
