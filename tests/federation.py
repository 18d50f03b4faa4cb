"""Small federations: what algorithms, engines and the server are tested with."""

import torch

from sketchfed import PublicSeed
from sketchfed.algorithms import Algorithm, Replica, RoundContext
from sketchfed.protection import Clear
from sketchfed.runs import captured_share
from sketchfed.testing.federation import Apart, Tamper, Tap, advanced, federation, weights_of
from sketchfed.testing.problems import SEED, data_of
from sketchfed.wire import Packet

__all__ = [
    "CONTEXT",
    "SEED",
    "Apart",
    "Tamper",
    "Tap",
    "advanced",
    "captured",
    "data_of",
    "federation",
    "snapshot",
    "unprotected",
    "weights_of",
]

CONTEXT = RoundContext(round=0, seed=SEED, client=0)


def unprotected(algorithm: Algorithm, dim: int, clients: int = 1) -> Clear:
    """Everything in the clear, for clients with ten examples each."""
    return Clear(algorithm=algorithm, dim=dim, sizes=(10,) * clients)


def snapshot(algorithm: Algorithm, replica: Replica, seed: PublicSeed = SEED) -> Packet:
    """The whole model as clients are given it."""
    return algorithm.given(seed, replica.round).packet(replica)


def captured(algorithm: Algorithm, replica: Replica, gradient: torch.Tensor, seed: PublicSeed = SEED) -> float | None:
    """The share of a gradient's energy that the next round's packets carry."""
    context = RoundContext(round=replica.round, seed=seed, client=0, replica=replica)
    code = algorithm.code(len(gradient), context)
    return captured_share(code, [gradient]) if code.orthonormal else None
