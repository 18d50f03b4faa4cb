"""The inputs of a client's work in a round."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from sketchfed.algorithms import Change, Replica, RoundContext
from sketchfed.errors import DivergedError, InputError, NotFiniteError
from sketchfed.kernels.moves import subtract_if_finite
from sketchfed.training import Examples, LocalWork, Pull, Trainer, Turn


@dataclass(frozen=True, kw_only=True)
class ClientWork:
    """One client's part in one round, before anything is computed."""

    trainer: Trainer
    """The trainer for the form of the model that the client received."""
    replica: Replica
    examples: Examples
    memory: Tensor | None
    """What the algorithm kept when this client last took part. None if there is nothing."""
    context: RoundContext
    kept: dict[str, Any] = field(default_factory=dict)
    """What training kept when this client last took part. Training changes it."""
    pull: Pull = field(default_factory=Pull)
    """What is added to the gradient of each local step."""

    def trained(self, work: LocalWork) -> Change:
        """Train locally without noise and return the change. Raise `DivergedError` if it is not finite."""
        context = self.context
        turn = Turn(seed=context.own, round=context.round, client=context.client, kept=self.kept, pull=self.pull)
        try:
            trained = self.trainer.train(self.replica.weights, self.examples, work, turn)
        except NotFiniteError:
            raise
        except InputError as error:
            error.in_training = True
            raise
        if not subtract_if_finite(trained, self.replica.weights.to(trained.device)):
            raise DivergedError(
                "training led to weights with NaN or infinity, so this client sends nothing. Look for NaN in its data and its "
                "loss. If there is none, steps are too long."
            )
        if turn.kept is not self.kept:  # an update that counts as zero leaves it as it was
            self.kept.clear()
            self.kept.update(turn.kept)
        return Change(trained)
