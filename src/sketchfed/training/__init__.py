"""Local training: what a client computes between receiving weights and sending an update."""

from torch import nn

from sketchfed.training.autograd import AutogradTrainer
from sketchfed.training.base import Examples, LiveExamples, LocalWork, Score, Trainer
from sketchfed.training.losses import LOSSES, Loss, loss_named
from sketchfed.training.memory import ClientMemory, Turn
from sketchfed.training.metrics import METRICS, Metric
from sketchfed.training.own import LOOPS, ClientContext, Evaluate, OwnLoop, Train
from sketchfed.training.perceptron import PerceptronTrainer, dense_layers
from sketchfed.training.settings import TrainingSettings
from sketchfed.training.stack import StackTrainer, stacked_layers
from sketchfed.training.threads import one_thread

__all__ = [
    "LOOPS",
    "LOSSES",
    "METRICS",
    "AutogradTrainer",
    "ClientContext",
    "ClientMemory",
    "Evaluate",
    "Examples",
    "LiveExamples",
    "LocalWork",
    "Loss",
    "Metric",
    "OwnLoop",
    "PerceptronTrainer",
    "Score",
    "StackTrainer",
    "Train",
    "Trainer",
    "TrainingSettings",
    "Turn",
    "make_trainer",
    "one_thread",
]


def make_trainer(module: nn.Module, loss: str | Loss) -> Trainer:
    """Return the fastest trainer for a module: hand-written ones for dense layers and for stacks of convolutions, autograd for
    everything else.
    """
    function = loss_named(loss)
    if loss in ("cross_entropy", "squares"):
        if dense_layers(module) is not None:
            return PerceptronTrainer(module, function)
        if stacked_layers(module) is not None:
            return StackTrainer(module, function)
    return AutogradTrainer(module, function)
