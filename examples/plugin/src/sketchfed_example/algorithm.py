"""Adagrad on the server."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor, nn

from sketchfed.algorithms import Algorithm, CodecSettings, RoundContext, State, round_seed, stepped
from sketchfed.codecs import LinearCode
from sketchfed.errors import NotLinearError
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet


@dataclass(frozen=True, kw_only=True)
class FedAdagrad(Algorithm):
    """Clients send their changes by any linear codec; coordinates that have moved far take smaller steps.

    Paper: Reddi et al. 2021, "Adaptive Federated Optimization", Alg. 2, without momentum: v ← v + Δ², w ← w + η·Δ/(√v + τ).
    """

    codec: CodecSettings = field(default_factory=CodecSettings)
    floor: float = 0.01
    """τ, added to √v: the smaller, the more steps adapt."""

    name = "fed_adagrad"
    summary = "Adagrad on the server, updates up by any linear codec"
    source = "Reddi et al. 2021, Alg. 2"
    incremental = False  # the server broadcasts whole models

    def resolved(self, dim: int, clients: int | None = None, module: nn.Module | None = None) -> Self:
        codec = self.codec.completed(None if clients is None else self.planned(clients))
        made = replace(self, codec=codec, global_rate=self.global_rate or 0.1)
        made.code(dim, RoundContext(round=0, seed=PublicSeed(0), client=0))  # refuses a codec that is not linear, now
        return made

    def begin(self, weights: Tensor) -> State:
        return replace(super().begin(weights), own={"squares": torch.zeros_like(weights)})

    def code(self, dim: int, context: RoundContext) -> LinearCode:
        code = self.codec.codec(dim, None).linear(context.shared)
        if code is None or not code.additive:
            raise NotLinearError(f"codec '{self.codec.name}'", "its packets cannot be added.", code)
        return code

    def check(self, packet: Packet, dim: int, context: RoundContext) -> float:
        return self.codec.codec(dim, None).check(packet, context.client, context.shared)

    def server(self, state: State, packets: Sequence[Packet], seed: PublicSeed, *, noise: float = 0.0) -> tuple[State, None]:
        replica = state.replica
        change = self.codec.codec(len(replica.weights), None).decode(packets, round_seed(seed, replica.round))
        squares = state.own["squares"] + change**2
        step = change / (squares.sqrt() + self.floor)
        return State(replica=stepped(self, replica, step), own={"squares": squares}), None
