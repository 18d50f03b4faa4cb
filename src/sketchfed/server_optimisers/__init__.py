"""Server optimisers: how a round's mean change becomes the global step that everybody takes."""

from sketchfed.kernels.roots import square_root
from sketchfed.parts import Registry
from sketchfed.server_optimisers.adaptive import Adaptive, FedAdagrad, FedAdam, FedYogi
from sketchfed.server_optimisers.base import Moments, ServerOptimiser, Sgd

__all__ = [
    "SERVER_OPTIMISERS",
    "Adaptive",
    "FedAdagrad",
    "FedAdam",
    "FedYogi",
    "Moments",
    "ServerOptimiser",
    "Sgd",
    "square_root",
]

_OURS: tuple[type[ServerOptimiser], ...] = (Sgd, FedAdam, FedYogi, FedAdagrad)
SERVER_OPTIMISERS: Registry[type[ServerOptimiser]] = Registry(
    "server optimiser",
    {optimiser.name: optimiser for optimiser in _OURS},
    group="sketchfed.server_optimisers",
    base=ServerOptimiser,
)
