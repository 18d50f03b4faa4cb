"""Dense and convolutional layers that train through a sketch of their weights (Zhang & Wang 2021).

A layer's matrix W has a row for each output and a column for each of its inputs; for a convolution these are the numbers of a
patch, channels · kernel height · kernel width of them (App. B.2). A sketch S, inputs × size with E[SSᵀ] = I, turns the output
xWᵀ + b into (xS)(WS)ᵀ + b (Sec. 4.2, App. B.1). S is the transpose of our `Sketch`: xS is `apply(x)`, ySᵀ is `adjoint(y)`.

The full form holds W and sketches it in every pass; the blind form, which a client trains, holds WS alone. A bias may be
folded: it is then one more column of W, whose input is always 1, and is sketched with the others.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from sketchfed.errors import InputError
from sketchfed.nn.products import product, restored_parts, sketched
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import Sketch, make_sketch

Layer = nn.Linear | nn.Conv2d


def columns(layer: Layer, *, fold_bias: bool = False) -> int:
    """The number of columns of a layer's W, hence the `dim` of its sketch; a bias that is folded is one of them."""
    return layer.weight[0].numel() + _folds(layer, fold_bias)


def sketch_size(dim: int, *, ratio: float = 0.5, size: int | None = None) -> int:
    """How many numbers a row of `dim` is sketched to: `size`, but at most dim, or else the share `ratio` of dim, rounded down.

    Rounded down, equal buckets hold two columns of W or more whenever the ratio is at most a half, so none is seen as it is.
    """
    if size is not None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InputError(f"size must be a positive number of coefficients, got {size!r}. Leave it out to use ratio.")
        return min(size, dim)
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1:
        raise InputError(f"ratio is the share of a layer's inputs that is kept, above 0 and at most 1, got {ratio!r}.")
    return max(1, int(ratio * dim))


class _Sketching:
    """The family that a layer draws its sketches from and the last sketch drawn: what both full forms share."""

    sketch: Sketch | None = None
    """What training goes through; None before the first `draw`."""

    def _choose(
        self, dim: int, *, family: str, ratio: float, size: int | None, options: Mapping[str, object], fold_bias: bool
    ) -> None:
        self.dim, self.size = dim, sketch_size(dim, ratio=ratio, size=size)
        self.family, self.options, self.fold_bias = family, dict(options), fold_bias
        self._drawn(PublicSeed(0))  # what cannot be drawn is refused at once

    def _drawn(self, seed: PublicSeed) -> Sketch:
        return make_sketch(self.family, dim=self.dim, size=self.size, seed=seed, **self.options)

    def draw(self, seed: PublicSeed) -> None:
        """Take a fresh sketch, which training goes through until the next is drawn."""
        self.sketch = self._drawn(seed)

    def _described(self) -> str:
        state = "" if self.sketch else ", not drawn"
        return f"sketch={self.family}, size={self.size}{', folded bias' if self.fold_bias else ''}{state}"


class SketchedLinear(_Sketching, nn.Linear):
    """A dense layer in full form: the parameters and the state_dict of nn.Linear, and nothing but nn.Linear until `draw`.

    From then on its output in training is (xS)(WS)ᵀ + b; in evaluation it is always xWᵀ + b (App. B.1). The sketch keeps the
    share `ratio` of the inputs, or `size` numbers if that is given; `options` go to the family.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        family: str = "balanced",
        ratio: float = 0.5,
        size: int | None = None,
        options: Mapping[str, object] = {},
        fold_bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        folds = fold_bias and bias
        self._choose(in_features + folds, family=family, ratio=ratio, size=size, options=options, fold_bias=folds)

    def forward(self, input: Tensor) -> Tensor:
        if self.sketch is None or not self.training:
            return super().forward(input)
        weight = sketched(_matrix(self, self.fold_bias), self.sketch)
        return product(input, weight, None if self.fold_bias else self.bias, self.sketch, folded=self.fold_bias)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self._described()}"


class SketchedConv2d(_Sketching, nn.Conv2d):
    """A convolution in full form: to nn.Conv2d, whose arguments it takes, what `SketchedLinear` is to nn.Linear.

    The paper unfolds images into patches and sketches those (App. B.2 and E). A convolution by the kernel (WS)Sᵀ has the same
    outputs and gradients and unfolds nothing. Groups must be 1.
    """

    def __init__(
        self,
        *arguments: Any,
        family: str = "balanced",
        ratio: float = 0.5,
        size: int | None = None,
        options: Mapping[str, object] = {},
        fold_bias: bool = False,
        **convolution: Any,
    ) -> None:
        super().__init__(*arguments, **convolution)
        _refuse_groups(self)
        dim, folds = columns(self, fold_bias=fold_bias), _folds(self, fold_bias)
        self._choose(dim, family=family, ratio=ratio, size=size, options=options, fold_bias=folds)

    def forward(self, input: Tensor) -> Tensor:
        if self.sketch is None or not self.training:
            return super().forward(input)
        weight = sketched(_matrix(self, self.fold_bias), self.sketch)
        return Geometry.of(self).convolved(input, weight, self.bias, self.sketch, folded=self.fold_bias)

    def extra_repr(self) -> str:
        return f"{nn.Conv2d.extra_repr(self)}, {self._described()}"  # type: ignore[no-untyped-call]


class BlindLinear(nn.Module):
    """A dense layer in the form that a client trains: `weight` is WS, `(out, size)`, and W is nowhere.

    Its output is (xS)(WS)ᵀ + b, also in evaluation: there is nothing else to compute it from. `bias` is None if it is folded.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, weight: Tensor, bias: Tensor | None, sketch: Sketch, *, folded: bool = False) -> None:
        super().__init__()
        self.sketch, self.folded = sketch, folded
        self.weight = nn.Parameter(weight)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias))

    def forward(self, input: Tensor) -> Tensor:
        return product(input, self.weight, self.bias, self.sketch, folded=self.folded)

    def extra_repr(self) -> str:
        inputs, outputs = self.sketch.dim - self.folded, self.weight.shape[0]
        return f"in_features={inputs}, out_features={outputs}, {_blind_facts(self)}"


class Geometry(NamedTuple):
    """How the kernel of a convolution moves over images."""

    channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: str | tuple[int, ...]
    dilation: tuple[int, ...]
    padding_mode: str
    margins: tuple[int, ...]
    """For a padding that is not of zeros: left, right, top and bottom."""

    @classmethod
    def of(cls, layer: nn.Conv2d) -> "Geometry":
        return cls(
            channels=layer.in_channels,
            kernel_size=layer.kernel_size,
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
            padding_mode=layer.padding_mode,
            margins=tuple(layer._reversed_padding_repeated_twice),
        )

    def convolved(self, images: Tensor, weight: Tensor, bias: Tensor | None, sketch: Sketch, *, folded: bool) -> Tensor:
        """Images convolved with the kernel (WS)Sᵀ, for `weight` WS."""
        matrix, bias = restored_parts(weight, bias, sketch, folded=folded)
        kernel = matrix.reshape(-1, self.channels, *self.kernel_size)
        if self.padding_mode == "zeros":
            return functional.conv2d(images, kernel, bias, self.stride, self.padding, self.dilation)
        padded = functional.pad(images, self.margins, mode=self.padding_mode)
        return functional.conv2d(padded, kernel, bias, self.stride, 0, self.dilation)

    def __str__(self) -> str:
        said = f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}"
        return said + ("" if self.padding_mode == "zeros" else f", padding_mode={self.padding_mode}")


class BlindConv2d(nn.Module):
    """A convolution in the form that a client trains: `weight` is WS, `(out, size)`, and W is nowhere."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self, weight: Tensor, bias: Tensor | None, sketch: Sketch, geometry: Geometry, *, folded: bool = False
    ) -> None:
        super().__init__()
        self.sketch, self.geometry, self.folded = sketch, geometry, folded
        self.weight = nn.Parameter(weight)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias))

    def forward(self, input: Tensor) -> Tensor:
        return self.geometry.convolved(input, self.weight, self.bias, self.sketch, folded=self.folded)

    def extra_repr(self) -> str:
        return f"{self.geometry.channels}, {self.weight.shape[0]}, {self.geometry}, {_blind_facts(self)}"


def blind_layer(layer: Layer, sketch: Sketch, *, fold_bias: bool = False) -> BlindLinear | BlindConv2d:
    """The blind form of a layer: WS computed from its W, and a copy of its bias unless that is folded.

    `sketch.dim` must be `columns(layer, fold_bias=fold_bias)`. Where there is no bias, none is folded.
    """
    if isinstance(layer, nn.Conv2d):
        _refuse_groups(layer)
    folds, dim = _folds(layer, fold_bias), columns(layer, fold_bias=fold_bias)
    if sketch.dim != dim:
        raise InputError(
            f"a sketch of dim {sketch.dim:,} does not fit a layer with {dim:,} columns: {layer}. Make it for dim={dim}."
        )
    with torch.no_grad():
        weight = sketch.apply(_matrix(layer, folds))
        bias = None if folds or layer.bias is None else layer.bias.clone()
    made: BlindLinear | BlindConv2d
    if isinstance(layer, nn.Conv2d):
        made = BlindConv2d(weight, bias, sketch, Geometry.of(layer), folded=folds)
    else:
        made = BlindLinear(weight, bias, sketch, folded=folds)
    made.weight.requires_grad_(layer.weight.requires_grad)
    if made.bias is not None:
        made.bias.requires_grad_(layer.bias is not None and layer.bias.requires_grad)
    return made.train(layer.training)


def _folds(layer: Layer, fold_bias: bool) -> bool:
    return fold_bias and layer.bias is not None


def _matrix(layer: Layer, folded: bool) -> Tensor:
    """A layer's W, `(out, columns)`."""
    flat = layer.weight.flatten(1)
    return torch.cat([flat, layer.bias[:, None]], 1) if folded and layer.bias is not None else flat


def _refuse_groups(layer: nn.Conv2d) -> None:
    if layer.groups != 1:
        raise InputError(
            f"a convolution in {layer.groups} groups cannot be sketched: its outputs read different channels, which a sketch "
            "would mix. Leave it plain, or use groups=1."
        )


def _blind_facts(layer: BlindLinear | BlindConv2d) -> str:
    bias = "folded" if layer.folded else str(layer.bias is not None)
    return f"bias={bias}, sketch={layer.sketch.name}, size={layer.sketch.size}"
