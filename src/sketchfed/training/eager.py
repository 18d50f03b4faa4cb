"""Steps that are taken during the backward pass."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_CHANGED = "modified by an inplace operation"  # autograd says so of a tensor that it wants to read
LEAST_EAGER = 2**22
"""Models with at least this many weights step during the backward pass. In smaller ones, gradients take little memory."""


class _PartError(RuntimeError):
    """A parameter moved before its gradient was complete."""


def came_too_early(error: RuntimeError) -> bool:
    """Whether an error says that a parameter moved before the backward pass was done with it."""
    return isinstance(error, _PartError) or _CHANGED in str(error)


class EagerSteps:
    """Plain SGD in which each parameter moves as soon as its gradient is complete. The gradient is then freed.

    So a backward pass holds the gradients of a layer or two, not those of the whole model. The numbers are those of a step
    afterwards, because autograd completes the gradient of a parameter when no part of the graph that differentiates by it is
    left. There are graphs in which this is too early: other parts read the parameter later, because the model detached it, or
    the gradient comes in several parts, as in reentrant checkpoints. Then `step` raises an error that `came_too_early` knows.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], rate: float) -> None:
        self._parameters, self._rate = parameters, rate
        self._moved: set[int] = set()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Within this context, `step` takes steps."""
        handles = [
            parameter.register_post_accumulate_grad_hook(self._move)  # type: ignore[no-untyped-call]
            for parameter in self._parameters
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def step(self, loss: Tensor) -> None:
        """Take one step."""
        self._moved.clear()
        loss.backward()  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def _move(self, parameter: Tensor) -> None:
        if id(parameter) in self._moved:
            raise _PartError("the gradient of a parameter came in parts, but the parameter had moved after the first part")
        self._moved.add(id(parameter))
        if parameter.grad is not None:
            parameter.add_(parameter.grad, alpha=-self._rate)
            parameter.grad = None
