"""Every registered server optimiser does what `sketchfed.testing` demands."""

from typing import ClassVar

from sketchfed.server_optimisers import SERVER_OPTIMISERS, FedAdagrad, FedAdam
from sketchfed.testing import ServerOptimiserConformance


class TestEveryOptimiser(ServerOptimiserConformance):
    optimisers: ClassVar = {name: kind() for name, kind in SERVER_OPTIMISERS.items()} | {
        "adam, other options": FedAdam(beta1=0.0, beta2=0.9, adaptivity=0.1),
        "adagrad, momentum": FedAdagrad(beta1=0.9),
    }
