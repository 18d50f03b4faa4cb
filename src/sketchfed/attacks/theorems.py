"""Zhang & Wang 2021, Theorems 1 and 2: what a client's estimate of the step misses by, exactly and on average over sketches.

Off its diagonal, SSᵀ has ±1 where two coordinates share a bucket. With signs that are 4-wise independent, and independent of
the buckets, all that counts is the probability `collision` that a pair of coordinates shares one, if it is the same for all
pairs. Neither the 2-wise independence of the buckets of `count` nor the dependence of those of `balanced` changes anything.
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
    """Σ n_b(n_b − 1) over the buckets, divided by dim(dim − 1); dim mod size of them have one coordinate more than others."""
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
    """E‖Δ̂Vᵀ − ΔVᵀ‖² of Option I: Theorem 2, with V `(r, dim)` as `features`, and Theorem 1, where V is the identity, without.

    Theorem 1 is then (dim − 1)·collision·(‖W_old‖² + ‖W_new‖²): (dim − 1)/size for `count`, and for `balanced` dim/size − 1
    where size divides dim. The sketches are independent of each other and of the weights they are applied to; the new
    weights may depend on the old sketch, as in training they do.
    """
    if features is None:
        return collision * (old.shape[1] - 1) * float(old.square().sum() + new.square().sum())
    return sum(product_error(weights, features, collision=collision) for weights in (old, new))


def pseudo_inverse_error(old: Tensor, new: Tensor, *, size: int) -> float:
    """E‖Δ̂ − Δ‖² of Option II for `balanced` and `sampling`, and new weights that do not depend on the old sketch.

    SS† projects onto `size` of dim directions, and treats all coordinates alike with random signs, so its mean is size/dim
    times the identity. Not in the paper.
    """
    lost = 1 - size / old.shape[1]
    return lost * float(old.square().sum() + new.square().sum()) - 2 * lost**2 * float((old * new).sum())
