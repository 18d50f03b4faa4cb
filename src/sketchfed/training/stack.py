"""Training of stacks of convolutions, pooling and dense layers, with a hand-written backward pass.

Small networks on small batches spend most of a step outside the arithmetic: in autograd, in preparing convolutions, in pooling.
Here a convolution is one matrix product over all windows of a batch, and the product that makes a gradient also takes the step.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from sketchfed.kernels import images
from sketchfed.kernels.jit import on_cpu
from sketchfed.kernels.pages import copy_of
from sketchfed.seeds import PublicSeed
from sketchfed.training.autograd import AutogradTrainer
from sketchfed.training.base import Examples, LocalWork, batches
from sketchfed.training.losses import Loss, cross_entropy
from sketchfed.training.memory import Turn
from sketchfed.vectors import Layout

MOST_WINDOWS = 2**16
"""The largest number of window entries per example and layer. With more, torch's own convolutions are faster."""


class Pass(NamedTuple):
    """What a layer returns: its outputs, and what its backward pass needs."""

    outputs: Tensor
    kept: Any


class Step(Protocol):
    """A layer's two passes. Images are `(channels, batch, height, width)`."""

    def forward(self, x: Tensor) -> Pass: ...

    def backward(self, delta: Tensor, kept: Any, *, first: bool) -> Tensor | None:
        """Add δ·(derivatives) to the layer's parameters and return δ of its inputs. None if it is the first layer."""


@dataclass(frozen=True)
class ConvolutionStep:
    """A matrix product over all windows of a batch."""

    weight: Tensor
    bias: Tensor | None
    stride: int
    padding: int

    def forward(self, x: Tensor) -> Pass:
        found = images.windows(x, self.weight.shape[2:], self.stride, self.padding)  # type: ignore[arg-type]
        rows = found.view(-1, found[0, 0, 0].numel())
        outputs = torch.mm(self.weight.flatten(1), rows)
        if self.bias is not None:
            outputs.add_(self.bias[:, None])
        return Pass(outputs.view(-1, *found.shape[3:]), (x.shape, found))

    def backward(self, delta: Tensor, kept: Any, *, first: bool) -> Tensor | None:
        shape, found = kept
        flat, below = delta.flatten(1), None
        if not first:
            passed = torch.mm(self.weight.flatten(1).t(), flat).view(found.shape)
            below = images.summed(passed, shape, self.stride, self.padding)
        self.weight.view(len(flat), -1).addmm_(flat, found.view(-1, flat.shape[1]).t())
        if self.bias is not None:
            self.bias.add_(flat.sum(1))
        return below


@dataclass(frozen=True)
class DenseStep:
    """A matrix and a bias."""

    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Pass:
        return Pass(functional.linear(x, self.weight, self.bias), x)

    def backward(self, delta: Tensor, kept: Tensor, *, first: bool) -> Tensor | None:
        below = None if first else torch.mm(delta, self.weight)
        self.weight.addmm_(delta.t(), kept)
        if self.bias is not None:
            self.bias.add_(delta.sum(0))
        return below


class RectifierStep:
    """ReLU."""

    def forward(self, x: Tensor) -> Pass:
        outputs = x.relu()
        return Pass(outputs, outputs)

    def backward(self, delta: Tensor, kept: Tensor, *, first: bool) -> Tensor:
        return torch.ops.aten.threshold_backward(delta, kept, 0)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class MaxPoolingStep:
    """The largest number of each window."""

    side: int

    def forward(self, x: Tensor) -> Pass:
        outputs, places = images.largest(x, self.side)
        return Pass(outputs, (x.shape, places))

    def backward(self, delta: Tensor, kept: Any, *, first: bool) -> Tensor:
        shape, places = kept
        return images.spread(delta, places, self.side, shape)


@dataclass(frozen=True)
class AveragePoolingStep:
    """The mean of each window."""

    side: int

    def forward(self, x: Tensor) -> Pass:
        return Pass(functional.avg_pool2d(x, self.side), x.shape)

    def backward(self, delta: Tensor, kept: tuple[int, ...], *, first: bool) -> Tensor:
        below = delta.new_zeros(kept)
        rows, columns = (self.side * length for length in delta.shape[2:])
        each = delta / self.side**2
        below[:, :, :rows, :columns] = each.repeat_interleave(self.side, 2).repeat_interleave(self.side, 3)
        return below


class FlatteningStep:
    """One row for each example, in the order of torch."""

    def forward(self, x: Tensor) -> Pass:
        return Pass(x.transpose(0, 1).flatten(1), x.shape)

    def backward(self, delta: Tensor, kept: tuple[int, ...], *, first: bool) -> Tensor:
        channels, batch, height, width = kept
        return delta.view(batch, channels, height, width).transpose(0, 1).contiguous()


def stacked_layers(module: nn.Module) -> list[nn.Module] | None:
    """The layers of a module of the form (Conv2d | ReLU | MaxPool2d | AvgPool2d)*, Flatten, (Linear | ReLU)*, with some
    convolution. None if it has another form, or layers with options that the passes here do not know.
    """
    if type(module) is not nn.Sequential:
        return None
    layers = list(module)
    kinds = [type(layer) for layer in layers]
    if kinds.count(nn.Flatten) != 1 or nn.Conv2d not in kinds or kinds[-1] is not nn.Linear:
        return None
    border = kinds.index(nn.Flatten)
    parts = ((layers[:border], (nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.AvgPool2d)), (layers[border + 1 :], (nn.Linear, nn.ReLU)))
    known = all(type(layer) in some for part, some in parts for layer in part) and all(map(_plain, layers))
    parameters = list(module.parameters())
    untied = len(parameters) == sum(len(list(layer.parameters())) for layer in layers)
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooked = any(getattr(child, kind) for child in module.modules() for kind in hooks)
    return layers if known and untied and not hooked and all(p.requires_grad for p in parameters) else None


def _plain(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        square = not isinstance(layer.padding, str) and len({*layer.stride}) == 1 and len({*layer.padding}) == 1
        return square and layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    if isinstance(layer, nn.MaxPool2d):
        return _tiles(layer) and layer.dilation in (1, (1, 1)) and not layer.return_indices
    if isinstance(layer, nn.AvgPool2d):
        return _tiles(layer) and layer.divisor_override is None
    return not isinstance(layer, nn.Flatten) or (layer.start_dim, layer.end_dim) == (1, -1)


def _tiles(layer: nn.MaxPool2d | nn.AvgPool2d) -> bool:
    """Whether the windows are squares side by side, without padding."""
    side = layer.kernel_size
    whole = isinstance(side, int) and 1 <= side <= 16 and layer.stride == side
    return whole and layer.padding == 0 and not layer.ceil_mode


class StackTrainer(AutogradTrainer):
    """Trains convolutional stacks with SGD, without autograd. The loss is cross-entropy or squares.

    Steps with momentum, decay or a pull, client forms, and everything but training are left to autograd.
    """

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        super().__init__(module, loss)
        layers = stacked_layers(self._module)
        if layers is None:
            raise ValueError("not a stack of known layers")
        self._layers = layers
        self._softmax = loss is cross_entropy
        self._layout = Layout.of(self._module)

    def train(self, weights: Tensor, examples: Examples, work: LocalWork, turn: Turn) -> Tensor:
        if work.momentum or work.decay or turn.pull or not on_cpu(weights) or not self._small(examples.x.shape[2:]):
            return super().train(weights, examples, work, turn)
        return self._stepped(weights, examples, work, turn.seed)

    def _small(self, sides: tuple[int, ...]) -> bool:
        """Whether the windows of each convolution are few, for images of these sides."""
        for layer in self._layers:
            if isinstance(layer, nn.Flatten):
                break
            if isinstance(layer, nn.Conv2d):
                spare = 2 * int(layer.padding[0])
                sizes = zip(sides, layer.kernel_size, strict=True)
                sides = tuple((side + spare - size) // layer.stride[0] + 1 for side, size in sizes)
                if layer.in_channels * math.prod(layer.kernel_size) * math.prod(sides) > MOST_WINDOWS:
                    return False
            elif isinstance(layer, nn.MaxPool2d | nn.AvgPool2d):
                sides = tuple(side // int(layer.kernel_size) for side in sides)  # type: ignore[arg-type]
        return True

    @torch.no_grad()
    def _stepped(self, weights: Tensor, examples: Examples, work: LocalWork, seed: PublicSeed) -> Tensor:
        trained = copy_of(weights)
        steps = self._steps(trained)
        for batch in batches(examples, work, seed):
            x, passes = batch.x.transpose(0, 1).contiguous(), []
            for step in steps:
                passes.append(step.forward(x))
                x = passes[-1].outputs
            delta: Tensor | None = self._residual(x, batch.y).mul_(-work.rate / len(batch.y))
            for index in range(len(steps) - 1, -1, -1):
                if delta is not None:
                    delta = steps[index].backward(delta, passes[index].kept, first=index == 0)
        return trained

    def _residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The derivatives of each example's own loss by the outputs."""
        if not self._softmax:
            return outputs - targets
        return torch.softmax(outputs, 1).sub_(functional.one_hot(targets, outputs.shape[1]))

    def _steps(self, flat: Tensor) -> list[Step]:
        """The passes of all layers, with their parameters as views of a flat vector.

        A ReLU before max-pooling comes after it: the result is the same, and there are fewer numbers.
        """
        views = iter(self._layout.views(flat).values())
        steps = [_step(layer, views) for layer in self._layers]
        for index, (one, other) in enumerate(pairwise(steps)):
            if isinstance(one, RectifierStep) and isinstance(other, MaxPoolingStep):
                steps[index], steps[index + 1] = other, one
        return steps


def _step(layer: nn.Module, views: Any) -> Step:
    if isinstance(layer, nn.Conv2d):
        weight = next(views)
        return ConvolutionStep(weight, None if layer.bias is None else next(views), layer.stride[0], int(layer.padding[0]))
    if isinstance(layer, nn.Linear):
        weight = next(views)
        return DenseStep(weight, None if layer.bias is None else next(views))
    if isinstance(layer, nn.MaxPool2d):
        return MaxPoolingStep(int(layer.kernel_size))  # type: ignore[arg-type]
    if isinstance(layer, nn.AvgPool2d):
        return AveragePoolingStep(int(layer.kernel_size))  # type: ignore[arg-type]
    return FlatteningStep() if isinstance(layer, nn.Flatten) else RectifierStep()
