"""Double-blind collaborative learning: clients train sketches of the weights and send back only sketches."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, get_args

import torch
from torch import Tensor, nn

from sketchfed.algorithms.base import Algorithm, stepped
from sketchfed.algorithms.cohorts import round_seed
from sketchfed.algorithms.settings import DEFAULT_RATIO, SketchSettings
from sketchfed.algorithms.state import Replica, RoundContext, State
from sketchfed.caches import cached
from sketchfed.codecs.linear import LinearCode
from sketchfed.errors import InputError, WireError
from sketchfed.nn import sketch_size
from sketchfed.nn.model_sketch import ModelSketch
from sketchfed.nn.structure import Structure, Way, structure_of
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import make_sketch
from sketchfed.training import Trainer
from sketchfed.vectors import sharing
from sketchfed.wire import Packet, expect_kind, tensor_named

log = logging.getLogger("sketchfed")


@dataclass(frozen=True, kw_only=True)
class Dbcl(Algorithm):
    """The server keeps W. Clients get W̃ = WS with a new S each round, train it, and return U. W moves by mean(U)Sᵀ.

    Paper: Zhang & Wang 2021, Sec. 4.2, whose own code sends whole weights instead. A client trains W through S: with
    Γ = ∂L/∂W̃, it updates U ← U − ηΓ and continues from W̃ + U·SᵀS. One local step of all clients is the paper's distributed
    SGD, and local epochs are its FedAvg. Prediction uses W itself (App. B.1). The paper treats dense layers and
    convolutions. LSTM, GRU, RNN and attention, with an S for each of their matrices, are our extension.

    The server sends the seed of the sketches, W̃ of each sketched layer, and everything that is not sketched: the output layer,
    biases and normalisation. Clients send U and the changes of the rest. The output layer and the biases of sketched layers
    leak information, so `output` and `biases` can also be sketched or withheld. A sketched bias is one more column of W.
    Withheld biases are zero, and a withheld output layer has fixed values that anyone can rebuild. `weight_decay` decays what
    a client sees: decay·WSSᵀ, which is decay·W on average.

    **Blind is not private.** No client receives W and the server receives no plain gradient, but both can be estimated from the
    messages: a client can combine many rounds, and a server can search for inputs whose Γ matches. Moreover, if a bucket
    holds a single coordinate, that column of W is sent in the clear. This applies to all columns with `sampling`, an eighth of
    them with `count` at half the size, and none with `balanced` up to half the size. Only calibrated noise ([privacy]) bounds
    what can be learned, and only secure sums ([secure]) hide single replies.
    """

    sketch: SketchSettings = field(default_factory=lambda: SketchSettings(name="balanced", ratio=0.5))
    """The sketch family. Its size is a share of each layer's inputs (`ratio`) or an upper limit for every layer (`size`)."""
    vary: float = 0.0
    """Each round draws a new size for each layer's sketch. It is smaller than the full size by at most this share."""
    exclude: list[str] = field(default_factory=list)
    """The names of layers that are not sketched, in addition to the output layer."""
    output: Way = "plain"
    biases: Way = "plain"
    public_start: bool = False
    _structure: Structure | None = None

    name = "dbcl"
    summary = "sketches of the weights down, sketched changes up"
    source = "Zhang & Wang 2021"
    incremental = False
    shows_weights = False
    by_layer = True
    own_step = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.vary < 1:
            raise InputError(f"algorithm.vary is a share of a sketch's size, so it must be from 0 to below 1, got {self.vary}.")
        for setting in ("output", "biases"):
            if getattr(self, setting) not in get_args(Way):
                raise InputError(
                    f"algorithm.{setting} must be 'plain', 'sketched' or 'withheld', got {getattr(self, setting)!r}."
                )
        if (self.sketch.bits, self.sketch.down) != (32, 32):
            raise InputError(
                f"sketch.bits = {min(self.sketch.bits, self.sketch.down)}: algorithm 'dbcl' sends its sketches as float32. "
                "Remove sketch.bits, or choose a smaller sketch.ratio."
            )
        self.sketch.check_up_only(self.name)
        self.sketch.check_whole(self.name)

    def resolved(self, dim: int, clients: int | None = None, module: nn.Module | None = None) -> Self:
        structure = self._structure
        if module is not None:
            if sharing(module).personal:
                raise InputError(
                    "model.personal does not go with algorithm 'dbcl', whose clients train another form of the model, in which "
                    "nothing is their own. Remove it, leave the output layer out with algorithm.output = 'withheld', or choose "
                    "another algorithm."
                )
            structure = structure_of(module, exclude=self.exclude, output=self.output, biases=self.biases)
        return replace(self, sketch=self.sketch.completed(), global_rate=self.resolved_rate(1.0), _structure=structure)

    def begin(self, weights: Tensor) -> State:
        state = super().begin(weights.clone())
        views, form = self._fit.layout.views(state.replica.weights), self._sketch_at(PublicSeed(0), 0)
        for name, values in form.fixed().items():
            views[name].copy_(values)
        plain = [name for name, view in views.items() if view.ndim > 1 and name in {*form.seen.names} - form.sketches.keys()]
        if plain:
            log.info("dbcl: clients see these weights as they are: %s", ", ".join(plain))
        return state

    def _sketch_at(self, seed: PublicSeed, index: int) -> ModelSketch:
        """The sketches of a round."""
        shared = _sketch_seed(seed, index)
        sizes = tuple(self._size(inputs, shared.child("size", layer)) for layer, (_, inputs) in enumerate(self._fit.weights))
        return _drawn(self._fit, self.sketch.name, tuple(sorted(self.sketch.options.items())), sizes, shared)

    def given(self, seed: PublicSeed, index: int) -> "SketchedModel":
        return SketchedModel(sketch=self._sketch_at(seed, index), seed=_sketch_seed(seed, index), index=index)

    def code(self, dim: int, context: RoundContext) -> LinearCode:
        size, most = self._sketch_at(context.seed, context.round).size, self._largest.size
        return LinearCode(kind=self.name, shape=(size,), map=None, padding=most - size)

    def check(self, packet: Packet, dim: int, context: RoundContext) -> float:
        return float(self._values(packet, self._sketch_at(context.seed, context.round)).norm())

    def server(self, state: State, packets: Sequence[Packet], seed: PublicSeed, *, noise: float = 0.0) -> tuple[State, None]:
        form = self._sketch_at(seed, state.replica.round)
        total = torch.stack([self._values(packet, form) for packet in packets]).sum(0)
        mean = total / sum(packet.clients for packet in packets)
        return State(replica=stepped(self, state.replica, form.adjoint(mean)), own=state.own), None

    def _values(self, packet: Packet, form: ModelSketch) -> Tensor:
        return tensor_named(expect_kind(packet, self.name), "values", shape=(form.size,))

    @property
    def _fit(self) -> Structure:
        if self._structure is None:
            raise InputError(
                "algorithm 'dbcl' sketches the model's layers, which it does not know. Call resolved(dim, module=...) first."
            )
        return self._structure

    @property
    def _largest(self) -> ModelSketch:
        """Sketches of the largest size that a round can have."""
        return replace(self, vary=0.0)._sketch_at(PublicSeed(0), 0)

    def _size(self, inputs: int, seed: PublicSeed) -> int:
        """The size of a layer's sketch. It is drawn from a range if sizes vary."""
        most = sketch_size(inputs, ratio=self.sketch.ratio or DEFAULT_RATIO, size=self.sketch.size)
        least = max(1, most - round(self.vary * most))
        if least == most:
            return most  # drawing is slow, and this is called for every client
        return least + int(seed.words(1)[0]) % (most - least + 1)


@dataclass(frozen=True, kw_only=True)
class SketchedModel:
    """W̃ for a round's sketches, the parameters that are not sketched, and the seed. Nothing else leaves the server."""

    sketch: ModelSketch
    seed: PublicSeed
    index: int

    trains = True

    def packet(self, replica: Replica) -> Packet:
        seen = self.sketch.apply(replica.weights)
        return Packet(kind="snapshot", arrays={"weights": seen}, scalars={"round": replica.round}, seed=self.seed)

    def replica(self, packet: Packet, dim: int) -> Replica:
        expect_kind(packet, "snapshot")
        if packet.seed != self.seed:
            raise WireError(
                f"the sketches of round {self.index} were not drawn from the run's seed, so somebody may have chosen them. "
                "This client does not take part; check that server and client run the same configuration."
            )
        return Replica(round=self.index, weights=tensor_named(packet, "weights", shape=(self.sketch.size,)))

    def trainer(self, trainer: Trainer) -> Trainer:
        return trainer.sketched(self.sketch)


def _sketch_seed(seed: PublicSeed, index: int) -> PublicSeed:
    return round_seed(seed, index).child("sketch")


@cached(maxsize=4)
def _drawn(
    structure: Structure, family: str, options: tuple[tuple[str, Any], ...], sizes: tuple[int, ...], seed: PublicSeed
) -> ModelSketch:
    """The server and all clients of a round use the same object, so its random numbers are drawn only once."""
    layers = tuple(
        (weight, make_sketch(family, dim=inputs, size=size, seed=seed.child("layer", index), **dict(options)))
        for index, ((weight, inputs), size) in enumerate(zip(structure.weights, sizes, strict=True))
    )
    return ModelSketch(layout=structure.layout, layers=layers, folded=structure.folded, withheld=structure.withheld)
