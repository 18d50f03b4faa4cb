"""An observation of a client's local work: a linear function of the change that it made, perhaps with noise."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sketchfed.codecs.linear import LinearMap, RoundTrip
from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples, LocalWork, Loss
from sketchfed.training.base import batches
from sketchfed.training.objective import Objective, loss_at, objective_of
from sketchfed.vectors import Layout


class Observed(Protocol):
    """What an attack can ask of an observation, or of several observations of the same examples."""

    @property
    def values(self) -> Tensor:
        """What arrived, `(size,)`."""

    @property
    def module(self) -> nn.Module:
        """The model as it was trained."""

    @property
    def gradient(self) -> Tensor:
        """An estimate of the gradient, `(dim,)`."""

    def seen(self, x: Tensor, y: Tensor) -> Tensor:
        """What would have arrived if these were the examples, `(size,)`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
    """`values` = A·(change of the weights by local work on unknown examples). Everything but the examples is known.

    A is `map`: a sketch, the coordinates that were sent, a subspace, or the identity. One attack serves all of them, because it
    only asks what its candidate examples would have looked like (`seen`). Noise in the values is not modelled.
    """

    values: Tensor
    """What arrived, `(size,)`."""
    module: nn.Module
    """The model as the client trained it."""
    loss: Loss | Objective
    weights: Tensor
    """The weights from which the work began, flat, `(dim,)`."""
    work: LocalWork
    seed: PublicSeed | tuple[PublicSeed, ...]
    """The seed of the client in its round, because the order of its batches is public. Several seeds if the mean of several
    clients was seen."""
    counts: tuple[int, ...] = ()
    """The number of examples of each client, if there are several clients. If absent, all have the same number."""
    sizes: tuple[int, ...] = ()
    """The total number of examples of each client, if it did not use all of them. Its batches are drawn from these."""
    map: LinearMap | None = None
    gram: Callable[[Tensor], Tensor] | None = None
    """How the weights move if changes are made behind a sketch (`Trainer.gram`)."""

    def __post_init__(self) -> None:
        expected = Layout.of(self.module).dim
        if self.weights.shape != (expected,):
            raise InputError(
                f"the model has {expected:,} parameters, and the weights have shape {tuple(self.weights.shape)}. Give those "
                "that this client started from, in the form in which it trained them."
            )
        if self.values.ndim != 1 or not torch.isfinite(self.values).all():
            raise InputError(f"an observation is one vector of finite numbers, got shape {tuple(self.values.shape)}.")

    @property
    def gradient(self) -> Tensor:
        """Estimates the sum of the gradients of the local steps, `(dim,)`: −Aᵀ·values/rate. Unbiased for our sketches."""
        back = self.values if self.map is None or isinstance(self.map, RoundTrip) else self.map.adjoint(self.values)
        return back / -self.work.rate

    @torch.enable_grad()
    def change(self, x: Tensor, y: Tensor) -> Tensor:
        """The change that the local work would make with these examples, `(dim,)`. It can be differentiated by them.

        Several steps are unrolled, with the batches that the client had. The examples are those that it used, in the order in
        which it holds them. Examples of several clients follow each other. Targets may be probabilities. Everything is computed
        in the type of x.
        """
        if isinstance(self.seed, PublicSeed):
            return self._changed(x, y, self.seed, self.sizes[0] if self.sizes else None)
        clients = len(self.seed)
        if (sum(self.counts) if self.counts else len(x) - len(x) % clients) != len(x) or len(x) < clients:
            wanted = f"{sum(self.counts)}" if self.counts else f"a multiple of {clients}"
            raise InputError(f"{clients} clients have {wanted} examples together, got {len(x)}.")
        parts = [torch.split(each, list(self.counts) or len(x) // clients) for each in (x, y)]
        sizes = self.sizes or [None] * clients
        changes = [self._changed(*own) for own in zip(*parts, self.seed, sizes, strict=True)]
        return torch.stack(changes).mean(0)

    def _changed(self, x: Tensor, y: Tensor, seed: PublicSeed, size: int | None = None) -> Tensor:
        start = self.weights.detach().to(x.dtype, copy=True).requires_grad_()
        layout, moved, said = Layout.of(self.module), start, torch.zeros_like(start)
        velocity: Tensor | None = None
        for batch in batches_used(Examples(x, y), self.work, seed, size):
            step = self._gradient(loss_at(self.module, objective_of(self.loss), layout, moved, batch), moved)
            if self.work.decay:
                step = step + self.work.decay * moved
            if self.work.momentum:
                velocity = step if velocity is None else self.work.momentum * velocity + step
                step = velocity
            said = said - self.work.rate * step
            moved = moved - self.work.rate * (step if self.gram is None else self.gram(step))
        if not said.requires_grad or (x.requires_grad and not _depends(said, x)):
            raise InputError(
                "the gradient of this model does not depend on the example, as far as autograd sees, so nothing can be "
                "matched: some operation in it has no second derivative. Replace it (a detach, a custom backward pass), or use "
                "the analytic attack on a first dense layer, which needs none."
            )
        return said

    def seen(self, x: Tensor, y: Tensor) -> Tensor:
        """What would have arrived if these were the examples, `(size,)`."""
        change = self.change(x, y)
        return change if self.map is None else through(self.map, change)

    def _gradient(self, loss: Tensor, weights: Tensor) -> Tensor:
        try:
            (found,) = torch.autograd.grad(loss, weights, create_graph=True)
        except RuntimeError as error:
            raise InputError(
                f"the model cannot be differentiated for the attack: {error}. Use a model whose loss is a differentiable "
                "function of its parameters."
            ) from error
        return found


def _depends(result: Tensor, x: Tensor) -> bool:
    """Whether a result was computed from x."""
    known: set[Any] = set()
    left: list[Any] = [result.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in known:
            if node is x.grad_fn or getattr(node, "variable", None) is x:
                return True
            known.add(node)
            left += [before for before, _ in node.next_functions]
    return False


def batches_used(examples: Examples, work: LocalWork, seed: PublicSeed, size: int | None) -> Iterator[Examples]:
    """The batches of a client that has `size` examples and used these. For any other number, they count as all that it has."""
    order, slices = work.order(size or len(examples.x), seed)
    used, places = torch.unique(order[: slices[-1][1] if slices else 0], return_inverse=True)
    if len(used) != len(examples.x):
        yield from batches(examples, work, seed)
        return
    for start, stop in slices:
        own = places[start:stop]
        yield examples if len(slices) == 1 else Examples(examples.x[own], examples.y[own])


def through(known: LinearMap, x: Tensor) -> Tensor:
    """Apply a linear map so that the result can be differentiated by x."""
    found: Tensor = _Mapped.apply(x, known)  # type: ignore[no-untyped-call]
    return found


class _Mapped(torch.autograd.Function):
    """A linear map whose derivative is its adjoint. So maps that compute outside torch can be matched through as well."""

    @staticmethod
    def forward(ctx: Any, change: Tensor, known: LinearMap) -> Tensor:
        ctx.known = known
        return known.apply(change)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.known.adjoint(gradient), None
