"""What somebody knows about a change, and how an algorithm reveals it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from sketchfed.algorithms import Algorithm, Replica, RoundContext
from sketchfed.codecs.linear import LinearMap
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet

_PROBES = 32

Known = TypeVar("Known", bound=Algorithm)


class Heard(NamedTuple):
    """What somebody knows about a change, or about the mean of several: `values` = `map`·change, up to noise and rounding."""

    values: Tensor
    map: LinearMap | None
    """None for the identity."""


@dataclass(frozen=True, eq=False)
class Coordinates:
    """The linear map that keeps some coordinates as they are."""

    indices: Tensor
    dim: int

    def apply(self, x: Tensor) -> Tensor:
        return x[..., self.indices]

    def adjoint(self, y: Tensor) -> Tensor:
        return y.new_zeros(*y.shape[:-1], self.dim).index_copy(-1, self.indices, y)


@dataclass(frozen=True)
class Knowledge(ABC, Generic[Known]):
    """What the messages of one algorithm reveal about clients' changes. None means: nothing that an attack can use."""

    algorithm: Known

    @abstractmethod
    def heard(self, packet: Packet, dim: int, context: RoundContext) -> Heard | None:
        """What a reply, or a sum of replies, reveals about the mean change behind it."""

    @abstractmethod
    def told(self, update: Packet, replica: Replica, seed: PublicSeed) -> Heard | None:
        """What a broadcast reveals about the round's mean change to a client that holds the previous replica."""

    @abstractmethod
    def between(self, before: Replica, after: Replica, seed: PublicSeed) -> Heard | None:
        """What two consecutive models, as clients are given them, reveal about the mean change between them."""


@dataclass(frozen=True)
class OnlyHeard(Knowledge[Known]):
    """What is known if the server does not average: single replies reveal what they always do, and broadcasts reveal nothing.

    A median is nobody's change. A chosen reply is the change of somebody whom only the server knows. There is no formula for
    what they reveal about the mean.
    """

    known: Knowledge[Known]

    def heard(self, packet: Packet, dim: int, context: RoundContext) -> Heard | None:
        return self.known.heard(packet, dim, context)

    def told(self, update: Packet, replica: Replica, seed: PublicSeed) -> None:
        """A broadcast is no mean."""

    def between(self, before: Replica, after: Replica, seed: PublicSeed) -> None:
        """The model did not move by a mean."""


def mean_change(algorithm: Algorithm, before: Replica, after: Replica) -> Tensor | None:
    """The mean change of a server that moves by rate·mean. None if it moves otherwise, or if a model in between was missed."""
    if after.round != before.round + 1 or not algorithm.moves_by_mean:
        return None
    return (after.weights - before.weights) / algorithm.rate_at(before.round)


def by_code(algorithm: Algorithm, packet: Packet, dim: int, context: RoundContext) -> Heard:
    """What a packet of a linear code reveals."""
    code = algorithm.code(dim, context)
    return Heard(code.decoded(packet), code.map)


def spread(known: LinearMap | None, dim: int) -> float:
    """Estimate ‖A‖²_F/size: the variance of each number after the map A, for noise of variance 1 per coordinate before it."""
    if known is None:
        return 1.0
    probes = torch.randn(_PROBES, dim, generator=torch.Generator().manual_seed(0))
    return float(known.apply(probes).square().mean())
