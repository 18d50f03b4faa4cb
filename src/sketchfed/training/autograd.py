"""Training of any `torch.nn.Module` with autograd. The parameters are views of one flat vector."""

import threading
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sketchfed.errors import InputError
from sketchfed.nn.model_sketch import ModelSketch
from sketchfed.seeds import PublicSeed
from sketchfed.training.base import CHUNK, Examples, LocalWork, batches, explained, scored
from sketchfed.training.blind import Latest, client_form
from sketchfed.training.fit import fitting_loss
from sketchfed.training.losses import Loss
from sketchfed.training.memory import Turn
from sketchfed.vectors import Layout, adopt, flatten, trainable


class _Copy(NamedTuple):
    module: nn.Module
    weights: Tensor
    gradient: Tensor


class AutogradTrainer:
    """Trains any module with autograd. Each thread has a copy of the module with flat vectors for parameters and gradients.

    If the forward pass draws from torch's global generator (dropout), clients are trained one after the other, with a new seed
    for each client. The results then do not depend on the number of workers. A module is refused if training changes its
    buffers (the running statistics of batch normalisation), because buffers are not part of the averaged update.

    With a `form`, the module is the client form of a model. A step that changes the update to send by −rate·Γ moves the weights
    that the client sees by −rate·RRᵀΓ.
    """

    def __init__(self, module: nn.Module, loss: Loss, form: ModelSketch | None = None) -> None:
        self.dim = Layout.of(module).dim
        self.sequential = False
        self._module, self._loss, self._form = deepcopy(module), loss, form
        self._local = threading.local()
        self._sketched: Latest[AutogradTrainer] = Latest()

    def check(self, examples: Examples) -> None:
        """Try a forward and a backward pass, and detect whether the module draws random numbers or changes buffers."""
        copy = self._copy()
        buffers = {name: buffer.clone() for name, buffer in copy.module.named_buffers()}
        copy.module.train()
        with torch.random.fork_rng(devices=[]):
            before = torch.get_rng_state()
            with explained(examples):
                fitting_loss(self._loss, copy.module(examples.x), examples.y).backward()  # type: ignore[no-untyped-call]
            self.sequential = not torch.equal(before, torch.get_rng_state())
        changed = [name for name, buffer in copy.module.named_buffers() if not torch.equal(buffer, buffers[name])]
        if changed:
            raise InputError(
                f"training changes the buffer '{changed[0]}', which no update carries, so clients would drift apart. Use "
                "nn.GroupNorm or nn.LayerNorm, which keep no statistics and also work on a batch of one example."
            )

    def train(self, weights: Tensor, examples: Examples, work: LocalWork, turn: Turn) -> Tensor:
        with torch.random.fork_rng(devices=[], enabled=self.sequential):
            if self.sequential:
                torch.manual_seed(int(turn.seed.child("torch").words(1)[0]))
            return self._trained(weights, examples, work, turn.seed)

    def _trained(self, weights: Tensor, examples: Examples, work: LocalWork, seed: PublicSeed) -> Tensor:
        copy = self._copy()
        copy.weights.copy_(weights)
        copy.module.train()
        velocity = torch.zeros_like(weights) if work.momentum else None
        said = None if self._form is None else weights.clone()
        for batch in batches(examples, work, seed):
            copy.gradient.zero_()
            self._loss(copy.module(batch.x), batch.y).backward()  # type: ignore[no-untyped-call]
            step = copy.gradient
            if work.decay:
                step.add_(copy.weights, alpha=work.decay)
            if velocity is not None:
                step = velocity.mul_(work.momentum).add_(step)
            copy.weights.add_(self.gram(step), alpha=-work.rate)
            if said is not None:
                said.add_(step, alpha=-work.rate)
        return copy.weights.clone() if said is None else said

    def gram(self, step: Tensor) -> Tensor:
        return step if self._form is None else self._form.gram(step)

    def sketched(self, form: ModelSketch) -> "AutogradTrainer":
        return self._sketched.get(form, lambda: self._made(form))

    def _made(self, form: ModelSketch) -> "AutogradTrainer":
        trainer = AutogradTrainer(client_form(self._module, form), self._loss, form)
        trainer.sequential = self.sequential
        return trainer

    def gradients(self, weights: Tensor, examples: Examples, out: Tensor | None = None) -> Tensor:
        """Uses `torch.func`. The module must treat each example separately and must not draw random numbers."""
        if self.sequential:
            raise InputError(
                "the model draws random numbers (dropout?), so the gradient of an example depends on more than the example. "
                "Remove such layers for privacy at example level, or protect whole clients: privacy.unit = 'client'."
            )
        copy = self._copy()
        copy.module.train()
        layout = Layout.of(copy.module)

        def loss_of(flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
            outputs = torch.func.functional_call(copy.module, layout.views(flat), (x[None],))
            return self._loss(outputs, y[None])

        if not len(examples.x):
            return torch.zeros(0, self.dim)
        try:
            each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))
            return each(weights, examples.x, examples.y).detach()  # type: ignore[no-any-return]
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"this model gives no gradient for a single example: {error}. Privacy at example level needs such gradients, "
                "but layers that mix examples (BatchNorm) do not have them. Use GroupNorm, or privacy.unit = 'client'."
            ) from error

    def clipped_sum(self, weights: Tensor, examples: Examples, clip: float) -> Tensor:
        total = torch.zeros(self.dim)
        for start in range(0, len(examples.x), CHUNK):
            part = Examples(examples.x[start : start + CHUNK], examples.y[start : start + CHUNK])
            rows = self.gradients(weights, part)
            scales = (clip / rows.norm(dim=1).clamp(min=1e-30)).clamp(max=1.0)
            total.addmv_(rows.t(), scales)
        return total

    def outputs(self, weights: Tensor, x: Tensor) -> Tensor:
        copy = self._copy()
        copy.weights.copy_(weights)
        copy.module.eval()
        with torch.no_grad():
            return copy.module(x)  # type: ignore[no-any-return]

    def score(self, weights: Tensor, examples: Examples) -> tuple[float, int]:
        outputs = self.outputs(weights, examples.x)
        return scored(outputs, examples.y, self._loss(outputs, examples.y))

    def _copy(self) -> _Copy:
        if not hasattr(self._local, "copy"):
            module = deepcopy(self._module)
            weights, gradient = flatten(module), torch.zeros(self.dim)
            adopt(module, weights)
            views = Layout.of(module).views(gradient)
            for name, parameter in trainable(module).items():
                parameter.grad = views[name]
            self._local.copy = _Copy(module, weights, gradient)
        return self._local.copy  # type: ignore[no-any-return]
