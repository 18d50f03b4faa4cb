"""What every sketch shares: its fields, the checks on what comes in, and derivatives of every order."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from sketchfed.errors import InputError, NotFiniteError
from sketchfed.kernels.finite import all_finite
from sketchfed.seeds import PublicSeed

MAX_DIM = 2**31 - 1
MOST_MOVED = 2**29
"""The room for what was drawn on the CPU and moved to devices, in bytes for each kind of sketch."""


@dataclass(frozen=True, kw_only=True)
class Sketch(ABC):
    """A random linear map R from `dim` to `size` numbers, rebuilt from its seed, with E[RᵀR] = I.

    Equal fields are the same operator, on every machine. `apply` and `adjoint` take float32 or float64 tensors of any
    leading shape on any device, and are differentiable as often as one likes. A family implements `_apply` and `_adjoint`
    for contiguous `(batch, dim)` and `(batch, size)` tensors, and says its `alpha` and `exact_alpha`.
    """

    dim: int
    size: int
    seed: PublicSeed

    name: ClassVar[str]
    """The name under which the registry knows this family."""
    summary: ClassVar[str]
    """What it is, in a few words, for tables; likewise `source`, the paper."""
    source: ClassVar[str]
    cost: ClassVar[str]
    """What `apply` costs, in a few words, for tables. Every family says it."""
    alpha_formula: ClassVar[str]
    """The formula of `alpha`, in letters, for tables. Every family says it."""
    wide: ClassVar[bool] = True
    """Whether size may exceed dim."""
    reads_all: ClassVar[bool] = True
    """Whether every coordinate reaches some coefficient, so that what is not finite shows there."""
    portable: ClassVar[bool] = False
    """Whether `adjoint` only adds in a fixed order, negates, and multiplies or divides each number once. IEEE 754 says what the
    bits of these are, so a device can de-sketch what others de-sketch on a CPU (`sketches.portable`)."""
    orthogonal: ClassVar[bool] = False
    """Whether the rows of R are orthogonal for every seed, so that RRᵀ is diagonal: `loads`."""

    def __post_init__(self) -> None:
        for name, value in (("dim", self.dim), ("size", self.size)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise InputError(f"{name} must be an integer, got {value!r} of type {type(value).__name__}.")
            if not 1 <= value <= MAX_DIM:
                raise InputError(f"{name} must be from 1 to 2^31 - 1, got {value:,}.")
        if not isinstance(self.seed, PublicSeed):
            raise InputError(
                f"seed must be a PublicSeed, got {type(self.seed).__name__}: a sketch is rebuilt by every "
                "party. Write seed=PublicSeed(7)."
            )
        if not self.wide and self.size > self.dim:
            raise InputError(
                f"size {self.size:,} exceeds dim {self.dim:,}: '{self.name}' draws without replacement and has no "
                f"more rows to draw. Use size <= {self.dim:,}, or a family such as 'gaussian'."
            )

    @property
    @abstractmethod
    def alpha(self) -> float:
        """The published α with E‖RᵀRh‖² ≤ (1 + α)‖h‖² for every fixed h (Song et al. 2023, Thm 4.2 and Table 1)."""

    @property
    @abstractmethod
    def exact_alpha(self) -> float:
        """The smallest such α: the worst h attains it."""

    def apply(self, x: Tensor) -> Tensor:
        """R x: shape `(..., dim)` to `(..., size)`."""
        self._check(x, self.dim, "x", "apply")
        return self._mapped(x, transposed=False)

    def adjoint(self, y: Tensor) -> Tensor:
        """Rᵀy: shape `(..., size)` to `(..., dim)`. E[adjoint(apply(x))] = x."""
        self._check(y, self.size, "y", "adjoint")
        return self._mapped(y, transposed=True)

    @cached_property
    def loads(self) -> Tensor:
        """The diagonal `(size,)` of RRᵀ where rows are orthogonal: how many coordinates a bucket holds, 0 for an empty one."""
        if not self.orthogonal:
            raise InputError(
                f"the rows of this '{self.name}' sketch are not orthogonal, so its buckets have no loads. Use a family that "
                "puts every coordinate into one bucket, such as 'count' or 'balanced'."
            )
        return self.apply(self.adjoint(torch.ones(self.size)))

    def _mapped(self, t: Tensor, *, transposed: bool) -> Tensor:
        if _needs_no_derivative(t):
            return _LinearMap.forward(t, self, transposed, True)
        return _LinearMap.apply(t, self, transposed, True)  # type: ignore[no-any-return, no-untyped-call]

    @abstractmethod
    def _apply(self, x: Tensor) -> Tensor:
        """R x for a contiguous tensor: `(batch, dim)` to `(batch, size)`, of the same type and on the same device."""

    @abstractmethod
    def _adjoint(self, y: Tensor) -> Tensor:
        """Rᵀy for a contiguous tensor: `(batch, size)` to `(batch, dim)`, of the same type and on the same device."""

    def _check(self, t: Tensor, length: int, name: str, method: str) -> None:
        if not isinstance(t, Tensor):
            raise InputError(f"{method} takes a torch tensor, got {type(t).__name__}. Wrap it: torch.as_tensor({name}).")
        if t.dtype not in (torch.float32, torch.float64):
            raise InputError(f"{method} takes float32 or float64, got {t.dtype}. Convert it: {name}.to(torch.float32).")
        if t.ndim == 0 or t.shape[-1] != length:
            field = "dim" if method == "apply" else "size"
            raise InputError(
                f"the last dimension of {name} must be {field} = {length:,}, got shape {tuple(t.shape)}. Reshape "
                f"it to (..., {length}), or make the sketch for {field}="
                f"{t.shape[-1] if t.ndim else 1}."
            )


class _LinearMap(torch.autograd.Function):
    """R or Rᵀ as an autograd function: each is the other's derivative, so derivatives of every order exist."""

    @staticmethod
    def forward(t: Tensor, sketch: Sketch, transposed: bool, checked: bool) -> Tensor:
        rows = t.detach()[None] if t.ndim == 1 else t.detach().reshape(-1 if t.numel() else 0, t.shape[-1])
        rows = rows.contiguous()
        on_output = not transposed and sketch.reads_all  # the shorter side is the cheaper one to look at
        if checked and not on_output:
            _refuse_non_finite(rows, "adjoint" if transposed else "apply")
        out = sketch._adjoint(rows) if transposed else sketch._apply(rows)
        if out.shape != (wanted := (len(rows), sketch.dim if transposed else sketch.size)):
            method = "_adjoint" if transposed else "_apply"
            raise InputError(
                f"{method} of sketch '{sketch.name}' ({type(sketch).__qualname__}) should have returned {wanted[1]:,} numbers "
                f"for each of {wanted[0]:,} vectors, not shape {tuple(out.shape)}. Mend that class."
            )
        if checked and on_output and not all_finite(out):
            _refuse_non_finite(rows, "apply")
            raise InputError(
                f"apply overflowed {rows.dtype}: the values are finite but their sums are not. Scale them down, "
                "or convert to float64."
            )
        return out[0] if t.ndim == 1 else out if t.ndim == 2 else out.reshape(*t.shape[:-1], out.shape[-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        _, ctx.sketch, ctx.transposed, _ = inputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _LinearMap.apply(gradient, ctx.sketch, not ctx.transposed, False), None, None, None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Any:
        return _LinearMap.apply(tangent, ctx.sketch, ctx.transposed, False)  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(_info: Any, in_dims: Any, t: Tensor, sketch: Sketch, transposed: bool, checked: bool) -> Any:
        return _LinearMap.apply(t.movedim(in_dims[0], 0), sketch, transposed, checked), 0  # type: ignore[no-untyped-call]


# Not public, so their absence only means that the way through autograd is always taken.
_transforms_active: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)


def _needs_no_derivative(t: Tensor) -> bool:
    """Whether a plain call will do: going through autograd costs 20 microseconds, as long as a sketch of 2^15 numbers."""
    forward_level = getattr(torch.autograd.forward_ad, "_current_level", 0)
    return forward_level < 0 and not t.requires_grad and not _transforms_active()


def _refuse_non_finite(t: Tensor, method: str) -> None:
    if all_finite(t):
        return
    bad = ~torch.isfinite(t)
    first = int(bad.any(0).nonzero()[0])
    raise NotFiniteError(
        f"{method} got {int(bad.sum()):,} values that are NaN or infinite, the first at coordinate {first:,}; a "
        "sketch would spread them over every coefficient. Find where training diverged (a smaller step?), or "
        "drop this update."
    )
