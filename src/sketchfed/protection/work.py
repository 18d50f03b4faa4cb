"""The inputs of a client's work in a round."""

from dataclasses import dataclass

from torch import Tensor

from sketchfed.algorithms import Change, Replica, RoundContext
from sketchfed.training import Examples, LocalWork, Trainer


@dataclass(frozen=True, kw_only=True)
class ClientWork:
    """One client's part in one round, before anything is computed."""

    trainer: Trainer
    """The trainer for the form of the model that the client received."""
    replica: Replica
    examples: Examples
    memory: Tensor | None
    """The memory that the client kept when it last took part. None if there is none."""
    context: RoundContext

    def trained(self, work: LocalWork) -> Change:
        """Train locally without noise and return the change."""
        trained = self.trainer.train(self.replica.weights, self.examples, work, self.context.own)
        return Change(trained.sub_(self.replica.weights))
