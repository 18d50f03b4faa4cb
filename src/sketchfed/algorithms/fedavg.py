"""Federated averaging: whole models down, updates up by any codec."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from sketchfed.algorithms.base import Algorithm, Replica, RoundContext, State, cohort, round_seed
from sketchfed.algorithms.linear import Heard, LinearCode, LinearMap, RoundTrip
from sketchfed.algorithms.settings import CodecSettings, SketchSettings, default_global_rate
from sketchfed.codecs import Codec, Sketched
from sketchfed.codecs.feedback import encode_with_memory
from sketchfed.codecs.prediction import prediction_gain
from sketchfed.codecs.qsgd import Qsgd
from sketchfed.codecs.rand_k import RandK
from sketchfed.codecs.sign import Sign
from sketchfed.codecs.spatial import Spatial
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """Clients train from the server's weights and send the change; the server moves by the mean change.

    Paper: McMahan et al. 2017, Alg. 1, with the server step of Reddi et al. 2021 (`global_rate`, `global_momentum`). The mean
    is over clients, each with the same weight, as in Song et al. 2023; McMahan et al. weigh by examples. With
    `error_feedback` a client adds to its update what the codec lost of the last one (Seide et al. 2014; Karimireddy et
    al. 2019). What is lost must then be less than what was sent, or it grows from round to round: an unbiased sketch loses
    about dim/size times as much, so it is taken as the projection (size/dim)·RᵀR, and so for other codecs (`Codec.shrinkage`).

    With `prediction` clients send how their change differs from a prediction p, which travels down with the model, and the
    server adds p back: Rand-k-Temporal of Jhunjhunwala et al. 2021 for any codec, where p is the last decoded mean, or follows
    it as fast as errors do not grow (`codecs.prediction`). What is subtracted from every change is added to their mean,
    so error feedback goes with it: what got across and what is kept are still all that was wanted.
    """

    codec: CodecSettings = field(default_factory=CodecSettings)
    sketch: SketchSettings | None = None
    error_feedback: bool = False
    prediction: bool = False

    name = "fedavg"
    summary = "whole models down, updates up by any codec"
    source = "McMahan et al. 2017"
    incremental = False

    @property
    def replicated(self) -> tuple[str, ...]:
        return ("prediction",) if self.prediction else ()

    def resolved(self, dim: int, clients: int | None = None) -> Self:
        planned = replace(self, codec=self.codec.completed(None if clients is None else self.planned(clients)))
        codec = planned._codec(dim)
        rate = default_global_rate(codec.shrinkage) if codec.unbiased and not self.error_feedback else 1.0
        return replace(planned, global_rate=self.global_rate or rate * (1 - self.global_momentum))

    def begin(self, weights: Tensor) -> State:
        state = super().begin(weights)
        if self.prediction:
            state = replace(state, replica=replace(state.replica, prediction=torch.zeros_like(weights)))
        learns = type(self._codec(len(weights))).learn is not Codec.learn
        return replace(state, own={"knowledge": torch.zeros(0)}) if learns else state

    def client(self, change: Tensor, memory: Tensor | None, context: RoundContext) -> tuple[Packet, Tensor | None]:
        codec = self._codec(len(change))
        expected = None if context.replica is None else context.replica.prediction
        new = change if expected is None else change - expected
        client = self._place(context) if codec.shares_dice else context.client
        if not self.error_feedback:
            return codec.bare(codec.encode(new, context.shared, client)), None
        packet, memory = encode_with_memory(codec, new, memory, context.shared, client)
        return codec.bare(packet), memory

    def code(self, dim: int, context: RoundContext) -> LinearCode | None:
        codec = self._codec(dim)
        if not codec.additive or self.error_feedback or self.prediction:
            return None
        sketch = codec.sketch(context.shared) if isinstance(codec, Sketched) else None
        return LinearCode(kind=codec.name, shape=(dim if sketch is None else sketch.size,), map=sketch)

    def heard(self, packet: Packet, dim: int, context: RoundContext) -> Heard:
        """By the linear map of the codec, if it has one, or as what it decodes from this packet alone.

        Where coordinates are chosen by what they hold, as the largest are, those that were not sent are known to be small, as
        decoded. What error feedback added of earlier rounds is in it, too.
        """
        codec = self._codec(dim)
        expected = None if context.replica is None else context.replica.prediction
        known: LinearMap | None
        if isinstance(codec, Sketched):
            values, known = codec.read(packet, context.shared) / packet.clients, codec.sketch(context.shared)
        else:
            values, known = codec.decode([packet], context.shared), _linear(codec, context.shared, context.client)
        if expected is not None:
            values = values + (expected if known is None else known.apply(expected))
        return Heard(values, known)

    def between(self, before: Replica, after: Replica, seed: PublicSeed) -> Heard | None:
        found, codec = super().between(before, after, seed), self._codec(len(before.weights))
        if found is None:
            return None
        known = RoundTrip.of(codec.sketch(round_seed(seed, before.round))) if isinstance(codec, Sketched) else None
        expected = torch.zeros_like(found.values) if before.prediction is None else before.prediction
        decoded = (found.values - expected) / (codec.shrinkage if self.error_feedback else 1.0)
        return Heard(decoded + (expected if known is None else known.apply(expected)), known)

    @property
    def sends(self) -> str:
        if self.error_feedback or self.prediction:
            return f"{'error feedback' if self.error_feedback else 'prediction'} around codec '{self.codec.name}'"
        options = self.codec.options.get("precision") or (self.sketch and self.sketch.bits < 32 and f"{self.sketch.bits} bits")
        return f"codec '{self.codec.name}'" + (f" with {options}" if options else "")

    def _place(self, context: RoundContext) -> int:
        """Which of the clients of the round this one is."""
        if context.population is None:
            return context.client
        count = self.planned(context.population)
        clients = cohort(context.seed, context.round, population=context.population, count=count)
        return clients.index(context.client) if context.client in clients else context.client

    def check(self, packet: Packet, dim: int, context: RoundContext) -> float:
        return self._codec(dim).check(packet, context.client, context.shared)

    def server(self, state: State, packets: Sequence[Packet], seed: PublicSeed, *, noise: float = 0.0) -> tuple[State, None]:
        codec, shared = self._codec(len(state.replica.weights)), round_seed(seed, state.replica.round)
        kept = state.own.get("knowledge")
        knowledge = kept if kept is not None and kept.numel() else None
        new = codec.decode(packets, shared, knowledge)
        if self.error_feedback:
            new = codec.shrinkage * new
        learnt = codec.learn(packets, shared, knowledge)
        own = state.own if learnt is None else {"knowledge": learnt}
        expected = state.replica.prediction
        if expected is None:
            return State(replica=self.moved(state.replica, new), own=own), None
        prediction = torch.add(expected, new, alpha=self._gain(codec))
        return State(replica=replace(self.moved(state.replica, expected + new), prediction=prediction), own=own), None

    def _gain(self, codec: Codec) -> float:
        return prediction_gain(codec, clients=codec.clients or 1, error_feedback=self.error_feedback)

    def _codec(self, dim: int) -> Codec:
        return self.codec.codec(dim, self.sketch)


def _linear(codec: Codec, seed: PublicSeed, client: int) -> RoundTrip | None:
    """What a codec leaves of a vector, but for rounding, where what it sends was drawn without looking at the vector."""
    if isinstance(codec, RandK | Spatial):
        exact: Codec = replace(codec, bits=32)
    elif isinstance(codec, Qsgd | Sign) and codec.personal:
        exact = RandK(dim=codec.dim, size=codec.sent)  # it draws the same coordinates
    else:
        return None

    def through(x: Tensor) -> Tensor:
        rows = [exact.decode([exact.encode(row, seed, client)], seed) for row in x.reshape(-1, codec.dim)]
        return torch.stack(rows).to(x).reshape(x.shape)

    return RoundTrip(through)
