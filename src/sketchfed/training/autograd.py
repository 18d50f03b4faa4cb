"""Training of any `torch.nn.Module` with autograd. The parameters are views of one flat vector."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sketchfed.devices import CPU, drawn, moved, seeded
from sketchfed.errors import InputError
from sketchfed.kernels.pages import copy_of
from sketchfed.nn.model_sketch import ModelSketch
from sketchfed.seeds import PublicSeed
from sketchfed.training.alone import each_gradient
from sketchfed.training.base import CHUNK, LocalWork, batches, explained
from sketchfed.training.blind import Latest, client_form
from sketchfed.training.eager import LEAST_EAGER, EagerSteps, came_too_early
from sketchfed.training.items import Stream, advice_on, placed
from sketchfed.training.losses import Loss
from sketchfed.training.memory import Turn
from sketchfed.training.objective import Objective, OfBatch, OnDevice, objective_of, outputs_of
from sketchfed.training.own_parts import OwnParts
from sketchfed.training.recipe import Recipe
from sketchfed.vectors import Layout, Sharing, adopt, emptied, hollow, sharing, trainable


class AutogradTrainer:
    """Trains any module with autograd. Each thread has a copy of the module, whose parameters become views of a flat vector
    while it is trained. Between calls, no copy holds weights.

    If the forward pass draws from torch's global generator (dropout), clients are trained one after the other, with a new seed
    for each client. The results then do not depend on the number of workers. A module is refused if training changes a buffer
    (such as the running statistics of batch normalisation) of which nobody said whether it is averaged or stays with the
    client.

    With a `form`, the module is the client form of a model. A step that changes the update to send by −rate·Γ moves the weights
    that the client sees by −rate·RRᵀΓ.

    A `recipe` other than the usual one takes the steps with one of torch's optimisers.

    On another `device` than the CPU, weights and batches are moved there. What `train` and `gradients` return stays there, and
    everything else is on the CPU. Clients are trained one after the other.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss | Objective,
        form: ModelSketch | None = None,
        recipe: Recipe | None = None,
        device: torch.device = CPU,
    ) -> None:
        self.dim = Layout.of(module).dim
        self._device, self._draws = device, False
        self._changed: Sequence[str] = ()
        self._eager = self.dim >= LEAST_EAGER
        self._module, self._form, self._recipe = _without_sparse(hollow(module)), form, recipe or Recipe()
        self._own, self._plain = OwnParts(module), sharing(module) == Sharing()
        self._loss = loss
        self._objective = objective_of(loss) if device.type == "cpu" else OnDevice(objective_of(loss), device)
        self._local = threading.local()
        self._sketched: Latest[AutogradTrainer] = Latest()

    @property
    def sequential(self) -> bool:
        """Whether the module draws from torch's generators, or all clients share a GPU."""
        return self._draws or self._device.type != "cpu"

    def check(self, examples: Any) -> None:
        """Try a forward and a backward pass, and detect whether the module draws random numbers or changes buffers."""
        with self._holding(torch.linspace(-0.1, 0.1, self.dim)) as module:
            buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
            module.train()
            with torch.random.fork_rng(devices=[]), seeded(self._device, 0):
                before = drawn(self._device)
                with explained(examples, of_batch=isinstance(self._loss, OfBatch)):
                    self._objective.tried(module, examples).backward()
                self._draws = not all(map(torch.equal, before, drawn(self._device)))
            changed = [name for name, buffer in module.named_buffers() if not torch.equal(buffer, buffers[name])]
            for name in changed:  # the next examples are tried on the same module
                module.get_buffer(name).copy_(buffers[name])
        self._check_buffers(changed)
        self._changed = changed

    def _check_buffers(self, changed: Sequence[str]) -> None:
        """Refuse changes of buffers of which nobody said what happens to them. Counters begin anew in each round."""
        shared = sharing(self._module)
        known = {*shared.averaged, *shared.kept}
        open_ones = [
            name for name in changed if name not in known and (not known or self._module.get_buffer(name).is_floating_point())
        ]
        if open_ones:
            remedy = "" if known else "model.buffers = 'average' averages the statistics of BatchNorm, and 'local' keeps them. "
            raise InputError(
                f"training changes the buffer '{open_ones[0]}', which no update carries, so clients would drift apart. {remedy}"
                f"For other buffers, name them as well: model.running = ['{open_ones[0]}']. Or use nn.GroupNorm or "
                "nn.LayerNorm, which keep no statistics and also work on a batch of one example."
            )

    def train(self, weights: Tensor, examples: Any, work: LocalWork, turn: Turn) -> Tensor:
        try:
            return self._tried(weights, examples, work, turn)
        except ValueError as error:
            if isinstance(error, InputError) or (advice := advice_on(error)) is None:
                raise
            raise InputError(f"{str(error).rstrip('.')}. {advice}") from error

    def _tried(self, weights: Tensor, examples: Any, work: LocalWork, turn: Turn) -> Tensor:
        if self._eager and self._recipe.usual and self._form is None and not (work.momentum or work.decay or turn.pull):
            try:
                return self._seeded(weights, examples, work, turn, eager=True)
            except RuntimeError as error:
                if not came_too_early(error):
                    raise
                self._eager = False
        return self._seeded(weights, examples, work, turn)

    def _seeded(self, weights: Tensor, examples: Any, work: LocalWork, turn: Turn, *, eager: bool = False) -> Tensor:
        number = int(turn.seed.child("torch").words(1)[0])
        with torch.random.fork_rng(devices=[], enabled=self._draws), seeded(self._device, number):
            if self._draws:
                torch.default_generator.manual_seed(number)
            return self._trained(weights, examples, work, turn, eager=eager)

    def _trained(self, weights: Tensor, examples: Any, work: LocalWork, turn: Turn, *, eager: bool) -> Tensor:
        trained, seed = self._own_copy(weights), turn.seed
        turn.pull = turn.pull.to(self._device)
        with self._holding(trained) as module, self._own.trained(module, turn):
            module.train()
            if not (self._recipe.usual and (self._plain or not (work.momentum or work.decay or turn.pull))):
                drawn = batches(examples, work, seed)
                self._recipe.descend(module, self._objective, drawn, work, turn, self._count(examples, work))
                return trained
            if self._form is None and not (work.momentum or work.decay or turn.pull):
                (self._descend_eagerly if eager else self._descend)(module, examples, work, seed)
                return trained
            return self._descend_flat(module, trained, examples, work, turn)

    def _own_copy(self, weights: Tensor) -> Tensor:
        return copy_of(weights) if self._device.type == "cpu" else weights.to(self._device, copy=True)

    def _count(self, examples: Any, work: LocalWork) -> int:
        """The number of steps of the local work."""
        if isinstance(examples, Stream) and work.steps is None and self._recipe.step_schedule != "constant":
            raise InputError(
                "training.step_schedule stretches over the steps of a round, and nobody knows how many batches a DataLoader "
                "gives. Set algorithm.local_steps."
            )
        return work.count(examples.size)

    def _descend(self, module: nn.Module, examples: Any, work: LocalWork, seed: PublicSeed) -> None:
        """Take steps of plain SGD. Gradients stay where autograd puts them, so that nothing is copied."""
        parameters = list(trainable(module).values())
        for batch in batches(examples, work, seed):
            self._objective(module, batch).backward()
            used = [parameter for parameter in parameters if parameter.grad is not None]
            with torch.no_grad():
                torch._foreach_add_([p.data for p in used], [p.grad for p in used], alpha=-work.rate)  # type: ignore[misc]
            for parameter in used:
                parameter.grad = None

    def _descend_eagerly(self, module: nn.Module, examples: Any, work: LocalWork, seed: PublicSeed) -> None:
        """The same steps with less memory."""
        steps = EagerSteps(list(trainable(module).values()), work.rate)
        with steps.taken():
            for batch in batches(examples, work, seed):
                steps.step(self._objective(module, batch))

    def _descend_flat(self, module: nn.Module, trained: Tensor, examples: Any, work: LocalWork, turn: Turn) -> Tensor:
        """Take steps that need the gradient as one vector: those with momentum, decay or a pull, and those of a client form."""
        gradient = torch.zeros_like(trained)
        views = Layout.of(module).views(gradient)
        for name, parameter in trainable(module).items():
            parameter.grad = views[name]
        velocity = torch.zeros_like(trained) if work.momentum else None
        said = None if self._form is None else trained.clone()
        start = trained.clone() if turn.pull else trained
        for batch in batches(examples, work, turn.seed):
            gradient.zero_()
            self._objective(module, batch).backward()
            step = gradient
            if work.decay:
                step.add_(trained, alpha=work.decay)
            turn.pull.add_to(step, trained, start)
            if velocity is not None:
                step = velocity.mul_(work.momentum).add_(step)
            trained.add_(self.gram(step), alpha=-work.rate)
            if said is not None:
                said.add_(step, alpha=-work.rate)
        return trained if said is None else said

    def gram(self, step: Tensor) -> Tensor:
        return step if self._form is None else self._form.gram(step)

    def sketched(self, form: ModelSketch) -> "AutogradTrainer":
        return self._sketched.get(form, lambda: self._made(form))

    def _made(self, form: ModelSketch) -> "AutogradTrainer":
        trainer = AutogradTrainer(client_form(self._module, form), self._loss, form, self._recipe, self._device)
        trainer._draws, trainer._changed = self._draws, self._changed
        return trainer

    def gradients(self, weights: Tensor, examples: Any, out: Tensor | None = None) -> Tensor:
        """Uses `torch.func`. The module must treat each example separately and must not draw random numbers."""
        if self._draws:
            raise InputError(
                "the model draws random numbers (dropout?), so the gradient of an example depends on more than the example. "
                "Remove such layers for privacy at example level, or protect whole clients: privacy.unit = 'client'."
            )
        if self._changed:
            raise InputError(
                f"training changes the buffer '{self._changed[0]}', so the gradient of an example depends on more than the "
                "example. Use layers without running statistics, such as nn.GroupNorm, for privacy at example level, or "
                "protect whole clients: privacy.unit = 'client'."
            )
        module = self._copy().train()
        try:
            there = placed(examples, self._device)
            return each_gradient(module, objective_of(self._loss), weights.to(self._device), there)
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"this model gives no gradient for a single example: {error}. Privacy at example level needs such gradients, "
                "but layers that mix examples (BatchNorm) do not have them. Use GroupNorm, or privacy.unit = 'client'."
            ) from error

    def clipped_sum(self, weights: Tensor, examples: Any, clip: float) -> Tensor:
        total = torch.zeros(self.dim, device=self._device)
        for start in range(0, examples.size, CHUNK):
            rows = self.gradients(weights, examples.part(start, start + CHUNK))
            scales = (clip / rows.norm(dim=1).clamp(min=1e-30)).clamp(max=1.0)
            total.addmv_(rows.t(), scales)
        return total.cpu()

    def outputs(self, weights: Tensor, x: Any) -> Tensor:
        # A copy, because some layers write to their weights (an embedding with max_norm).
        with self._holding(copy_of(weights)) as module, torch.no_grad():
            return outputs_of(module.eval(), moved(x, self._device)).cpu()

    def score(self, weights: Tensor, examples: Any) -> tuple[float, int]:
        with self._holding(copy_of(weights)) as module, torch.no_grad():
            found: tuple[float, int] = self._objective.score(module.eval(), examples)
            return found

    @contextmanager
    def _holding(self, weights: Tensor) -> Iterator[nn.Module]:
        """The thread's own module with these weights. It may write to them, and forgets them at the end."""
        module = self._copy()
        adopt(module, weights.to(self._device))
        self._own.load(module, {})
        try:
            yield module
        finally:
            emptied(module)

    def _copy(self) -> nn.Module:
        if not hasattr(self._local, "module"):
            self._local.module = hollow(self._module, self._device)
        return self._local.module  # type: ignore[no-any-return]


def _without_sparse(module: nn.Module) -> nn.Module:
    """Let embeddings have dense gradients. An update holds all parameters, and many optimisers refuse sparse gradients."""
    for layer in module.modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            layer.sparse = False
    return module
