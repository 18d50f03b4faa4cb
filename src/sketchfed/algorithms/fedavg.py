"""Federated averaging: the server sends whole models, and clients send updates with any codec."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor, nn

from sketchfed.algorithms.base import Algorithm, stepped
from sketchfed.algorithms.cohorts import cohort, round_seed
from sketchfed.algorithms.combined import combined_values
from sketchfed.algorithms.forms import WholeModel
from sketchfed.algorithms.round_settings import told_as
from sketchfed.algorithms.segments import last_number
from sketchfed.algorithms.settings import CodecSettings, SketchSettings, default_global_rate
from sketchfed.algorithms.state import Change, RoundContext, State
from sketchfed.codecs import CODECS, Codec
from sketchfed.codecs.base import count
from sketchfed.codecs.feedback import encode_with_memory
from sketchfed.codecs.linear import LinearCode
from sketchfed.codecs.prediction import prediction_gain
from sketchfed.errors import InputError, NotLinearError
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """Clients train from the server's weights and send the change. The server moves by the mean change.

    Paper: McMahan et al. 2017, Alg. 1, with the server step of Reddi et al. 2021 (`global_rate`, `global_momentum`,
    `server_optimiser`). The mean gives each client the same weight, as in Song et al. 2023. McMahan et al. weight clients by
    their number of examples. With `error_feedback`, a client adds the error of its last packet to its next update (Seide et al.
    2014; Karimireddy et al. 2019). The error must be smaller than the update, or it grows from round to round. The error of an
    unbiased sketch is about dim/size times as large, so the sketch is used as the projection (size/dim)·RᵀR. `Codec.shrinkage`
    does the same for other codecs.

    With `prediction`, clients send the difference between their change and a prediction p, which the server sends with the
    model, and the server adds p back. This is Rand-k-Temporal of Jhunjhunwala et al. 2021 for any codec. p is the last decoded
    mean, or follows it as fast as possible without letting errors grow (`codecs.prediction`). Because p is subtracted from
    every change and added to their mean, `prediction` can be combined with error feedback: what arrives and what is kept still
    add up to the whole change.
    """

    codec: CodecSettings = field(default_factory=CodecSettings)
    sketch: SketchSettings | None = None
    """The sketch that the codec 'sketched' sends. No other codec uses it."""
    error_feedback: bool = told_as("error feedback", default=False)
    prediction: bool = told_as("prediction", default=False)

    name = "fedavg"
    summary = "whole models down, updates up by any codec"
    source = "McMahan et al. 2017"
    incremental = False
    own_step = ""
    alone = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.codec.name == "sketched":
            object.__setattr__(self, "sketch", self.sketch or SketchSettings())
        elif self.sketch is not None:
            other = "choose algorithm 'iterative', " if self.served else ""
            raise InputError(
                f"[sketch] is not used by algorithm '{self.name}' unless its codec is 'sketched'. Add [codec] with name = "
                f'"sketched", {other}or remove [sketch].'
            )
        if self.sketch is not None:
            self.sketch.check_up_only(self.name)

    @property
    def by_layer(self) -> bool:  # type: ignore[override]
        return self.codec.by_name or (self.sketch is not None and self.sketch.by_name)

    @property
    def same_start(self) -> str:  # type: ignore[override]
        if type(self).server is not FedAvg.server:
            return Algorithm.same_start  # a subclass may look at the packets of all clients
        if self.prediction:
            return "clients subtract the prediction that they were sent, and the server has another one. Remove prediction."
        if CODECS[self.codec.name].joint:
            return (
                f"codec '{self.codec.name}' decodes the packets of one round together. Use a codec that decodes each by "
                "itself, such as 'sketched' or 'qsgd'."
            )
        return ""

    def resolved(self, dim: int, clients: int | None = None, module: nn.Module | None = None) -> Self:
        codec_settings = self.codec.completed(None if clients is None else self.planned(clients), module)
        segments = self.segmented(dim, clients, module)
        sketch = None if self.sketch is None else self.sketch.completed(module, segments)
        planned = replace(self, codec=codec_settings, sketch=sketch, _segments=segments)
        codec = planned._codec(dim if segments is None else segments.dim)
        if segments is not None:
            self._check_corrections(codec)
            planned = replace(planned, _segments=replace(segments, gain=codec.shrinkage))
        rate = default_global_rate(codec.shrinkage) if codec.unbiased and not self.error_feedback else 1.0
        return replace(planned, global_rate=self.resolved_rate(rate))

    def begin(self, weights: Tensor) -> State:
        state = super().begin(weights)
        weights = state.replica.weights
        if self.prediction:
            state = replace(state, replica=replace(state.replica, prediction=torch.zeros_like(weights)))
        learns = type(self._codec(len(weights))).learn is not Codec.learn
        return replace(state, own={"knowledge": torch.zeros(0)}) if learns else state

    def given(self, seed: PublicSeed, index: int) -> WholeModel:
        return WholeModel(("prediction",) if self.prediction else ())

    def client(self, change: Change, memory: Tensor | None, context: RoundContext) -> tuple[Packet, Tensor | None]:
        codec = self._codec(change.dim)
        code = None if self.error_feedback or self.prediction else codec.linear(context.shared, context.client)
        if code is not None and code.additive:
            return code.packet(change.through(code)), None
        expected = None if context.replica is None else context.replica.prediction
        plain = expected is None and not self.error_feedback
        new = change.unmoved if plain else change.values if expected is None else change.values - expected
        client = self._place(context) if codec.shares_dice else context.client
        if not self.error_feedback:
            return codec.bare(codec.encode(new, context.shared, client)), None
        packet, memory = encode_with_memory(codec, new, memory, context.shared, client)
        return codec.bare(packet), memory

    def code(self, dim: int, context: RoundContext) -> LinearCode:
        code, subject = self._codec(dim).linear(context.shared, context.client), f"codec '{self.codec.name}'"
        if self.error_feedback or self.prediction:
            added = "error feedback" if self.error_feedback else "prediction"
            raise NotLinearError(f"{added} around {subject}", "what a client sends also depends on earlier rounds.", code)
        if code is None:
            raise NotLinearError(subject, "what it sends is not a linear function of the update.")
        if not code.exact:
            precision = self.codec.options.get("precision") or f"{self._bits} bits"
            raise NotLinearError(f"{subject} with {precision}", "each packet is rounded to its own levels.", code)
        if not code.shared:
            raise NotLinearError(subject, "each client makes its own random choice of what it sends.", code)
        return code

    def check(self, packet: Packet, dim: int, context: RoundContext) -> float:
        codec = self._codec(dim)
        norm = codec.check(packet, context.client, context.shared)
        if self._segments is not None and self._segments.weight:
            self._segments.check_weight(last_number(codec, packet, context), context.client)
        return norm

    def server(self, state: State, packets: Sequence[Packet], seed: PublicSeed, *, noise: float = 0.0) -> tuple[State, None]:
        codec, shared = self._codec(len(state.replica.weights)), round_seed(seed, state.replica.round)
        kept = state.own.get("knowledge")
        knowledge = kept if kept is not None and kept.numel() else None
        combined = combined_values(packets, codec.dim)
        new = codec.decode(packets, shared, knowledge) if combined is None else combined
        if self.error_feedback:
            new = codec.shrinkages * new
        learnt = codec.learn(packets, shared, knowledge) if combined is None else None
        own = state.own if learnt is None else {"knowledge": learnt}
        expected, clients = state.replica.prediction, count(packets)
        if expected is None:
            return State(replica=stepped(self, state.replica, new, clients=clients), own=own), None
        prediction = torch.add(expected, new, alpha=self._gain(codec))
        return State(replica=replace(stepped(self, state.replica, expected + new), prediction=prediction), own=own), None

    def decoded(self, x: Tensor, context: RoundContext) -> Tensor:
        """What the server decodes of one client's vector, for corrections of its steps."""
        codec = self._codec(len(x))
        return codec.decode([codec.encode(x, context.shared, context.client)], context.shared)

    def decoded_alone(self, packet: Packet, dim: int, context: RoundContext) -> Tensor:
        """Decode one client's packet, for combine rules. Codecs that decode packets jointly gain nothing then."""
        return self._codec(dim).decode([packet], context.shared)

    def _place(self, context: RoundContext) -> int:
        """The client's position among the clients of the round."""
        if context.population is None:
            return context.client
        count = self.planned(context.population)
        clients = cohort(context.seed, context.round, population=context.population, count=count)
        return clients.index(context.client) if context.client in clients else context.client

    def _gain(self, codec: Codec) -> float:
        return prediction_gain(codec, clients=codec.clients or 1, error_feedback=self.error_feedback)

    @property
    def _bits(self) -> int:
        return int(self.codec.options.get("bits", 32)) if self.sketch is None else self.sketch.bits

    def _codec(self, dim: int) -> Codec:
        return self.codec.codec(dim, self.sketch, self._segments)

    def _check_corrections(self, codec: Codec) -> None:
        """Refuse corrections of local steps where a client cannot know what the server decodes of its own vector."""
        if not self.correction:
            return
        if self.error_feedback or self.prediction:
            raise InputError(
                f"{self.correction} does not go with error_feedback or prediction: what a client keeps for it is a memory "
                "of its own, and each client must know what the server decodes of its part. Remove them."
            )
        if codec.joint:
            raise InputError(
                f"{self.correction} does not go with codec '{self.codec.name}', which decodes all packets together, so "
                "a client cannot know what the server decodes of its part. Use another codec, such as 'sketched' or 'qsgd'."
            )
