"""What an adversary learns from the messages of each algorithm.

Attacks on single updates do not apply to an algorithm without an entry. Nobody has said what its messages reveal, and a default
would be wrong for some rule (a median is no mean). For the same reason, subclasses do not inherit an entry.

A package that announces an algorithm announces what it reveals under the same name:

    [project.entry-points."sketchfed.algorithms"]
    fed_adagrad = "my_package.algorithm:FedAdagrad"

    [project.entry-points."sketchfed.knowledge"]
    fed_adagrad = "my_package.knowledge:FedAdagradKnowledge"
"""

from sketchfed.algorithms import ALGORITHMS, Algorithm, Dbcl, Dome, FedAvg, FetchSgd, GossipExact, Iterative, PrivateIterative
from sketchfed.attacks.knowledge.base import Coordinates, Heard, Knowledge, OnlyHeard, by_code, mean_change, spread
from sketchfed.attacks.knowledge.dbcl import DbclKnowledge
from sketchfed.attacks.knowledge.dome import DomeKnowledge
from sketchfed.attacks.knowledge.fedavg import FedAvgKnowledge
from sketchfed.attacks.knowledge.fetchsgd import FetchSgdKnowledge
from sketchfed.attacks.knowledge.iterative import IterativeKnowledge
from sketchfed.errors import InputError
from sketchfed.parts import Registry

__all__ = [
    "ANNOUNCED",
    "KNOWLEDGE",
    "Coordinates",
    "Heard",
    "Knowledge",
    "by_code",
    "is_known",
    "knowledge_of",
    "mean_change",
    "spread",
]

KNOWLEDGE: dict[type[Algorithm], type[Knowledge]] = {  # type: ignore[type-arg]
    FedAvg: FedAvgKnowledge,
    Iterative: IterativeKnowledge,
    PrivateIterative: IterativeKnowledge,
    GossipExact: IterativeKnowledge,  # with a server, replies and updates are those of Iterative
    FetchSgd: FetchSgdKnowledge,
    Dbcl: DbclKnowledge,
    Dome: DomeKnowledge,
}
"""The entries by algorithm. A module that is not installed as a package adds its entry here."""

ANNOUNCED: Registry[type[Knowledge]] = Registry("knowledge", {}, group="sketchfed.knowledge", base=Knowledge)  # type: ignore[type-arg]
"""What installed packages announce, by the name of the algorithm in the registry of algorithms."""


def is_known(algorithm: Algorithm) -> bool:
    """Whether somebody has said what the messages of exactly this class reveal. Nothing is imported."""
    return type(algorithm) in KNOWLEDGE or ALGORITHMS.name_of(type(algorithm)) in ANNOUNCED.names()


def knowledge_of(algorithm: Algorithm) -> Knowledge:  # type: ignore[type-arg]
    """What the messages of an algorithm reveal. Raises `InputError` if nobody has said, or if the entry cannot be used."""
    kind = type(algorithm)
    name = ALGORITHMS.name_of(kind)
    found = KNOWLEDGE.get(kind) or (ANNOUNCED[name] if name in ANNOUNCED.names() else None)
    if found is not None:
        known = found(algorithm)
        return known if algorithm.combine.averages else OnlyHeard(algorithm, known)
    remedy = (
        f"Set sketchfed.attacks.knowledge.KNOWLEDGE[{kind.__qualname__}] in its module."
        if ":" in name
        else "Announce a class below sketchfed.attacks.knowledge.Knowledge as an entry point of sketchfed.knowledge named "
        f"'{name}'."
    )
    raise InputError(
        f"nobody has said what the messages of algorithm '{algorithm.name}' reveal, so attacks on its updates do not apply. "
        f"{remedy}"
    )
