"""Checks, before round 1, whether the clip norm suits what clients would send."""

from sketchfed.algorithms import Replica
from sketchfed.errors import SketchfedError
from sketchfed.protection import Protection
from sketchfed.protection.probe import CLIENTS, advice, norms
from sketchfed.runs.problem import FederatedProblem
from sketchfed.seeds import PublicSeed
from sketchfed.training import Trainer


def clip_advice(
    protection: Protection, trainer: Trainer, replica: Replica, workload: FederatedProblem, seed: PublicSeed, *, clients: int
) -> str | None:
    """Return advice about a clip norm that never clips or clips everything, or None if it is well chosen.

    Only the first few clients are measured. A client whose model, loss or data raises an error is skipped, as in a round. If
    all of them fail, an error of sketchfed is raised, and any other error is left to round 1.
    """
    looked = range(min(CLIENTS, clients))
    try:
        return advice(*norms(protection, trainer, replica, [workload.examples(client) for client in looked], seed))
    except Exception as error:
        sound = [client for client in looked if _can_be_measured(protection, trainer, replica, workload, seed, client)]
        if not sound and isinstance(error, SketchfedError):
            raise
        if not sound:
            return None  # round 1 will report the error
    return advice(*norms(protection, trainer, replica, [workload.examples(client) for client in sound], seed))


def _can_be_measured(
    protection: Protection, trainer: Trainer, replica: Replica, workload: FederatedProblem, seed: PublicSeed, client: int
) -> bool:
    try:
        norms(protection, trainer, replica, [workload.examples(client)], seed)
    except Exception:
        return False
    return True
