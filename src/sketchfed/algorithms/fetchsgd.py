"""FetchSGD: momentum and error accumulate in a count sketch, from which the server fetches the largest coordinates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor, nn

from sketchfed.algorithms.base import Algorithm
from sketchfed.algorithms.round_settings import told_as
from sketchfed.algorithms.settings import SketchSettings
from sketchfed.algorithms.state import Replica, RoundContext, State
from sketchfed.caches import cached
from sketchfed.codecs.linear import LinearCode
from sketchfed.errors import InputError, WireError
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import Sketch, make_sketch
from sketchfed.sketches.elsewhere import desketched
from sketchfed.wire import Bits, Packet, bits_named, expect_kind, tensor_named


@dataclass(frozen=True, kw_only=True)
class FetchSgd(Algorithm):
    """Clients send count sketches of changes. The server keeps momentum and error as sketches and broadcasts k coordinates.

    Paper: Rothchild et al. 2020, Alg. 1: u ← momentum·u + S, e ← e + η·u, Δ = Top-k(U(e)), e ← e − S(Δ), w ← w + Δ (signs as
    for changes, not gradients). The table has `rows` independent count sketches, and U takes the median of their estimates.
    All rounds use the same table, because the same coordinates must accumulate in the same cells. With `masking` (the default,
    and what the authors do in their experiments), the cells that Δ touches are set to zero in e and in u, instead of
    subtracting S(Δ) from e. The printed form diverges if updates have no heavy coordinates, because it subtracts mostly noise
    of the estimates. [sketch] gives the size of the whole table. The downlink carries k indices of ⌈log2 dim⌉ bits and k
    float32 values.
    """

    sketch: SketchSettings = field(default_factory=lambda: SketchSettings(name="count"))
    rows: int = 5
    fetched: int | None = None
    """k, the number of coordinates fetched per round. If absent, a tenth of the table's size."""
    masking: bool = True
    global_momentum: float = told_as("server momentum {:g}", default=0.9)

    name = "fetchsgd"
    summary = "count sketches up, the largest coordinates down"
    source = "Rothchild et al. 2020"
    incremental = True
    own_step = (
        "its momentum and its errors accumulate inside the sketch, after they were multiplied by the rate. What is fetched are "
        "the errors of many rounds in a few coordinates, not the mean change that such an optimiser needs."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sketch.name != "count":
            raise InputError(
                f"algorithm 'fetchsgd' works only with a count sketch, got sketch.name = {self.sketch.name!r}. Use 'count'."
            )
        if (self.sketch.bits, self.sketch.down) != (32, 32):
            given = f"sketch.bits = {self.sketch.bits}" if self.sketch.bits != 32 else f"sketch.bits_down = {self.sketch.down}"
            raise InputError(f"algorithm 'fetchsgd' sends float32 only, got {given}. Remove it.")
        self.sketch.check_up_only(self.name)
        self.sketch.check_whole(self.name)
        if self.rows < 1 or self.rows % 2 == 0:
            raise InputError(f"algorithm.rows must be odd, because the server takes medians over rows; got {self.rows}. Use 5.")
        if self.fetched is not None and self.fetched < 1:
            raise InputError(f"algorithm.fetched must be at least 1, got {self.fetched}.")

    def resolved(self, dim: int, clients: int | None = None, module: nn.Module | None = None) -> Self:
        size = self.sketch.size_for(dim)
        if size < self.rows:
            raise InputError(
                f"a table of {size} cells is too small for {self.rows} rows. Raise sketch.ratio or lower algorithm.rows."
            )
        fetched = self.fetched or max(1, size // 10)
        if fetched > dim:
            raise InputError(f"algorithm.fetched = {fetched:,} exceeds the model's {dim:,} parameters. Lower it.")
        rate = self.global_rate or 1 - self.global_momentum
        return replace(self, sketch=self.sketch.completed(), fetched=fetched, global_rate=rate)

    def begin(self, weights: Tensor) -> State:
        table = torch.zeros(self.rows, self._columns(len(weights)))
        return State(replica=Replica(round=0, weights=weights), own={"momentum": table, "error": table.clone()})

    def code(self, dim: int, context: RoundContext) -> LinearCode:
        columns = self._columns(dim)
        tables = _Tables(_tables(dim, columns, self.rows, context.seed))
        return LinearCode(kind="table", shape=(self.rows, columns), map=tables, anywhere=True)

    def check(self, packet: Packet, dim: int, context: RoundContext) -> float:
        table = tensor_named(expect_kind(packet, "table"), "values", shape=(self.rows, self._columns(dim)))
        return float(table.norm()) / math.sqrt(self.rows)  # each row is a sketch that preserves the norm in expectation

    def server(self, state: State, packets: Sequence[Packet], seed: PublicSeed, *, noise: float = 0.0) -> tuple[State, Packet]:
        dim = len(state.replica.weights)
        total = torch.stack([tensor_named(p, "values", shape=(self.rows, self._columns(dim))) for p in packets]).sum(0)
        momentum = self.global_momentum * state.own["momentum"] + total / sum(packet.clients for packet in packets)
        error = state.own["error"] + self.rate_at(state.replica.round) * momentum
        estimated = self._estimated(error, dim, seed)
        indices = estimated.abs().topk(self._count, sorted=False).indices.sort().values
        values = estimated[indices]
        fetched = self._sketched(torch.zeros(dim).index_copy_(0, indices, values), seed)
        if self.masking:
            kept = fetched == 0
            momentum, error = momentum * kept, error * kept
        else:
            error = error - fetched
        update = Packet(
            kind="fetched", arrays={"indices": Bits(indices, bits=max(1, (dim - 1).bit_length())), "values": values}
        )
        return State(replica=self.follow(state.replica, update, seed), own={"momentum": momentum, "error": error}), update

    def follow(self, replica: Replica, update: Packet, seed: PublicSeed) -> Replica:
        dim = len(replica.weights)
        shape = (self._count,)
        indices = bits_named(expect_kind(update, "fetched"), "indices", shape=shape, bits=max(1, (dim - 1).bit_length()))
        values = tensor_named(update, "values", shape=shape)
        if int(indices[-1]) >= dim or bool((indices[1:] <= indices[:-1]).any()):
            raise WireError(f"the fetched indices must ascend and stay below {dim:,}; these do not.")
        return replace(replica, round=replica.round + 1, weights=replica.weights.index_add(0, indices, values))

    @property
    def _count(self) -> int:
        """The number of coordinates fetched per round."""
        if self.fetched is None:
            raise InputError("algorithm.fetched follows from the model's dimension. Call resolved(dim) first.")
        return self.fetched

    def _columns(self, dim: int) -> int:
        return self.sketch.size_for(dim) // self.rows

    def _sketched(self, x: Tensor, seed: PublicSeed) -> Tensor:
        rows = _Tables(_tables(len(x), self._columns(len(x)), self.rows, seed))
        return rows.apply(x).reshape(self.rows, -1)

    def _estimated(self, table: Tensor, dim: int, seed: PublicSeed) -> Tensor:
        """U: the median over the rows of each coordinate's estimates."""
        sketches = _tables(dim, self._columns(dim), self.rows, seed)
        device = self.sketch.device
        return torch.stack([desketched(*pair, device) for pair in zip(sketches, table, strict=True)]).median(0).values


@dataclass(frozen=True)
class _Tables:
    """Several count sketches, concatenated."""

    rows: tuple[Sketch, ...]

    def apply(self, x: Tensor) -> Tensor:
        return torch.cat([sketch.apply(x) for sketch in self.rows], dim=-1)

    def adjoint(self, y: Tensor) -> Tensor:
        """The mean of the rows' estimates."""
        parts = y.chunk(len(self.rows), dim=-1)
        return torch.stack([sketch.adjoint(part) for sketch, part in zip(self.rows, parts, strict=True)]).mean(0)


@cached(maxsize=4)
def _tables(dim: int, columns: int, rows: int, seed: PublicSeed) -> tuple[Sketch, ...]:
    return tuple(make_sketch("count", dim=dim, size=columns, seed=seed.child("table", row)) for row in range(rows))
