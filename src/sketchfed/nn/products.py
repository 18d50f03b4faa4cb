"""Products with a matrix of which only the sketch WS is at hand, differentiable as often as one likes.

Values that are not finite pass through them, as they do through torch's layers: the server looks for them once a round.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sketchfed.errors import InputError
from sketchfed.sketches import Sketch
from sketchfed.sketches.base import _LinearMap, _transforms_active


def sketched(matrix: Tensor, sketch: Sketch) -> Tensor:
    """WS for a W of `(out, dim)`: shape `(out, size)`."""
    sketch._check(matrix, sketch.dim, "matrix", "apply")
    return _LinearMap.apply(matrix, sketch, False, False)  # type: ignore[no-any-return, no-untyped-call]


def restored(weight: Tensor, sketch: Sketch) -> Tensor:
    """(WS)Sᵀ, `(out, dim)`: the matrix of a plain layer that has the outputs of the sketched one."""
    sketch._check(weight, sketch.size, "weight", "adjoint")
    return _LinearMap.apply(weight, sketch, True, False)  # type: ignore[no-any-return, no-untyped-call]


def restored_parts(weight: Tensor, bias: Tensor | None, sketch: Sketch, *, folded: bool) -> tuple[Tensor, Tensor | None]:
    """The weight and the bias of that plain layer; a bias that is folded is its last column."""
    matrix = restored(weight, sketch)
    return (matrix[:, :-1], matrix[:, -1]) if folded else (matrix, bias)


def product(x: Tensor, weight: Tensor, bias: Tensor | None, sketch: Sketch, *, folded: bool) -> Tensor:
    """(xS)(WS)ᵀ + b for x of `(..., inputs)` and `weight` WS.

    Paper: Zhang & Wang 2021, Sec. 4.2; the gradients are Γ = Gᵀ(xS) and G(WS)Sᵀ.
    """
    inputs = sketch.dim - folded
    if x.ndim == 0 or x.shape[-1] != inputs or x.dtype != weight.dtype:
        raise InputError(
            f"a layer of {inputs:,} inputs takes tensors (..., {inputs}) of {weight.dtype}, got one of shape {tuple(x.shape)} "
            f"and {x.dtype}."
        )
    if folded:
        x = functional.pad(x, (0, 1), value=1.0)
    if x.ndim == 1 or _transformed():
        return functional.linear(sketched(x, sketch), weight, bias)
    rows = x if x.ndim == 2 else x.flatten(0, -2)
    out: Tensor = _Product.apply(rows, weight, bias, sketch)  # type: ignore[no-untyped-call]
    return out if x.ndim == 2 else out.reshape(*x.shape[:-1], out.shape[-1])


class _Product(torch.autograd.Function):
    """`product` as one operation: for small layers the steps between operations cost more than the operations.

    Only for plain differentiation, once: for anything more its gradients are made of operations that differentiate themselves.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sketch: Sketch) -> Tensor:
        rows = sketch._apply(x.detach().contiguous())
        ctx.sketch = sketch
        ctx.save_for_backward(x, weight, rows)
        return functional.linear(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight, rows = ctx.saved_tensors
        to_x, to_weight, to_bias, _ = ctx.needs_input_grad
        again = torch.is_grad_enabled() or _transformed()  # these gradients are differentiated in turn, or come in batches
        if again and to_weight:
            rows = sketched(x, ctx.sketch)
        to_rows = gradient @ weight if to_x else None
        return (
            None if to_rows is None else restored(to_rows, ctx.sketch) if again else ctx.sketch._adjoint(to_rows),
            gradient.T @ rows if to_weight else None,
            gradient.sum(0) if to_bias else None,
            None,
        )


def _transformed() -> bool:
    """Whether more than plain backward differentiation is under way: torch.func, or tangents that are carried forward."""
    return _transforms_active() or getattr(torch.autograd.forward_ad, "_current_level", 0) >= 0
