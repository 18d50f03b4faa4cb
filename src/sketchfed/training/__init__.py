"""Local training: what a client computes between receiving weights and sending an update."""

import torch
from torch import nn

from sketchfed.devices import CPU
from sketchfed.training.autograd import AutogradTrainer
from sketchfed.training.base import Examples, LiveExamples, LocalWork, Score, Trainer
from sketchfed.training.items import Collate, examples_in
from sketchfed.training.judging import Judge, Judged
from sketchfed.training.losses import LOSSES, Loss, loss_named
from sketchfed.training.memory import ClientMemory, Turn
from sketchfed.training.metrics import METRICS, Metric
from sketchfed.training.objective import BATCH_LOSSES, BatchLoss, Objective, OfBatch
from sketchfed.training.own import LOOPS, ClientContext, Evaluate, OwnLoop, Train
from sketchfed.training.pairs import OfPairs
from sketchfed.training.perceptron import PerceptronTrainer, dense_layers
from sketchfed.training.pull import Pull
from sketchfed.training.recipe import OPTIMISERS, SCHEDULES, Recipe
from sketchfed.training.settings import TrainingSettings
from sketchfed.training.stack import StackTrainer, stacked_layers
from sketchfed.training.threads import one_thread

__all__ = [
    "BATCH_LOSSES",
    "LOOPS",
    "LOSSES",
    "METRICS",
    "OPTIMISERS",
    "SCHEDULES",
    "AutogradTrainer",
    "BatchLoss",
    "ClientContext",
    "ClientMemory",
    "Collate",
    "Evaluate",
    "Examples",
    "Judge",
    "Judged",
    "LiveExamples",
    "LocalWork",
    "Loss",
    "Metric",
    "Objective",
    "OfBatch",
    "OfPairs",
    "OwnLoop",
    "PerceptronTrainer",
    "Pull",
    "Recipe",
    "Score",
    "StackTrainer",
    "Train",
    "Trainer",
    "TrainingSettings",
    "Turn",
    "examples_in",
    "make_trainer",
    "one_thread",
]


def make_trainer(
    module: nn.Module, loss: str | Loss | Objective, recipe: Recipe | None = None, device: torch.device = CPU
) -> Trainer:
    """Return the fastest trainer for a module. On the CPU, there are hand-written ones for dense layers and for stacks of
    convolutions. Autograd trains everything else. `recipe` says how steps are taken; by default they are those of plain SGD.
    """
    if isinstance(loss, Objective) or device.type != "cpu":
        return AutogradTrainer(module, loss if isinstance(loss, Objective) else loss_named(loss), recipe=recipe, device=device)
    function = loss_named(loss)
    if loss in ("cross_entropy", "squares") and (recipe is None or recipe.usual):
        if dense_layers(module) is not None:
            return PerceptronTrainer(module, function)
        if stacked_layers(module) is not None:
            return StackTrainer(module, function)
    return AutogradTrainer(module, function, recipe=recipe)
