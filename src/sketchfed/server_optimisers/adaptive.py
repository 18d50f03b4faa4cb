"""FedAdam, FedYogi and FedAdagrad: each coordinate has a step size of its own."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchfed.errors import InputError, WireError
from sketchfed.kernels.roots import square_root
from sketchfed.server_optimisers.base import Moments, ServerOptimiser

_LEAST, _MOST = 1e-15, 1e15
"""The squares of these fit into float32."""


@dataclass(frozen=True, kw_only=True)
class Adaptive(ServerOptimiser):
    """m ← β₁·m + (1 − β₁)·Δ and a second moment v of Δ; the step is m/(√v + τ).

    Paper: Reddi et al. 2021, Alg. 2, where Δ is the mean change of the round. As in the paper, v starts at τ² (it asks for at
    least that), and moments are not corrected for their start. Adam's first step is then about (1 − β₁)/√(1 − β₂) times the
    sign of Δ, which is 1 for the defaults. With other values of β₁ and β₂ the first steps can be much larger.

    Noise and sketches make v larger, by about the same in all coordinates, so steps are nearer to those of momentum (Tang et
    al. 2024). The variance of [privacy] is not subtracted from v, as Tang et al. do: where little else is left, the step would
    be divided by τ alone, so that needs a floor of its own, as algorithm 'dome' has.
    """

    beta1: float = 0.9
    """The decay rate of the running mean of changes, the paper's β₁. It takes the place of `algorithm.global_momentum`."""
    adaptivity: float = 1e-3
    """The paper's τ, which is added to the root of the second moment. Coordinates whose changes are much smaller than τ get
    smaller steps. With a large τ, all coordinates have the same step size."""

    source = "Reddi et al. 2021, Alg. 2"

    def __post_init__(self) -> None:
        check_decay("beta1", self.beta1)
        if not _LEAST <= self.adaptivity <= _MOST:
            raise InputError(
                f"server.adaptivity must be from {_LEAST:g} to {_MOST:g}, because its square must fit into a float32, got "
                f"{self.adaptivity}. Values from 0.0001 to 0.1 are usual."
            )

    def begin(self, dim: int) -> dict[str, Tensor]:
        square = {"square": torch.full((dim,), self.adaptivity**2)}
        return {"mean": torch.zeros(dim)} | square if self.beta1 else square

    def _step(self, change: Tensor, moments: Moments) -> tuple[Tensor, dict[str, Tensor]]:
        if bool((moments["square"] < 0).any()):
            raise WireError("the second moments are negative in some coordinates. The model that arrived was damaged.")
        square = self._squared(moments["square"], change.square())
        size = square_root(square) + self.adaptivity
        if not self.beta1:
            return change / size, {"square": square}
        mean = moments["mean"] * self.beta1 + change * (1 - self.beta1)
        return mean / size, {"mean": mean, "square": square}

    @abstractmethod
    def _squared(self, square: Tensor, new: Tensor) -> Tensor:
        """The second moment after a round whose squared changes are `new`."""


@dataclass(frozen=True, kw_only=True)
class FedAdam(Adaptive):
    """v ← β₂·v + (1 − β₂)·Δ²."""

    beta2: float = 0.99
    """The decay rate of the running mean of squared changes, the paper's β₂."""

    name = "adam"
    summary = "FedAdam: steps over the root of a running mean of squared changes"
    default_rate = 0.03

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay("beta2", self.beta2)

    def _squared(self, square: Tensor, new: Tensor) -> Tensor:
        return square * self.beta2 + new * (1 - self.beta2)


@dataclass(frozen=True, kw_only=True)
class FedYogi(Adaptive):
    """v ← v − (1 − β₂)·Δ²·sign(v − Δ²): v falls more slowly than Adam's after changes have become small."""

    beta2: float = 0.99
    """How slowly the second moment follows the squared changes, the paper's β₂."""

    name = "yogi"
    summary = "FedYogi: like adam, but after large changes steps grow back slowly"
    default_rate = 0.03

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay("beta2", self.beta2)

    def _squared(self, square: Tensor, new: Tensor) -> Tensor:
        return square - new * (1 - self.beta2) * torch.sign(square - new)


@dataclass(frozen=True, kw_only=True)
class FedAdagrad(Adaptive):
    """v ← v + Δ². As in the paper's experiments, there is no momentum unless `beta1` is set."""

    beta1: float = 0.0
    """The decay rate of the running mean of changes, the paper's β₁. It takes the place of `algorithm.global_momentum`."""

    name = "adagrad"
    summary = "FedAdagrad: steps over the root of the sum of squared changes"
    default_rate = 0.1

    def _squared(self, square: Tensor, new: Tensor) -> Tensor:
        return square + new


def check_decay(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise InputError(f"server.{name} must be from 0 to below 1, got {value}.")
