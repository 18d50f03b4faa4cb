"""Iterative sketching: a new sketch each round. Clients send sketches and the server sends the mean sketch."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from torch import Tensor, nn

from sketchfed.algorithms.base import Algorithm, stepped
from sketchfed.algorithms.cohorts import round_seed
from sketchfed.algorithms.combined import combined_values
from sketchfed.algorithms.forms import WholeModel
from sketchfed.algorithms.replicas import followed
from sketchfed.algorithms.round_settings import told_as
from sketchfed.algorithms.segments import last_number
from sketchfed.algorithms.settings import SketchSettings, default_global_rate
from sketchfed.algorithms.state import Change, Replica, RoundContext, State
from sketchfed.codecs import SketchCodec
from sketchfed.codecs.base import count
from sketchfed.codecs.linear import LinearCode
from sketchfed.errors import InputError, NotLinearError, WireError
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, expect_kind


@dataclass(frozen=True, kw_only=True)
class Iterative(Algorithm):
    """Clients send sketches of their changes, the server broadcasts the mean sketch, and everyone de-sketches it.

    Paper: Song et al. 2023, Alg. 1. In round t, each client takes K local steps from its replica w and sends R_t(Δw). The
    server broadcasts the *average sketch*, and each party moves by w ← w + η_global·R_tᵀ(average). Both directions carry `size`
    numbers. R_t is drawn anew from the run's seed each round. Additions to the paper: coefficients of few bits, momentum on
    either side (which its Sec. 8 mentions as an extension), and partial participation.

    `form = "projection"` moves by (size/dim)·RᵀR instead. This form is biased but contractive. Each client keeps the part of
    its change that was lost and adds it to its next change (error feedback). This needs dim numbers of memory per client.

    With `sketch.plain` or `sketch.blocks`, R_t is a direct sum: a sketch for each block of parameters, and the identity for
    plain ones. The projection then has its own size/dim in each block, and 1 for plain parameters.
    """

    sketch: SketchSettings = field(default_factory=SketchSettings)
    form: Literal["unbiased", "projection"] = told_as("projection", default="unbiased")

    name = "iterative"
    summary = "a fresh sketch each round, sketches both ways"
    source = "Song et al. 2023, Alg. 1"
    incremental = True
    own_step = ""
    same_start = (
        "each round has a sketch of its own, so updates that began in different rounds come in different sketches, and clients "
        "follow the mean of one. Use algorithm 'fedavg' with codec 'sketched', which decodes each update by itself."
    )
    alone = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form not in ("unbiased", "projection"):
            raise InputError(f"algorithm.form must be 'unbiased' or 'projection', got {self.form!r}.")
        if self.form == "projection" and self.sketch.bits == 1:
            raise InputError(
                "with one bit per coefficient the error exceeds the update, so the memory of error feedback grows without "
                "bound. Use sketch.bits = 2 or more."
            )
        if self.correction and (self.form == "projection" or (self.sketch.bits, self.sketch.down) != (32, 32)):
            given = (
                "form = 'projection'" if self.form == "projection" else f"sketch.bits = {self.sketch.bits}/{self.sketch.down}"
            )
            raise InputError(
                f"{self.correction} does not go with {given} of algorithm 'iterative': what the server keeps would drift away "
                "from what clients keep, by what is lost on the way down. Use 32 bits and form = 'unbiased', or algorithm "
                "'fedavg' with codec 'sketched', which takes few bits up."
            )

    @property
    def by_layer(self) -> bool:  # type: ignore[override]
        return self.sketch.by_name

    def resolved(self, dim: int, clients: int | None = None, module: nn.Module | None = None) -> Self:
        segments = self.segmented(dim, clients, module)
        sketch = self.sketch.completed(module, segments)
        codec = sketch.codec(dim if segments is None else segments.dim)  # raises an error now if the settings are impossible
        if segments is not None:
            segments = replace(segments, gain=codec.shrinkage)
        rate = 1.0 if self.form == "projection" else default_global_rate(codec.share)
        return replace(self, sketch=sketch, global_rate=self.resolved_rate(rate), _segments=segments)

    def given(self, seed: PublicSeed, index: int) -> WholeModel:
        return WholeModel(self.carried)

    def client(self, change: Change, memory: Tensor | None, context: RoundContext) -> tuple[Packet, Tensor | None]:
        codec, shared = self._codec(change.dim), context.shared
        code = codec.linear(shared, context.client)
        if self.form == "unbiased" and code.additive:
            return code.packet(change.through(code)), None
        if self.form == "unbiased":
            return codec.bare(codec.encode(change.unmoved, shared, context.client)), None
        wanted = change.values if memory is None else change.values + memory
        packet = codec.bare(codec.encode(wanted, shared, context.client))
        return packet, wanted - self.desketched(codec.read(packet, shared), shared, change.dim)

    def code(self, dim: int, context: RoundContext) -> LinearCode:
        code, subject = self._codec(dim).linear(context.shared, context.client), f"algorithm '{self.name}' with "
        if self.form == "projection":
            raise NotLinearError(f"{subject}form = 'projection'", "what a client sends also depends on earlier rounds.", code)
        if not code.additive:
            raise NotLinearError(
                f"{subject}sketch.bits = {self.sketch.bits}", "each packet is rounded to its own levels.", code
            )
        return code

    def check(self, packet: Packet, dim: int, context: RoundContext) -> float:
        codec = self._codec(dim)
        norm = codec.check(packet, context.client, context.shared)
        if self._segments is not None and self._segments.weight:
            self._segments.check_weight(last_number(codec, packet, context), context.client)
        return norm

    def server(self, state: State, packets: Sequence[Packet], seed: PublicSeed, *, noise: float = 0.0) -> tuple[State, Packet]:
        codec, shared = self._codec(len(state.replica.weights)), round_seed(seed, state.replica.round)
        mean = combined_values(packets, codec.size)
        if mean is None:
            mean = codec.mean(packets, shared)
        arrays, scalars = codec.rounded(mean, bits=self.sketch.down, seed=shared.child("down"))
        update = Packet(kind="mean", arrays=arrays, scalars=scalars, clients=count(packets) if self.correction else 1)
        return replace(state, replica=self.follow(state.replica, update, seed)), update

    def follow(self, replica: Replica, update: Packet, seed: PublicSeed) -> Replica:
        dim, shared = len(replica.weights), round_seed(seed, replica.round)
        mean = self.mean_sketch(update, shared, dim)
        self._check_clients(update)

        def step() -> Replica:
            return stepped(self, replica, self.desketched(mean, shared, dim), clients=update.clients, overwrite=True)

        return followed(replica, self, shared, mean, step, clients=update.clients)

    def _check_clients(self, update: Packet) -> None:
        most = None if self._segments is None else self._segments.population
        if most is not None and update.clients > most:
            raise WireError(f"the update stands for {update.clients:,} clients, and the run has {most:,}.")

    def decoded(self, x: Tensor, context: RoundContext) -> Tensor:
        """What the server decodes of one client's vector, for corrections of its steps."""
        codec = self._codec(len(x))
        return codec.decode([codec.encode(x, context.shared, context.client)], context.shared)

    def decoded_alone(self, packet: Packet, dim: int, context: RoundContext) -> Tensor:
        """Read the sketch in one client's packet, for combine rules."""
        return self._codec(dim).read(packet, context.shared)

    def mean_sketch(self, update: Packet, shared: PublicSeed, dim: int) -> Tensor:
        """The mean sketch `(size,)` in a broadcast update."""
        return self._codec(dim).numbers(expect_kind(update, "mean"), bits=self.sketch.down, seed=shared.child("down"))

    def desketched(self, y: Tensor, shared: PublicSeed, dim: int) -> Tensor:
        """Compute Rᵀy, or (size/dim)·Rᵀy for the projection, `(dim,)`."""
        codec = self._codec(dim)
        desketched = codec.desketched(y, shared)
        return desketched if self.form == "unbiased" else desketched.mul_(codec.shares)

    def _codec(self, dim: int) -> SketchCodec:
        return self.sketch.codec(dim)
