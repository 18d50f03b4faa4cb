"""Algorithms by name: what clients send, what the server makes of it, and how every party follows."""

from sketchfed.algorithms.base import Algorithm, Replica, RoundContext, State
from sketchfed.algorithms.dbcl import Dbcl
from sketchfed.algorithms.dome import Dome
from sketchfed.algorithms.fedavg import FedAvg
from sketchfed.algorithms.fetchsgd import FetchSgd
from sketchfed.algorithms.iterative import Iterative
from sketchfed.algorithms.private_iterative import PrivateIterative

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Dbcl",
    "Dome",
    "FedAvg",
    "FetchSgd",
    "Iterative",
    "PrivateIterative",
    "Replica",
    "RoundContext",
    "State",
]

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm for algorithm in (FedAvg, Iterative, PrivateIterative, FetchSgd, Dbcl, Dome)
}
