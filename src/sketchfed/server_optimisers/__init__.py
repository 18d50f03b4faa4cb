"""Server optimisers: how a round's mean change becomes the global step that everybody takes."""

from sketchfed.parts import Registry
from sketchfed.server_optimisers.adaptive import Adagrad, Adam, Adaptive, Yogi
from sketchfed.server_optimisers.base import Moments, ServerOptimiser, Sgd

__all__ = ["SERVER_OPTIMISERS", "Adagrad", "Adam", "Adaptive", "Moments", "ServerOptimiser", "Sgd", "Yogi"]

_OURS: tuple[type[ServerOptimiser], ...] = (Sgd, Adam, Yogi, Adagrad)
SERVER_OPTIMISERS: Registry[type[ServerOptimiser]] = Registry(
    "server optimiser",
    {optimiser.name: optimiser for optimiser in _OURS},
    group="sketchfed.server_optimisers",
    base=ServerOptimiser,
)
