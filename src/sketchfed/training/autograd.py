"""Training of any `torch.nn.Module` with autograd. The parameters are views of one flat vector."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sketchfed.errors import InputError
from sketchfed.kernels.pages import copy_of
from sketchfed.nn.model_sketch import ModelSketch
from sketchfed.seeds import PublicSeed
from sketchfed.training.alone import each_gradient
from sketchfed.training.base import CHUNK, LocalWork, batches, explained
from sketchfed.training.blind import Latest, client_form
from sketchfed.training.eager import LEAST_EAGER, EagerSteps, came_too_early
from sketchfed.training.items import Stream
from sketchfed.training.losses import Loss
from sketchfed.training.memory import Turn
from sketchfed.training.objective import OfBatch, objective_of
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
    """

    def __init__(
        self, module: nn.Module, loss: Loss | OfBatch, form: ModelSketch | None = None, recipe: Recipe | None = None
    ) -> None:
        self.dim = Layout.of(module).dim
        self.sequential = False
        self._eager = self.dim >= LEAST_EAGER
        self._module, self._form, self._recipe = hollow(module), form, recipe or Recipe()
        self._own, self._plain = OwnParts(module), sharing(module) == Sharing()
        self._loss, self._objective = loss, objective_of(loss)
        self._local = threading.local()
        self._sketched: Latest[AutogradTrainer] = Latest()

    def check(self, examples: Any) -> None:
        """Try a forward and a backward pass, and detect whether the module draws random numbers or changes buffers."""
        with self._holding(torch.linspace(-0.1, 0.1, self.dim)) as module:
            buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
            module.train()
            with torch.random.fork_rng(devices=[]):
                before = torch.get_rng_state()
                with explained(examples):
                    self._objective.tried(module, examples).backward()
                self.sequential = not torch.equal(before, torch.get_rng_state())
            changed = [name for name, buffer in module.named_buffers() if not torch.equal(buffer, buffers[name])]
            for name in changed:  # the next examples are tried on the same module
                module.get_buffer(name).copy_(buffers[name])
        self._check_buffers(changed)

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
        if self._eager and self._recipe.usual and self._form is None and not (work.momentum or work.decay or turn.pull):
            try:
                return self._seeded(weights, examples, work, turn, eager=True)
            except RuntimeError as error:
                if not came_too_early(error):
                    raise
                self._eager = False
        return self._seeded(weights, examples, work, turn)

    def _seeded(self, weights: Tensor, examples: Any, work: LocalWork, turn: Turn, *, eager: bool = False) -> Tensor:
        with torch.random.fork_rng(devices=[], enabled=self.sequential):
            if self.sequential:
                torch.manual_seed(int(turn.seed.child("torch").words(1)[0]))
            return self._trained(weights, examples, work, turn, eager=eager)

    def _trained(self, weights: Tensor, examples: Any, work: LocalWork, turn: Turn, *, eager: bool) -> Tensor:
        trained, seed = copy_of(weights), turn.seed
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
        trainer = AutogradTrainer(client_form(self._module, form), self._loss, form, self._recipe)
        trainer.sequential = self.sequential
        return trainer

    def gradients(self, weights: Tensor, examples: Any, out: Tensor | None = None) -> Tensor:
        """Uses `torch.func`. The module must treat each example separately and must not draw random numbers."""
        if self.sequential:
            raise InputError(
                "the model draws random numbers (dropout?), so the gradient of an example depends on more than the example. "
                "Remove such layers for privacy at example level, or protect whole clients: privacy.unit = 'client'."
            )
        module = self._copy().train()
        try:
            return each_gradient(module, self._objective, weights, examples)
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"this model gives no gradient for a single example: {error}. Privacy at example level needs such gradients, "
                "but layers that mix examples (BatchNorm) do not have them. Use GroupNorm, or privacy.unit = 'client'."
            ) from error

    def clipped_sum(self, weights: Tensor, examples: Any, clip: float) -> Tensor:
        total = torch.zeros(self.dim)
        for start in range(0, examples.size, CHUNK):
            rows = self.gradients(weights, examples.part(start, start + CHUNK))
            scales = (clip / rows.norm(dim=1).clamp(min=1e-30)).clamp(max=1.0)
            total.addmv_(rows.t(), scales)
        return total

    def outputs(self, weights: Tensor, x: Tensor) -> Tensor:
        # A copy, because some layers write to their weights (an embedding with max_norm).
        with self._holding(copy_of(weights)) as module, torch.no_grad():
            return module.eval()(x)  # type: ignore[no-any-return]

    def score(self, weights: Tensor, examples: Any) -> tuple[float, int]:
        with self._holding(copy_of(weights)) as module, torch.no_grad():
            found: tuple[float, int] = self._objective.score(module.eval(), examples)
            return found

    @contextmanager
    def _holding(self, weights: Tensor) -> Iterator[nn.Module]:
        """The thread's own module with these weights. It may write to them, and forgets them at the end."""
        module = self._copy()
        adopt(module, weights)
        self._own.load(module, {})
        try:
            yield module
        finally:
            emptied(module)

    def _copy(self) -> nn.Module:
        if not hasattr(self._local, "module"):
            self._local.module = hollow(self._module)
        return self._local.module  # type: ignore[no-any-return]
