"""What every process of a run makes from its configuration: the completed settings, and the client's side of a round."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sketchfed.algorithms import Replica, State
from sketchfed.algorithms.forms import seen
from sketchfed.config import Config
from sketchfed.rounds import Participant
from sketchfed.runs.problem import FederatedProblem


def taking_part(config: Config, problem: FederatedProblem, trainer: Any, sizes: Sequence[int]) -> tuple[Config, Participant]:
    """Return the configuration with all defaults filled in, and the participant that follows it.

    `sizes` is the number of examples of each client.
    """
    problem.check(config)
    completed = config.completed(dim=trainer.dim, sizes=sizes, module=problem.module)
    participant = completed.participant(trainer, sizes, problem.module)
    if completed.training.evaluate_clients:
        participant = replace(participant, judge=problem.judge())
    return completed, participant


def shared_replica(
    participant: Participant, state: State, problem: FederatedProblem, *, everywhere: bool = False
) -> Replica | None:
    """What clients hold before round 1. None if it has to be sent.

    `everywhere` says that there is nobody to send it, so that all processes must have it.
    """
    if everywhere:
        return state.replica
    if not problem.shared_start:
        return None
    return seen(participant.algorithm.given(participant.seed, 0), state.replica)
