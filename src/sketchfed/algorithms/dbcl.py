"""Double-blind collaborative learning: clients train sketches of the weights, and say only sketches back."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Self, get_args

import torch
from torch import Tensor, nn

from sketchfed.algorithms.base import Algorithm, Replica, RoundContext, State, round_seed
from sketchfed.algorithms.linear import Coordinates, Heard, LinearCode
from sketchfed.algorithms.settings import DEFAULT_RATIO, SketchSettings
from sketchfed.errors import InputError, WireError
from sketchfed.nn import sketch_size
from sketchfed.nn.model_sketch import ModelSketch
from sketchfed.nn.structure import Structure, Way, structure_of
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import make_sketch
from sketchfed.wire import Packet, expect_kind, number_named, tensor_named


@dataclass(frozen=True, kw_only=True)
class Dbcl(Algorithm):
    """The server keeps W; clients are given W̃ = WS with a fresh S each round, train it, and return U; W moves by mean(U)Sᵀ.

    Paper: Zhang & Wang 2021, Sec. 4.2, whose own code sends whole weights instead. A client's steps are those of training W
    through S: with Γ = ∂L/∂W̃ it says U ← U − ηΓ and goes on from W̃ + U·SᵀS. One local step of all clients is their
    distributed SGD, local epochs are their FedAvg. Prediction uses W itself (App. B.1).

    Down travel the seed of the sketches, W̃ of each sketched layer, and what is not sketched: the output layer, biases,
    normalisation. Up travel U and the changes of the rest. `output` and `biases` may be sketched or withheld too, for they
    leak (biases: those of sketched layers). Sketched, a bias is one more column of W; withheld, biases are zero and an output
    layer has fixed values that anyone can rebuild. `weight_decay` decays what a client sees: decay·WSSᵀ, decay·W on average.

    **Blind is not private.** No client is *sent* W and the server is sent no plain gradient, but both can be estimated from
    what is sent: by a client that combines many rounds, and by a server that searches for inputs whose Γ matches. And where
    a bucket holds a single coordinate, that column of W travels as it is: all of `sampling`'s, an eighth of `count`'s at
    half the size, none of `balanced`'s up to there. Only calibrated noise ([privacy]) bounds what is learnt, and only secure
    sums ([secure]) hide single replies.
    """

    sketch: SketchSettings = field(default_factory=lambda: SketchSettings(name="balanced", ratio=0.5))
    """The family, and its size as a share of each layer's inputs (`ratio`) or as a number that no layer exceeds (`size`)."""
    vary: float = 0.0
    """Sizes are drawn anew for each round and layer, at most this share smaller."""
    exclude: list[str] = field(default_factory=list)
    """Layers beside the output layer that are not sketched, by name."""
    output: Way = "plain"
    biases: Way = "plain"
    public_start: bool = False
    """Whether the first weights follow from the public seed: runs can be repeated, and clients can rebuild them."""
    _structure: Structure | None = None

    name = "dbcl"
    summary = "sketches of the weights down, sketched changes up"
    source = "Zhang & Wang 2021"
    incremental = False
    shows_weights = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.vary < 1:
            raise InputError(f"algorithm.vary is a share of a sketch's size, from 0 to below 1, got {self.vary}.")
        for setting in ("output", "biases"):
            if getattr(self, setting) not in get_args(Way):
                raise InputError(f"algorithm.{setting} is 'plain', 'sketched' or 'withheld', got {getattr(self, setting)!r}.")
        if (self.sketch.bits, self.sketch.down) != (32, 32):
            raise InputError(
                f"sketch.bits = {min(self.sketch.bits, self.sketch.down)}: algorithm 'dbcl' sends its sketches as float32. "
                "Remove sketch.bits, or choose a smaller sketch.ratio."
            )

    @property
    def secret_start(self) -> bool:
        return not self.public_start

    def resolved(self, dim: int, clients: int | None = None) -> Self:
        return replace(self, global_rate=self.global_rate or 1.0 - self.global_momentum)

    def fitted(self, module: nn.Module) -> Self:
        structure = structure_of(module, exclude=self.exclude, output=self.output, biases=self.biases)
        return replace(self, _structure=structure)

    def begin(self, weights: Tensor) -> State:
        state = super().begin(weights.clone())
        views = self._fit.layout.views(state.replica.weights)
        for name, values in self.form_at(PublicSeed(0), 0).fixed().items():
            views[name].copy_(values)
        return state

    def form_at(self, seed: PublicSeed, index: int) -> ModelSketch:
        """The sketches of a round."""
        shared = _sketch_seed(seed, index)
        sizes = tuple(self._size(inputs, shared.child("size", layer)) for layer, (_, inputs) in enumerate(self._fit.weights))
        return _drawn(self._fit, self.sketch.name, tuple(sorted(self.sketch.options.items())), sizes, shared)

    def snapshot(self, replica: Replica, seed: PublicSeed) -> Packet:
        """W̃ of the round's sketches, what is not sketched, and the seed: nothing else of the model ever leaves the server."""
        seen = self.form_at(seed, replica.round).apply(replica.weights)
        shared = _sketch_seed(seed, replica.round)
        return Packet(kind="snapshot", arrays={"weights": seen}, scalars={"round": replica.round}, seed=shared)

    def received(self, packet: Packet, dim: int, seed: PublicSeed) -> Replica:
        expect_kind(packet, "snapshot")
        index = int(number_named(packet, "round", least=0, most=2**63))
        if packet.seed != _sketch_seed(seed, index):
            raise WireError(
                f"the sketches of round {index} were not drawn from the run's seed, so somebody may have chosen them. This "
                "client does not take part; check that server and client run the same configuration."
            )
        return Replica(round=index, weights=tensor_named(packet, "weights", shape=(self.form_at(seed, index).size,)))

    def client(self, change: Tensor, memory: Tensor | None, context: RoundContext) -> tuple[Packet, Tensor | None]:
        return Packet(kind=self.name, arrays={"values": change}), None

    def code(self, dim: int, context: RoundContext) -> LinearCode:
        size, most = self.form_at(context.seed, context.round).size, self._largest.size
        return LinearCode(kind=self.name, shape=(size,), map=None, padding=most - size)

    def between(self, before: Replica, after: Replica, seed: PublicSeed) -> Heard | None:
        """By the parameters that are not sketched: what of two sketched broadcasts says the rest is for attacks to find out."""
        if after.round != before.round + 1 or self.global_momentum:
            return None
        forms = [self.form_at(seed, replica.round) for replica in (before, after)]
        old, new = (form.seen.views(replica.weights) for form, replica in zip(forms, (before, after), strict=True))
        places = forms[0].seen.views(torch.arange(forms[0].size))
        plain = [name for name in old if name not in forms[0].sketches]
        if not plain:
            return None
        changes = torch.cat([(new[name] - old[name]).reshape(-1) for name in plain]) / self.rate_at(before.round)
        return Heard(changes, Coordinates(torch.cat([places[name].reshape(-1) for name in plain]), forms[0].size))

    @property
    def sends(self) -> str:
        return f"algorithm '{self.name}' with sketch '{self.sketch.name}'"

    def check(self, packet: Packet, dim: int, context: RoundContext) -> float:
        return float(self._values(packet, self.form_at(context.seed, context.round)).norm())

    def server(self, state: State, packets: Sequence[Packet], seed: PublicSeed, *, noise: float = 0.0) -> tuple[State, None]:
        form = self.form_at(seed, state.replica.round)
        total = torch.stack([self._values(packet, form) for packet in packets]).sum(0)
        mean = total / sum(packet.clients for packet in packets)
        return State(replica=self.moved(state.replica, form.adjoint(mean)), own=state.own), None

    def _values(self, packet: Packet, form: ModelSketch) -> Tensor:
        return tensor_named(expect_kind(packet, self.name), "values", shape=(form.size,))

    @property
    def _fit(self) -> Structure:
        assert self._structure is not None, "call fitted(module) first"
        return self._structure

    @property
    def _largest(self) -> ModelSketch:
        """Sketches of the size that rounds never exceed."""
        return replace(self, vary=0.0).form_at(PublicSeed(0), 0)

    def _size(self, inputs: int, seed: PublicSeed) -> int:
        """The size of a layer's sketch, drawn from a range where sizes vary."""
        most = sketch_size(inputs, ratio=self.sketch.ratio or DEFAULT_RATIO, size=self.sketch.size)
        least = max(1, most - round(self.vary * most))
        return least + int(seed.words(1)[0]) % (most - least + 1)


def _sketch_seed(seed: PublicSeed, index: int) -> PublicSeed:
    return round_seed(seed, index).child("sketch")


@lru_cache(maxsize=4)
def _drawn(
    structure: Structure, family: str, options: tuple[tuple[str, Any], ...], sizes: tuple[int, ...], seed: PublicSeed
) -> ModelSketch:
    """All clients of a round, and the server, use one object, so that what it draws is drawn once."""
    layers = tuple(
        (weight, make_sketch(family, dim=inputs, size=size, seed=seed.child("layer", index), **dict(options)))
        for index, ((weight, inputs), size) in enumerate(zip(structure.weights, sizes, strict=True))
    )
    return ModelSketch(layout=structure.layout, layers=layers, folded=structure.folded, withheld=structure.withheld)
