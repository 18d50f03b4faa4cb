"""Local training: what a client computes between receiving weights and sending an update."""

from torch import nn

from sketchfed.training.autograd import AutogradTrainer
from sketchfed.training.base import Examples, LocalWork, Score, Trainer
from sketchfed.training.losses import LOSSES, Loss, loss_named
from sketchfed.training.perceptron import PerceptronTrainer, dense_layers

__all__ = [
    "LOSSES",
    "AutogradTrainer",
    "Examples",
    "LocalWork",
    "Loss",
    "PerceptronTrainer",
    "Score",
    "Trainer",
    "make_trainer",
]


def make_trainer(module: nn.Module, loss: str | Loss) -> Trainer:
    """The fastest trainer that does a module's arithmetic: a hand-written one for dense layers, else autograd."""
    function = loss_named(loss)
    if loss in ("cross_entropy", "squares") and dense_layers(module) is not None:
        return PerceptronTrainer(module, function)
    return AutogradTrainer(module, function)
