"""Finds losses that compare the outputs of each example with the targets of all examples."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sketchfed.errors import InputError

_PAIRWISE = {
    torch.sub, torch.subtract, torch.rsub, torch.mul, torch.multiply, torch.div, torch.divide, torch.true_divide,
    *(
        getattr(Tensor, name)
        for name in ("sub", "subtract", "__sub__", "__rsub__", "mul", "multiply", "__mul__", "__rmul__", "div", "divide",
                     "true_divide", "__truediv__", "__rtruediv__", "__div__")
        if hasattr(Tensor, name)
    ),
}  # fmt: skip
_LOSSES = {functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss}
"""Losses that compare number by number, and only warn if shapes differ."""


@contextmanager
def refusing_broadcasts(module: nn.Module, size: int) -> Iterator[None]:
    """Raise `InputError` if code in this block broadcasts outputs `(n, 1)` and targets `(n,)` to `(n, n)`, where n is `size`.

    torch does so without an error, and training then minimises the wrong function. What happens inside of the module is not
    looked at. Two tensors are taken for outputs and targets if exactly one of them depends on parameters, and both have an
    example in each row. Numbers of dimensions that are made equal on purpose, as in x[:, None] - y[None], are not refused.
    """
    mode = _Watch(size)
    handles = [
        module.register_forward_pre_hook(lambda *_: mode.enter(), prepend=True),
        module.register_forward_hook(lambda *_: mode.leave(), always_call=True),
    ]
    try:
        with mode:
            yield
    finally:
        for handle in handles:
            handle.remove()


class _Watch(TorchFunctionMode):
    """Looks at each operation on two tensors outside of the module."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size, self._depth = size, 0

    def enter(self) -> None:
        self._depth += 1

    def leave(self) -> None:
        self._depth -= 1

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self._depth and (func in _PAIRWISE or func in _LOSSES):
            given = [*args, *(kwargs or {}).values()][:2]
            if len(given) == 2 and all(isinstance(each, Tensor) for each in given):
                self._check(given[0], given[1], strict=func in _LOSSES)
        return func(*args, **(kwargs or {}))

    def _check(self, one: Tensor, other: Tensor, *, strict: bool) -> None:
        if one.shape == other.shape or one.requires_grad == other.requires_grad:
            return
        if strict or self._mixes(one, other):
            outputs, targets = (one, other) if one.requires_grad else (other, one)
            raise InputError(
                f"in a batch of {self._size} examples the loss compares outputs of shape {tuple(outputs.shape)} with targets "
                f"of shape {tuple(targets.shape)}. torch broadcasts one to the other, so numbers would be compared that do not "
                "belong together. Give both the same shape, for example y[:, None] or outputs.squeeze(1)."
            )

    def _mixes(self, one: Tensor, other: Tensor) -> bool:
        """Whether each row of one meets all rows of the other."""
        if self._size < 2 or one.ndim == other.ndim or not one.ndim or not other.ndim:
            return False
        if one.shape[0] != self._size or other.shape[0] != self._size:
            return False
        try:
            most = int(torch.broadcast_shapes(one.shape, other.shape).numel())  # type: ignore[no-untyped-call]
        except RuntimeError:
            return False
        return most > max(one.numel(), other.numel())
