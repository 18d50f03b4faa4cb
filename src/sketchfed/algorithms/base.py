"""The interface of an algorithm: settings, and one round as pure functions over explicit state."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from sketchfed.algorithms.forms import Form, WholeModel
from sketchfed.algorithms.round_settings import DRIFT, RoundSettings
from sketchfed.algorithms.state import Change, Replica, RoundContext, State
from sketchfed.codecs.linear import LinearCode
from sketchfed.errors import NotLinearError, WireError
from sketchfed.kernels.moves import step_
from sketchfed.kernels.pages import copy_of
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet


@dataclass(frozen=True, kw_only=True)
class Algorithm(RoundSettings, ABC):
    """An algorithm: its settings are fields, and its methods are the eight functions of a run.

    `resolved` fills in defaults, and `begin` makes the server's first state. A round then calls `given` (the form of the model
    that clients get), `client` for each participant, `check` for each reply, `server` on the accepted replies, and `follow`
    wherever the update is received. `code` describes how packets depend on changes, for noise and secure sums. The server and
    the clients call the same function on the same bytes, so their replicas stay equal.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    incremental: ClassVar[bool]
    """Whether the server broadcasts updates, which absent clients can replay. Otherwise it broadcasts whole models."""
    shows_weights: ClassVar[bool] = True
    """Whether clients see the weights themselves rather than sketches of them."""
    by_layer: ClassVar[bool] = False
    """Whether the algorithm, with these settings, treats layers differently. Then it must know the module."""
    served: ClassVar[bool] = True
    """Whether a server can run it. Otherwise it runs between the nodes of a graph only."""
    noise_defaults: ClassVar[Mapping[str, Mapping[str, Any]] | None] = None
    """Defaults of [privacy] for each mechanism, if the algorithm requires calibrated noise. None for all others."""

    @abstractmethod
    def resolved(self, dim: int, clients: int | None = None, module: nn.Module | None = None) -> Self:
        """Return a copy with all defaults filled in. Some depend on the model's size, the number of clients or the layers.

        Resolving a resolved algorithm changes nothing.
        """

    def begin(self, weights: Tensor) -> State:
        """Return the server's state before round 0. `weights` are what the model shares."""
        if self._segments is not None:
            weights = torch.cat([weights, torch.zeros(self._segments.dim - len(weights))])
        velocity = torch.zeros_like(weights) if self.global_momentum else None
        replica = Replica(round=0, weights=weights, velocity=velocity, moments=self.moments(len(weights)))
        return State(replica=replica)

    def given(self, seed: PublicSeed, index: int) -> Form:
        """Return the form in which clients get the model in a round."""
        return WholeModel()

    def client(self, change: Change, memory: Tensor | None, context: RoundContext) -> tuple[Packet, Tensor | None]:
        """Return the packet that a client sends for its change, and the memory that it keeps until it takes part again."""
        code = self.code(change.dim, context)
        return code.packet(change.through(code)), None

    def code(self, dim: int, context: RoundContext) -> LinearCode:
        """Return the linear code of this round's packets. Raise `NotLinearError` with the reason if they cannot be added."""
        raise NotLinearError(f"algorithm '{self.name}'", "what it sends is not a linear function of a client's change.")

    @abstractmethod
    def check(self, packet: Packet, dim: int, context: RoundContext) -> float | None:
        """Raise `WireError` unless `server` can use this client's packet.

        Return the norm that the server compares with the round's median norm, or None if the packet has no norm.
        """

    @abstractmethod
    def server(
        self, state: State, packets: Sequence[Packet], seed: PublicSeed, *, noise: float = 0.0
    ) -> tuple[State, Packet | None]:
        """Return the state after a round, and the update that everyone can `follow`. The update is None for whole models.

        `noise` is the variance that privacy added to each number of the packets' mean. Some algorithms correct for it.
        """

    def follow(self, replica: Replica, update: Packet, seed: PublicSeed) -> Replica:
        """Return the replica one round later, computed from the update of that round."""
        raise WireError(f"algorithm '{self.name}' broadcasts whole models, but a packet of kind '{update.kind}' arrived.")


def stepped(
    settings: RoundSettings, replica: Replica, direction: Tensor, *, clients: int = 1, overwrite: bool = False
) -> Replica:
    """Take one global step: v ← momentum·v + direction, w ← w + rate·v. A server optimiser makes another v of the direction.

    With FedDyn (Acar et al. 2021, Alg. 1), s ← s + (clients/all)·direction and v = direction + s, where s is the paper's −h/α.
    `clients` is the number of clients whose mean change the direction is; only corrections of clients' steps depend on it.

    What travels beside parameters moves as `Segments` says. With `overwrite`, the memory of `direction` may hold the new
    weights, so it must be the caller's own.
    """
    velocity, moments, usual = None, replica.moments, settings.server_optimiser.usual
    if (segments := settings.segments) is not None:
        direction = segments.unweighted(direction)
        change, overwrite = direction, False
    if replica.velocity is not None:
        direction = velocity = settings.global_momentum * replica.velocity + direction
    if not usual:
        direction, moments = settings.server_optimiser.optimiser().step(direction, moments)
    if settings.feddyn and segments is not None:
        drift = replica.moments[DRIFT] + direction * segments.share(clients)
        direction, moments = direction + drift, {DRIFT: drift}
    rate = settings.rate_at(replica.round)
    own = overwrite and usual and velocity is None
    weights = step_(replica.weights, rate, direction if own else copy_of(direction))
    if segments is not None:
        weights = segments.settled(weights, replica.weights, change, clients)
    return replace(replica, round=replica.round + 1, weights=weights, velocity=velocity, moments=moments)
