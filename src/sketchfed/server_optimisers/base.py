"""The interface of a server optimiser: it makes the global step of a round from the mean change."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sketchfed.errors import DivergedError, FaultyPartError, SketchfedError
from sketchfed.kernels.finite import all_finite

Moments = Mapping[str, Tensor]
"""The vectors that an optimiser keeps between rounds, `(dim,)` each, by name."""

_KIND = "server optimiser"
_MODERATE = 1e15
"""Squares of numbers below this fit into float32."""


@dataclass(frozen=True, kw_only=True)
class ServerOptimiser(ABC):
    """How a round's mean change becomes a global step. The fields of a subclass are its options, the keys of [server].

    The server calls `step` in each round, and so does every client that follows updates. All of them must get the same bits, so
    a subclass uses operations that every processor rounds alike: sums, differences, products and quotients of two tensors, each
    in an operation of its own, and `square_root`. `torch.add(…, alpha=…)`, `torch.sqrt` and `**` differ
    between processors.

    A subclass implements `begin` and `_step`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    default_rate: ClassVar[float | None]
    """`algorithm.global_rate` if it is not set. None leaves it to the algorithm."""

    @abstractmethod
    def begin(self, dim: int) -> dict[str, Tensor]:
        """The moments before the first round, `(dim,)` each."""

    def step(self, change: Tensor, moments: Moments) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the step for a mean change `(dim,)`, before it is multiplied by `global_rate`, and the moments afterwards."""
        try:
            found = self._step(change, moments)
        except SketchfedError:
            raise
        except Exception as error:
            raise FaultyPartError(self, _KIND, f"raised {type(error).__name__}: {error}") from error
        if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], dict):
            raise FaultyPartError(self, _KIND, f"returned {type(found).__name__}, not a step and its moments")
        step, after = found
        if after.keys() != moments.keys():
            raise FaultyPartError(self, _KIND, f"was given the moments {sorted(moments)} and returned {sorted(after)}")
        for name, tensor in {"step": step, **after}.items():
            if not isinstance(tensor, Tensor) or (tensor.shape, tensor.dtype) != (change.shape, change.dtype):
                given = f"{tuple(tensor.shape)} of {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
                wanted = f"{tuple(change.shape)} of {change.dtype}"
                raise FaultyPartError(self, _KIND, f"returned {given} as '{name}', not {wanted}")
        if not all(map(all_finite, (step, *after.values()))):
            self._explain(change, moments)
        return step, after

    @abstractmethod
    def _step(self, change: Tensor, moments: Moments) -> tuple[Tensor, dict[str, Tensor]]:
        """The same, unchecked. It must not modify its arguments."""

    def _explain(self, change: Tensor, moments: Moments) -> None:
        """Say whose fault numbers are that are not finite."""
        largest = max(float(each.abs().max()) for each in (change, *moments.values()))
        if largest < _MODERATE:
            raise FaultyPartError(self, _KIND, f"returned NaN or infinity for numbers of at most {largest:.3g}")
        raise DivergedError(
            f"the mean change of the round holds numbers of {float(change.abs().max()):.3g}, whose squares are no longer "
            "finite. Lower algorithm.local_rate or algorithm.global_rate."
        )


@dataclass(frozen=True, kw_only=True)
class Sgd(ServerOptimiser):
    """The step is the mean change. `algorithm.global_momentum` adds momentum.

    Paper: Reddi et al. 2021, Alg. 1 with SGD as the server's optimiser, which is FedAvg, or FedAvgM with momentum.
    """

    name = "sgd"
    summary = "the mean change itself; with algorithm.global_momentum, FedAvgM"
    source = "McMahan et al. 2017"
    default_rate = None

    def begin(self, dim: int) -> dict[str, Tensor]:
        return {}

    def _step(self, change: Tensor, moments: Moments) -> tuple[Tensor, dict[str, Tensor]]:
        return change, {}
