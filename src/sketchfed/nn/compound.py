"""Layers of several matrices that train through sketches of them: attention, LSTM, GRU and plain recurrent layers.

Zhang & Wang 2021 treat dense and convolutional layers only. This is our extension to others whose weights are matrices that
multiply something: each matrix W has a sketch S of its own, and whatever it multiplies is sketched as well. A recurrent layer,
for example, has (xS)(W_ih·S)ᵀ + (hS′)(W_hh·S′)ᵀ in place of xW_ihᵀ + hW_hhᵀ, with the same S and S′ at each step of a sequence.
What the paper shows for one product, E[(xS)(WS)ᵀ] = xWᵀ (Sec. 4.2), holds for each of them. The gates and the softmax that
follow are not linear, so the expectation of the whole layer is not that of the plain one; nor is it for dense layers with an
activation in between.

(xS)(WS)ᵀ = x((WS)Sᵀ)ᵀ, so torch's own layer computes the outputs, from (WS)Sᵀ in place of W. All that torch's layers do works:
masks, packed sequences, projections, dropout between layers, both directions. (WS)Sᵀ is made once for a whole sequence, and is
gone after the pass.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from sketchfed.errors import InputError
from sketchfed.nn.layers import sketch_size
from sketchfed.nn.model_sketch import bias_of
from sketchfed.nn.products import restored, sketched
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import Sketch, make_sketch

_WEIGHT = re.compile("weight")
_MATRIX = re.compile(r"weight_(ih|hh|hr)_l\d+(_reverse)?|(in|q|k|v)_proj_weight")

Compound = nn.MultiheadAttention | nn.LSTM | nn.GRU | nn.RNN
Made = TypeVar("Made", bound=nn.Module)


class _Compound(nn.Module, ABC):
    """A layer of torch that computes with other matrices than its parameters."""

    @abstractmethod
    def _substitutes(self) -> dict[str, Tensor]:
        """What to compute with in place of parameters, by their names."""

    def forward(self, *arguments: Any, **options: Any) -> Any:
        with _computing(self, self._substitutes()):
            return super().forward(*arguments, **options)


class SketchedCompound(_Compound):
    """A layer in full form: the parameters and the state_dict of torch's layer, and nothing else until `draw`.

    From then on, it computes with W·S·Sᵀ in training, for each matrix W that is sketched, and with W in evaluation.
    """

    sketches: Mapping[str, Sketch]
    """What training goes through, by the names of the parameters. Empty before the first `draw`."""

    def choose(
        self,
        names: Iterable[str],
        *,
        family: str,
        ratio: float,
        size: int | None,
        options: Mapping[str, object],
        fold_bias: bool,
    ) -> None:
        """Say which parameters are sketched, and how."""
        parameters = dict(self.named_parameters())
        names = list(names)
        self.folded = frozenset(bias_of(name) for name in names if fold_bias) & parameters.keys()
        self._dims = {name: parameters[name].shape[1] + (bias_of(name) in self.folded) for name in names}
        self._family, self._ratio, self._size, self._options = family, ratio, size, dict(options)
        self.draw(PublicSeed(0))  # what cannot be drawn is refused at once
        self.sketches = {}

    def draw(self, seed: PublicSeed) -> None:
        """Take fresh sketches, which training goes through until the next are drawn."""
        self.sketches = {
            name: make_sketch(
                self._family,
                dim=dim,
                size=sketch_size(dim, ratio=self._ratio, size=self._size),
                seed=seed.child("matrix", index),
                **self._options,
            )
            for index, (name, dim) in enumerate(self._dims.items())
        }

    def _substitutes(self) -> dict[str, Tensor]:
        if not self.training:
            return {}
        parameters = dict(self.named_parameters())
        found: dict[str, Tensor] = {}
        for name, sketch in self.sketches.items():
            seen = sketched(_matrix(parameters, name, self.folded), sketch)
            found |= _restored(name, seen, sketch, self.folded)
        return found

    def extra_repr(self) -> str:
        return _said(super().extra_repr(), self._family, "" if self.sketches else "not drawn")


class BlindCompound(_Compound):
    """A layer in the form that a client trains: its parameters are WS for each matrix W that is sketched, and W is nowhere."""

    sketches: Mapping[str, Sketch]
    folded: frozenset[str]

    def _substitutes(self) -> dict[str, Tensor]:
        parameters = dict(self.named_parameters())
        found: dict[str, Tensor] = {}
        for name, sketch in self.sketches.items():
            found |= _restored(name, parameters[name], sketch, self.folded)
        return found

    def extra_repr(self) -> str:
        return _said(super().extra_repr(), next(iter(self.sketches.values())).name, "")


class SketchedMultiheadAttention(SketchedCompound, nn.MultiheadAttention):
    """Attention in full form."""


class SketchedLSTM(SketchedCompound, nn.LSTM):
    """An LSTM in full form."""


class SketchedGRU(SketchedCompound, nn.GRU):
    """A GRU in full form."""


class SketchedRNN(SketchedCompound, nn.RNN):
    """A plain recurrent layer in full form."""


class BlindMultiheadAttention(BlindCompound, nn.MultiheadAttention):
    """Attention in the form that a client trains."""


class BlindLSTM(BlindCompound, nn.LSTM):
    """An LSTM in the form that a client trains."""


class BlindGRU(BlindCompound, nn.GRU):
    """A GRU in the form that a client trains."""


class BlindRNN(BlindCompound, nn.RNN):
    """A plain recurrent layer in the form that a client trains."""


_FULL: Mapping[type[nn.Module], type[SketchedCompound]] = {
    nn.MultiheadAttention: SketchedMultiheadAttention,
    nn.LSTM: SketchedLSTM,
    nn.GRU: SketchedGRU,
    nn.RNN: SketchedRNN,
}
_BLIND: Mapping[type[nn.Module], type[BlindCompound]] = {
    nn.MultiheadAttention: BlindMultiheadAttention,
    nn.LSTM: BlindLSTM,
    nn.GRU: BlindGRU,
    nn.RNN: BlindRNN,
}
_BLIND_OF_FULL = {full: _BLIND[kind] for kind, full in _FULL.items()}


def is_compound(layer: nn.Module) -> bool:
    """Whether a layer is one of torch's own that are covered here. Subclasses may compute something else."""
    return type(layer) in _FULL


def matrices(layer: nn.Module) -> list[str]:
    """The names of a layer's own parameters that can be sketched. The output projection of attention is a layer of its own."""
    known = _MATRIX if isinstance(layer, nn.MultiheadAttention | nn.RNNBase) else _WEIGHT
    return [name for name, _ in layer.named_parameters(recurse=False) if known.fullmatch(name)]


def is_whole(layer: nn.Module) -> bool:
    """Whether a layer has the parameters that torch gives it, and no others: no parametrization, no biases as inputs."""
    names = {"weight", "bias"}
    if isinstance(layer, nn.RNNBase):
        names = {*layer._flat_weights_names}
    elif isinstance(layer, nn.MultiheadAttention):
        names = {"in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight"}
    return layer._parameters.keys() <= names and bool(matrices(layer))


def full_compound(layer: nn.Module, names: Iterable[str], **choice: Any) -> SketchedCompound:
    """The full form of a layer, with copies of its parameters. `names` are those of its matrices that are sketched."""
    made = _as(_FULL[type(layer)], deepcopy(layer))
    made.choose(names, **choice)
    return made


def blind_compound(layer: nn.Module, sketches: Mapping[str, Sketch], folded: Iterable[str] = ()) -> BlindCompound:
    """The blind form of a layer, of which `sketches` has the sketches by the names of its parameters.

    Biases in `folded` are the last columns of their matrices. Parameters without a sketch are copied.
    """
    folds, parameters = frozenset(folded), dict(layer.named_parameters())
    swapped: dict[int, Any] = {id(parameters[bias]): nn.Parameter(torch.empty(0)) for bias in folds}  # W is never copied
    with torch.no_grad():
        for name, sketch in sketches.items():
            matrix = _matrix(parameters, name, folds)
            if sketch.dim != matrix.shape[1]:
                raise InputError(
                    f"a sketch of dim {sketch.dim:,} does not fit '{name}' with {matrix.shape[1]:,} columns: {layer}. Make it "
                    f"for dim={matrix.shape[1]}."
                )
            swapped[id(parameters[name])] = nn.Parameter(sketch.apply(matrix), parameters[name].requires_grad)
    kind = _BLIND.get(type(layer)) or _BLIND_OF_FULL[type(layer)]  # type: ignore[index]
    made = _as(kind, deepcopy(layer, swapped))
    for bias in folds:
        owner, leaf = _place(made, bias)
        owner._parameters[leaf] = None
    made.sketches, made.folded = dict(sketches), folds
    if isinstance(made, nn.RNNBase):
        made._init_flat_weights()
    return made


def _as(kind: type[Made], layer: nn.Module) -> Made:
    """Make a layer an instance of a subclass of its class. The forms differ from torch's layers in `forward` only."""
    layer.__class__ = kind
    return layer  # type: ignore[return-value]


def _matrix(parameters: Mapping[str, Tensor], name: str, folded: frozenset[str]) -> Tensor:
    """A matrix W, `(out, columns)`. A folded bias is its last column."""
    weight, bias = parameters[name], bias_of(name)
    return torch.cat([weight, parameters[bias][:, None]], 1) if bias in folded else weight


def _restored(name: str, seen: Tensor, sketch: Sketch, folded: frozenset[str]) -> dict[str, Tensor]:
    """(WS)Sᵀ in place of a weight, and of its bias if that is folded."""
    matrix, bias = restored(seen, sketch), bias_of(name)
    return {name: matrix[:, :-1], bias: matrix[:, -1]} if bias in folded else {name: matrix}


@contextmanager
def _computing(layer: nn.Module, substitutes: Mapping[str, Tensor]) -> Iterator[None]:
    """Within this context, a layer computes with other tensors in place of some of its parameters."""
    places = {name: _place(layer, name) for name in substitutes}
    own = {name: owner._parameters[leaf] for name, (owner, leaf) in places.items()}
    try:
        for name, (owner, leaf) in places.items():
            owner._parameters[leaf] = substitutes[name]  # type: ignore[assignment]
        yield
    finally:
        for name, (owner, leaf) in places.items():
            owner._parameters[leaf] = own[name]
        if places and isinstance(layer, nn.RNNBase):
            layer._init_flat_weights()  # it has a list of its parameters, which must not keep the others


def _place(layer: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that a parameter belongs to, and its name there."""
    owner, _, leaf = name.rpartition(".")
    return layer.get_submodule(owner), leaf


def _said(own: str, family: str, state: str) -> str:
    return ", ".join(part for part in (own, f"sketch={family}", state) if part)
