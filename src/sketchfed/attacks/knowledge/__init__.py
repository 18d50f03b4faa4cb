"""What an adversary learns from the messages of each algorithm.

An algorithm without an entry is not applicable to attacks on single updates: nobody has said what its messages reveal, and a
guess would be wrong for some rule (a median is no mean). Subclasses do not inherit an entry for the same reason.
"""

from sketchfed.algorithms import Algorithm, Dbcl, Dome, FedAvg, FetchSgd, Iterative, PrivateIterative
from sketchfed.attacks.knowledge.base import Coordinates, Heard, Knowledge, OnlyHeard, by_code, mean_change, spread
from sketchfed.attacks.knowledge.dbcl import DbclKnowledge
from sketchfed.attacks.knowledge.dome import DomeKnowledge
from sketchfed.attacks.knowledge.fedavg import FedAvgKnowledge
from sketchfed.attacks.knowledge.fetchsgd import FetchSgdKnowledge
from sketchfed.attacks.knowledge.iterative import IterativeKnowledge
from sketchfed.errors import InputError

__all__ = ["KNOWLEDGE", "Coordinates", "Heard", "Knowledge", "by_code", "knowledge_of", "mean_change", "spread"]

KNOWLEDGE: dict[type[Algorithm], type[Knowledge]] = {  # type: ignore[type-arg]
    FedAvg: FedAvgKnowledge,
    Iterative: IterativeKnowledge,
    PrivateIterative: IterativeKnowledge,
    FetchSgd: FetchSgdKnowledge,
    Dbcl: DbclKnowledge,
    Dome: DomeKnowledge,
}
"""By algorithm. A package that brings an algorithm adds its own entry."""


def knowledge_of(algorithm: Algorithm) -> Knowledge:  # type: ignore[type-arg]
    """What the messages of an algorithm reveal; `InputError` if nobody has said."""
    found = KNOWLEDGE.get(type(algorithm))
    if found is None:
        raise InputError(
            f"nobody has said what the messages of algorithm '{algorithm.name}' reveal, so attacks on its updates do not "
            "apply. Add an entry to sketchfed.attacks.knowledge.KNOWLEDGE."
        )
    known = found(algorithm)
    return known if algorithm.combine.averages else OnlyHeard(algorithm, known)
