"""Training of dense layers with ReLU, with a hand-written backward pass.

For small batches, autograd spends more time on bookkeeping than on arithmetic. Here the matrix product that computes the
gradient also takes the step, W ← W − rate·δᵀx. Gradients are never stored, and a client's weights stay in the cache for all
its steps. A kernel takes the steps of plain SGD. `sketchfed bench models` measures it.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from sketchfed.errors import InputError
from sketchfed.kernels import perceptron as kernel
from sketchfed.kernels.jit import on_cpu
from sketchfed.kernels.pages import copy_of
from sketchfed.nn.model_sketch import ModelSketch
from sketchfed.seeds import PublicSeed
from sketchfed.training.autograd import AutogradTrainer
from sketchfed.training.base import Examples, LiveExamples, LocalWork, Trainer, batches, explained, scored
from sketchfed.training.blind import Latest
from sketchfed.training.fit import fitting_loss
from sketchfed.training.losses import Loss, cross_entropy
from sketchfed.training.memory import Turn
from sketchfed.vectors import Layout, hollow

LEAST_COMPILED = 2**15
"""The kernel trains models with at least this many weights. Smaller ones keep the steps, and so the bits, of version 0.1."""
MOST_TOGETHER = 32
"""The largest batch that the kernel takes. The products of larger ones are faster in torch."""


def dense_layers(module: nn.Module) -> list[nn.Linear] | None:
    """The dense layers of a module of the form Flatten?, (Linear, ReLU)*, Linear. None if it has another form."""
    if type(module) is not nn.Sequential:
        return None
    children = list(module)[1:] if len(module) and _flattens(module[0]) else list(module)
    shape = [nn.Linear, nn.ReLU] * (len(children) // 2) + [nn.Linear]
    if [type(child) for child in children] != shape:
        return None
    layers = [child for child in children if isinstance(child, nn.Linear)]
    plain = all(layer.bias is not None and layer.weight.requires_grad and layer.bias.requires_grad for layer in layers)
    tied = len(list(module.parameters())) < 2 * len(layers)
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooked = any(getattr(child, kind) for child in module.modules() for kind in hooks)
    return layers if plain and not tied and not hooked else None


def _flattens(layer: nn.Module) -> bool:
    return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)


class _Dense(NamedTuple):
    """A layer's parameters. The transpose is kept because making it takes as long as a small product."""

    weight: Tensor
    transposed: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.transposed)


class PerceptronTrainer:
    """Trains dense layers with SGD, without autograd. The loss is cross-entropy or squares.

    With a `form`, it trains the model's client form. A sketched layer multiplies xS with W̃. A step moves W̃ by the step of the
    update to send, times the loads of the buckets. The inputs of the first layer are sketched once, not in each step.
    """

    sequential = False

    def __init__(self, module: nn.Module, loss: Loss, form: ModelSketch | None = None) -> None:
        self._layout = Layout.of(module) if form is None else form.seen
        self.dim = self._layout.dim
        self._softmax = loss is cross_entropy
        self._module, self._loss, self._form = hollow(module), loss, form
        self._loads = None if form is None else form.loads
        if form is not None and self._loads is None:
            raise InputError("steps through these sketches mix buckets, so they need autograd. Use AutogradTrainer.")
        weights = self._layout.names[::2]
        self._widths = (self._layout.shapes[0][1], *(shape[0] for shape in self._layout.shapes[::2]))
        self._sketches = [None if form is None else form.sketches.get(weight) for weight in weights]
        self._sketched: Latest[Trainer] = Latest()

    def check(self, examples: Examples) -> None:
        with explained(examples):
            fitting_loss(self._loss, self.outputs(torch.zeros(self.dim), examples.x), examples.y)
            self.train(torch.zeros(self.dim), examples, LocalWork(rate=1.0), Turn(PublicSeed(0)))

    @torch.no_grad()
    def train(self, weights: Tensor, examples: Examples, work: LocalWork, turn: Turn) -> Tensor:
        trained = copy_of(weights)
        if not turn.pull and self._compiled(trained, examples, work):
            self._run_kernel(trained, examples, work, turn.seed)
            return trained
        gradient = torch.zeros_like(trained) if work.momentum or work.decay or turn.pull else None
        velocity = torch.zeros_like(trained) if work.momentum else None
        layers = self._layers(trained)
        # Without momentum, decay and a pull, the matrix product adds the gradient times −rate directly to the weights.
        into, scale = (layers, -work.rate) if gradient is None else (self._layers(gradient), 1.0)
        for batch in batches(self._flat(examples), work, turn.seed):
            if gradient is not None:
                gradient.copy_(trained).mul_(work.decay)
                turn.pull.add_to(gradient, trained, weights)
            self._backward(batch, layers, into, scale)
            if gradient is not None:
                step = gradient if velocity is None else velocity.mul_(work.momentum).add_(gradient)
                trained.add_(self.gram(step), alpha=-work.rate)
        return trained if self._loads is None else _said(weights, trained, self._loads)

    def _compiled(self, weights: Tensor, examples: Examples, work: LocalWork) -> bool:
        """Whether the kernel takes the steps: those of plain SGD, in small batches, through layers that are not sketched."""
        plain = self._form is None and not (work.momentum or work.decay) and not isinstance(examples, LiveExamples)
        small = min(work.batch or MOST_TOGETHER + 1, len(examples.x)) <= MOST_TOGETHER
        return plain and small and self.dim >= LEAST_COMPILED and on_cpu(weights)

    def _run_kernel(self, weights: Tensor, examples: Examples, work: LocalWork, seed: PublicSeed) -> None:
        x, y = self._flat(examples)
        order, slices = work.order(len(x), seed)
        kernel.train(
            *(weights.numpy(), self._widths, x.contiguous().numpy(), y.contiguous().numpy(), order.numpy(), slices),
            rate=work.rate,
            softmax=self._softmax,
        )

    def _flat(self, examples: Examples) -> Examples:
        """Return the inputs of the first layer's matrix and the targets of the outputs. Live examples stay live."""
        flat = Examples(self._first(examples.x), self._targets(examples.y))
        if not isinstance(examples, LiveExamples):
            return flat
        return LiveExamples(*flat, read=lambda rows, seed: self._flat(examples.read(rows, seed)))

    def gram(self, step: Tensor) -> Tensor:
        return step if self._form is None else self._form.gram(step)

    def sketched(self, form: ModelSketch) -> Trainer:
        return self._sketched.get(form, lambda: self._made(form))

    def _made(self, form: ModelSketch) -> Trainer:
        """Use autograd for forms with folded or withheld biases, and for steps that mix buckets."""
        if form.folded or form.withheld or form.loads is None:
            return AutogradTrainer(self._module, self._loss).sketched(form)
        return PerceptronTrainer(self._module, self._loss, form)

    def _backward(self, batch: Examples, layers: list["_Dense"], into: list["_Dense"], scale: float) -> None:
        """Add `scale` times the gradient of the mean loss to the parameters in `into`, last layer first.

        If `into` is `layers`, δ passes through a layer's weights before they change.
        """
        inputs, units = self._inputs(layers, batch.x)
        delta = self._residual(layers, inputs[-1], batch.y).mul_(scale / len(batch.x))
        for index in range(len(layers) - 1, -1, -1):
            below = self._passed(index, torch.mm(delta, layers[index].weight), units[index]) if index else delta
            sketch = self._sketches[index]
            moved = inputs[index] if sketch is None or into is not layers else inputs[index] * sketch.loads
            into[index].weight.addmm_(delta.t(), moved)
            into[index].bias.add_(delta.sum(0))
            delta = below

    @torch.no_grad()
    def gradients(self, weights: Tensor, examples: Examples, out: Tensor | None = None) -> Tensor:
        out = torch.empty(len(examples.x), self.dim) if out is None else out[: len(examples.x)]
        start = 0
        for inputs, delta in self._layers_of(weights, examples):
            stop = start + delta.shape[1] * inputs.shape[1]
            product = out[:, start:stop].view(len(out), delta.shape[1], inputs.shape[1])
            torch.mul(delta[:, :, None], inputs[:, None, :], out=product)
            out[:, stop : stop + delta.shape[1]] = delta
            start = stop + delta.shape[1]
        return out

    @torch.no_grad()
    def clipped_sum(self, weights: Tensor, examples: Examples, clip: float) -> Tensor:
        """Needs no per-example gradients: ‖δxᵀ‖ = ‖δ‖·‖x‖, so the factors give the norms (Goodfellow 2015)."""
        layers = self._layers_of(weights, examples)
        squares = sum((delta.square().sum(1) * (1 + inputs.square().sum(1)) for inputs, delta in layers), torch.zeros(()))
        scales = (clip / squares.sqrt().clamp(min=1e-30)).clamp(max=1.0)
        out = torch.empty(self.dim)
        for (inputs, delta), layer in zip(layers, self._layers(out), strict=True):
            scaled = delta * scales[:, None]
            torch.mm(scaled.t(), inputs, out=layer.weight)
            torch.sum(scaled, 0, out=layer.bias)
        return out

    def _layers_of(self, weights: Tensor, examples: Examples) -> list[tuple[Tensor, Tensor]]:
        """For each layer, first to last: its inputs, and the derivatives δ of each example's own loss by its outputs."""
        layers = self._layers(weights)
        inputs, units = self._inputs(layers, self._first(examples.x))
        deltas = [self._residual(layers, inputs[-1], self._targets(examples.y))]
        for index in range(len(layers) - 1, 0, -1):
            deltas.append(self._passed(index, torch.mm(deltas[-1], layers[index].weight), units[index]))
        return list(zip(inputs, deltas[::-1], strict=True))

    def _residual(self, layers: list["_Dense"], inputs: Tensor, targets: Tensor) -> Tensor:
        """The derivatives of each example's own loss by the outputs."""
        outputs = layers[-1](inputs)
        return (torch.softmax(outputs, 1) if self._softmax else outputs).sub_(targets)

    def _first(self, x: Tensor) -> Tensor:
        """The input of the first layer's matrix, sketched if the layer is."""
        sketch = self._sketches[0]
        return x.flatten(1) if sketch is None else sketch.apply(x.flatten(1))

    def _inputs(self, layers: list["_Dense"], first: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The input of each layer's matrix, and the units before the layer."""
        inputs, units = [first], [first]
        for layer, sketch in zip(layers[:-1], self._sketches[1:], strict=True):
            hidden = layer(inputs[-1]).relu_()
            inputs.append(hidden if sketch is None else sketch.apply(hidden))
            units.append(hidden)
        return inputs, units

    def _passed(self, index: int, delta: Tensor, units: Tensor) -> Tensor:
        """Convert derivatives by the input of a layer's matrix into derivatives by the units before the layer's ReLU.

        `units` are their values after the ReLU. Where one is zero, nothing passes.
        """
        sketch = self._sketches[index]
        delta = delta if sketch is None else sketch.adjoint(delta)
        return torch.ops.aten.threshold_backward(delta, units, 0)  # type: ignore[no-any-return]

    def _layers(self, flat: Tensor) -> list["_Dense"]:
        """The layers, with their parameters as views of a flat vector."""
        views = list(self._layout.views(flat).values())
        return [_Dense(weight, weight.t(), bias) for weight, bias in zip(views[::2], views[1::2], strict=True)]

    def _targets(self, y: Tensor) -> Tensor:
        outputs = self._layout.shapes[-1][0]
        return functional.one_hot(y, outputs).to(torch.float32) if self._softmax else y

    @torch.no_grad()
    def outputs(self, weights: Tensor, x: Tensor) -> Tensor:
        layers = self._layers(weights)
        return layers[-1](self._inputs(layers, self._first(x))[0][-1])

    def score(self, weights: Tensor, examples: Examples) -> tuple[float, int]:
        outputs = self.outputs(weights, examples.x)
        return scored(outputs, examples.y, self._loss(outputs, examples.y))


def _said(weights: Tensor, trained: Tensor, loads: Tensor) -> Tensor:
    """Return the weights plus the update to send.

    Training moves a bucket of n coordinates n times as far, so its movement is divided by n. Empty buckets do not move.
    """
    return trained.sub_(weights).div_(loads.clamp(min=1)).add_(weights)
