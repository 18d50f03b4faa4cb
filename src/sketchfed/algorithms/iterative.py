"""Iterative sketching: a fresh sketch each round, sketches up and the mean sketch down."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from torch import Tensor

from sketchfed.algorithms.base import Algorithm, Replica, RoundContext, State, round_seed
from sketchfed.algorithms.linear import Heard, LinearCode, RoundTrip
from sketchfed.algorithms.settings import SketchSettings, default_global_rate
from sketchfed.codecs import Sketched
from sketchfed.codecs.rounding import from_packet, to_parts
from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, expect_kind


@dataclass(frozen=True, kw_only=True)
class Iterative(Algorithm):
    """Clients send sketches of their changes, the server broadcasts the mean sketch, everyone de-sketches it.

    Paper: Song et al. 2023, Alg. 1. In round t each client takes K local steps from its replica w, sends R_t(Δw), the
    server averages and broadcasts the *average sketch*, and each party moves by w ← w + η_global·R_tᵀ(average). Both
    directions carry `size` numbers. R_t is drawn anew from the run's seed each round. On top of the paper: coefficients of
    few bits, momentum on either side (its Sec. 8 names it as an extension), partial participation.

    `form = "projection"` moves by (size/dim)·RᵀR instead, the biased but contractive form, and each client keeps what it
    did not get across and adds it to its next change (error feedback). It needs dim numbers of memory a client.
    """

    sketch: SketchSettings = field(default_factory=SketchSettings)
    form: Literal["unbiased", "projection"] = "unbiased"

    name = "iterative"
    summary = "a fresh sketch each round, sketches both ways"
    source = "Song et al. 2023, Alg. 1"
    incremental = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form not in ("unbiased", "projection"):
            raise InputError(f"algorithm.form is 'unbiased' or 'projection', got {self.form!r}.")
        if self.form == "projection" and self.sketch.bits == 1:
            raise InputError(
                "one bit a coefficient loses more than it sends, so the memory of error feedback grows without end. Use "
                "sketch.bits = 2 or more."
            )

    @property
    def replicated(self) -> tuple[str, ...]:
        return ("velocity",) if self.global_momentum else ()

    def resolved(self, dim: int, clients: int | None = None) -> Self:
        self._codec(dim)  # refuses what cannot be sent, now
        rate = 1.0 if self.form == "projection" else default_global_rate(self.sketch.size_for(dim) / dim)
        return replace(self, global_rate=self.global_rate or rate * (1 - self.global_momentum))

    def client(self, change: Tensor, memory: Tensor | None, context: RoundContext) -> tuple[Packet, Tensor | None]:
        codec = self._codec(len(change))
        if self.form == "unbiased":
            return codec.bare(codec.encode(change, context.shared, context.client)), None
        wanted = change if memory is None else change + memory
        packet = codec.bare(codec.encode(wanted, context.shared, context.client))
        return packet, wanted - self._desketched(codec, codec.read(packet, context.shared), context.shared)

    def code(self, dim: int, context: RoundContext) -> LinearCode | None:
        codec = self._codec(dim)
        if self.form == "projection" or not codec.additive:
            return None
        return LinearCode(kind=codec.name, shape=(codec.size,), map=codec.sketch(context.shared))

    def heard(self, packet: Packet, dim: int, context: RoundContext) -> Heard:
        codec = self._codec(dim)
        return Heard(codec.read(packet, context.shared) / packet.clients, codec.sketch(context.shared))

    def told(self, update: Packet, replica: Replica, seed: PublicSeed) -> Heard:
        codec, shared = self._codec(len(replica.weights)), round_seed(seed, replica.round)
        return Heard(self._mean(codec, update, shared), codec.sketch(shared))

    def between(self, before: Replica, after: Replica, seed: PublicSeed) -> Heard | None:
        found = super().between(before, after, seed)
        if found is None:
            return None
        sketch = self._codec(len(before.weights)).sketch(round_seed(seed, before.round))
        scale = 1.0 if self.form == "unbiased" else sketch.dim / sketch.size
        return Heard(found.values * scale, RoundTrip.of(sketch))

    @property
    def sends(self) -> str:
        how = "form = 'projection'" if self.form == "projection" else f"sketch.bits = {self.sketch.bits}"
        return f"algorithm '{self.name}' with {how}"

    def check(self, packet: Packet, dim: int, context: RoundContext) -> float:
        return self._codec(dim).check(packet, context.client, context.shared)

    def server(self, state: State, packets: Sequence[Packet], seed: PublicSeed, *, noise: float = 0.0) -> tuple[State, Packet]:
        dim, shared = len(state.replica.weights), round_seed(seed, state.replica.round)
        mean = self._codec(dim).mean(packets, shared)
        arrays, scalars = to_parts(mean, bits=self.sketch.down, seed=shared.child("down"))
        update = Packet(kind="mean", arrays=arrays, scalars=scalars)
        return replace(state, replica=self.follow(state.replica, update, seed)), update

    def follow(self, replica: Replica, update: Packet, seed: PublicSeed) -> Replica:
        dim, shared = len(replica.weights), round_seed(seed, replica.round)
        codec = self._codec(dim)
        return self.moved(replica, self._desketched(codec, self._mean(codec, update, shared), shared))

    def _mean(self, codec: Sketched, update: Packet, shared: PublicSeed) -> Tensor:
        """The mean sketch that was broadcast."""
        return from_packet(expect_kind(update, "mean"), size=codec.size, bits=self.sketch.down, seed=shared.child("down"))

    def _desketched(self, codec: Sketched, y: Tensor, shared: PublicSeed) -> Tensor:
        desketched = codec.sketch(shared).adjoint(y)
        return desketched if self.form == "unbiased" else desketched.mul_(codec.size / codec.dim)

    def _codec(self, dim: int) -> Sketched:
        return self.sketch.codec(dim)
