"""The expected error of a client's estimate of the step, over random sketches (Zhang & Wang 2021, Theorems 1 and 2).

Off its diagonal, SSᵀ is ±1 if two coordinates share a bucket. If signs are 4-wise independent, and independent of the buckets,
only the probability `collision` counts that a pair of coordinates shares a bucket, provided that it is the same for all pairs.
Neither the 2-wise independence of the buckets of `count` nor the dependence of those of `balanced` makes a difference.
"""

from collections.abc import Callable

from torch import Tensor

from sketchfed.errors import InputError, UnknownNameError


def collision(family: str, *, dim: int, size: int) -> float:
    """The probability that two of `dim` coordinates share one of `size` buckets."""
    if family not in _COLLISIONS:
        raise UnknownNameError("sketch with buckets", family, _COLLISIONS)
    return _COLLISIONS[family](dim, size) if dim > 1 else 0.0


def _independent(_dim: int, size: int) -> float:
    return 1 / size


def _dealt(dim: int, size: int) -> float:
    """Σ n_b(n_b − 1) over the buckets, divided by dim(dim − 1). dim mod size buckets have one more coordinate than others."""
    if size > 4096:
        raise InputError(f"beyond 4,096 buckets 'balanced' works in runs, and pairs differ in their odds; got size {size:,}.")
    least, more = divmod(dim, size)
    return least * (size * (least - 1) + 2 * more) / (dim * (dim - 1))


_COLLISIONS: dict[str, Callable[[int, int], float]] = {"count": _independent, "balanced": _dealt}


def product_error(a: Tensor, b: Tensor, *, collision: float) -> float:
    """E‖ASSᵀBᵀ − ABᵀ‖² for fixed A `(n, dim)` and B `(m, dim)`: Lemma 5, summed up.

    Σ over i, j and k ≠ l of a_ik²·b_jl² is ‖A‖²‖B‖² less its terms k = l, Σ_k ‖A's column k‖²·‖B's column k‖², and that of
    a_ik·b_jk·a_il·b_jl is ‖ABᵀ‖² less the same.
    """
    same = a.square().sum(0) @ b.square().sum(0)
    return collision * float(a.square().sum() * b.square().sum() + (a @ b.mT).square().sum() - 2 * same)


def adjoint_error(old: Tensor, new: Tensor, *, collision: float, features: Tensor | None = None) -> float:
    """E‖Δ̂Vᵀ − ΔVᵀ‖² of Option I. With V `(r, dim)` as `features` this is Theorem 2, and without, where V = I, Theorem 1.

    Theorem 1 is then (dim − 1)·collision·(‖W_old‖² + ‖W_new‖²): (dim − 1)/size for `count`, and dim/size − 1 for `balanced` if
    size divides dim. The sketches are independent of each other and of the weights to which they are applied. The new weights
    may depend on the old sketch, as they do in training.
    """
    if features is None:
        return collision * (old.shape[1] - 1) * float(old.square().sum() + new.square().sum())
    return sum(product_error(weights, features, collision=collision) for weights in (old, new))


def pseudo_inverse_error(old: Tensor, new: Tensor, *, size: int) -> float:
    """E‖Δ̂ − Δ‖² of Option II for `balanced` and `sampling`, if the new weights do not depend on the old sketch.

    SS† projects onto `size` of dim directions. With random signs it treats all coordinates alike, so its mean is size/dim times
    the identity. This is not in the paper.
    """
    lost = 1 - size / old.shape[1]
    return lost * float(old.square().sum() + new.square().sum()) - 2 * lost**2 * float((old * new).sum())
