"""Federated averaging: whole models down, updates up by any codec."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from torch import Tensor

from sketchfed.algorithms.base import Algorithm, RoundContext, State, round_seed
from sketchfed.algorithms.settings import TOO_COARSE, CodecSettings, SketchSettings, default_global_rate
from sketchfed.codecs import Codec, Sketched
from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """Clients train from the server's weights and send the change; the server moves by the mean change.

    Paper: McMahan et al. 2017, Alg. 1, with the server step of Reddi et al. 2021 (`global_rate`, `global_momentum`). The mean
    is over clients, each with the same weight, as in Song et al. 2023; McMahan et al. weigh by examples. With
    `error_feedback` a client adds to its update what the codec lost of the last one (Seide et al. 2014; Karimireddy et
    al. 2019). What is lost must then be less than what was sent, or it grows from round to round: an unbiased sketch loses
    about dim/size times as much, so it is taken as the projection (size/dim)·RᵀR.
    """

    codec: CodecSettings = field(default_factory=CodecSettings)
    sketch: SketchSettings | None = None
    error_feedback: bool = False

    name = "fedavg"
    summary = "whole models down, updates up by any codec"
    source = "McMahan et al. 2017"
    incremental = False

    def resolved(self, dim: int) -> Self:
        codec = self._codec(dim)
        if self.error_feedback and isinstance(codec, Sketched) and codec.bits == 1:
            raise InputError(f"one bit a coefficient loses more than it sends, so {TOO_COARSE}")
        rate = default_global_rate(codec.size / dim) if isinstance(codec, Sketched) and not self.error_feedback else 1.0
        return replace(self, global_rate=self.global_rate or rate * (1 - self.global_momentum))

    def client(self, change: Tensor, memory: Tensor | None, context: RoundContext) -> tuple[Packet, Tensor | None]:
        codec = self._codec(len(change))
        wanted = change if memory is None else change + memory
        packet = codec.bare(codec.encode(wanted, context.shared, context.client))
        return packet, wanted - self._mean(codec, [packet], context.shared) if self.error_feedback else None

    def check(self, packet: Packet, dim: int, client: int) -> None:
        self._codec(dim).check(packet, client)

    def server(self, state: State, packets: Sequence[Packet], seed: PublicSeed) -> tuple[State, None]:
        codec = self._codec(len(state.replica.weights))
        mean = self._mean(codec, packets, round_seed(seed, state.replica.round))
        return replace(state, replica=self.moved(state.replica, mean)), None

    def _mean(self, codec: Codec, packets: Sequence[Packet], shared: PublicSeed) -> Tensor:
        mean = codec.decode(packets, shared)
        return mean.mul_(codec.size / codec.dim) if self.error_feedback and isinstance(codec, Sketched) else mean

    def _codec(self, dim: int) -> Codec:
        return self.codec.codec(dim, self.sketch)
