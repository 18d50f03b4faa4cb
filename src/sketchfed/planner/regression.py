"""Convex problems whose constants can be measured: regularised logistic and linear regression over clients."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus
from torch.nn.utils.rnn import pad_sequence

from sketchfed.errors import InputError
from sketchfed.planner.problem import Problem

_NEWTON_STEPS = 100
_RANK_CUTOFF = 1e-12  # relative eigenvalues below this are rounding errors of the Gram matrix


class _Rows(NamedTuple):
    """All clients' examples in one table; an example of client c weighs 1/(N·n_c), as it does in f."""

    features: Tensor
    labels: Tensor
    weights: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Regression(ABC):
    """f = (1/N)·Σ f_c with f_c(w) = mean of ℓ(x·w, y) over client c's examples + (regularisation/2)‖w‖².

    `features` has a `(rows, dim)` tensor for each client, `labels` as many `(rows,)`. Clients weigh alike however many rows
    they have, as in Song et al. 2023, Eq. 1. There is no intercept: add a column of ones if you want one. All work is in
    float64.
    """

    features: Sequence[Tensor]
    labels: Sequence[Tensor]
    regularisation: float = 0.0

    curvature: ClassVar[float]
    """The largest second derivative of ℓ in its first argument."""

    def __post_init__(self) -> None:
        if not self.features or len(self.features) != len(self.labels):
            raise InputError(
                f"features and labels need one tensor a client, and at least one client, got {len(self.features)} and "
                f"{len(self.labels)}."
            )
        for client, (x, y) in enumerate(zip(self.features, self.labels, strict=True)):
            if x.ndim != 2 or y.shape != x.shape[:1] or not len(x) or x.shape[1] != self.features[0].shape[1]:
                raise InputError(
                    f"client {client}: features must be (rows, dim) with at least one row and the same dim for all, labels "
                    f"(rows,), got {tuple(x.shape)} and {tuple(y.shape)}."
                )
            if not (bool(torch.isfinite(x).all()) and bool(torch.isfinite(y).all())):
                raise InputError(f"client {client} has features or labels that are NaN or infinite. Drop or repair these rows.")
        if not 0 <= self.regularisation < float("inf"):
            raise InputError(f"regularisation must be a finite number from 0, got {self.regularisation!r}.")

    @property
    def clients(self) -> int:
        return len(self.features)

    @property
    def dim(self) -> int:
        return self.features[0].shape[1]

    def loss(self, w: Tensor) -> Tensor:
        """f at points `(..., dim)`, as `(...)`."""
        losses = self._loss(w @ self._rows.features.T, self._rows.labels)
        return losses @ self._rows.weights + self.regularisation / 2 * w.square().sum(-1)

    def gradients(self, points: Tensor) -> Tensor:
        """∇f_c at client c's own points: `(clients, points, dim)` to the same shape."""
        x, y, weights = self._padded
        slopes = self._slope(torch.bmm(points, x.mT), y[:, None]).mul_(weights[:, None])
        return torch.baddbmm(points, slopes, x, beta=self.regularisation)

    @cached_property
    def hessian_bounds(self) -> Tensor:
        """H_c ⪰ ∇²f_c(w) for all w, `(clients, dim, dim)`: the largest ℓ'' times X_cᵀX_c/n_c, plus the regularisation."""
        grams = torch.stack([x.T @ x / len(x) for x in (x.to(torch.float64) for x in self.features)])
        return self.curvature * grams + self.regularisation * torch.eye(self.dim, dtype=torch.float64)

    @cached_property
    def minimiser(self) -> Tensor:
        """The w* of least norm, by Newton's method within the span of the data, to rounding errors."""
        rows, basis = self._rows, self._span
        x = rows.features @ basis
        z, identity = x.new_zeros(x.shape[1]), torch.eye(x.shape[1], dtype=torch.float64)
        for _ in range(_NEWTON_STEPS):
            fitted = x @ z
            gradient = x.T @ (rows.weights * self._slope(fitted, rows.labels)) + self.regularisation * z
            bend = rows.weights * self._bend(fitted, rows.labels)
            hessian = (x.T * bend) @ x + self.regularisation * identity
            step, failed = torch.linalg.solve_ex(hessian, gradient)
            if failed or not bool(torch.isfinite(step).all()):
                break
            z = z - self._damping(basis, z, step, gradient) * step
            if step.norm() <= 1e-10 * (1 + z.norm()):
                minimiser: Tensor = basis @ z
                return minimiser
        raise InputError(
            "this loss has no minimiser that Newton's method finds: some direction separates the classes, so ever larger "
            "weights fit ever better. Set the regularisation (strong convexity) above 0, or drop features that occur with one "
            "class only."
        )

    def measure(self, start: Tensor | None = None) -> Problem:
        """The constants of this problem for a start w⁰, which is 0 unless given: see `Problem`.

        L is the largest over clients, as Assumption 3.1 of Song et al. 2023 demands; w* is the minimiser nearest to w⁰.
        """
        w = torch.zeros(self.dim, dtype=torch.float64) if start is None else start.to(torch.float64)
        nearest = self.minimiser
        if self.regularisation == 0:  # along directions that no example has, f is constant
            nearest = nearest + w - self._span @ (self._span.T @ w)
        at_optimum = self.gradients(nearest.expand(self.clients, 1, -1))
        spectra = torch.linalg.eigvalsh(self.hessian_bounds)
        mean = self.hessian_bounds.mean(0)
        return Problem(
            smoothness=float(spectra[:, -1].max()),
            strong_convexity=self._strong_convexity(spectra),
            heterogeneity=float(at_optimum.square().sum((1, 2)).mean()),
            square_distance=float((w - nearest).square().sum()),
            gap=max(float(self.loss(w) - self.loss(nearest)), 0.0),
            top_curvature=float(torch.linalg.eigvalsh(mean)[-1]),
            total_curvature=float(mean.trace()),
        )

    def _strong_convexity(self, spectra: Tensor) -> float:
        return self.regularisation

    def _damping(self, basis: Tensor, z: Tensor, step: Tensor, gradient: Tensor) -> float:
        """A factor in front of Newton's step for which the loss falls; 1 near the optimum, where rounding errors rule."""
        descent = float(step @ gradient)
        now, factor = float(self.loss(basis @ z)), 1.0
        while factor > 1e-6 and float(self.loss(basis @ (z - factor * step))) > now - 1e-4 * factor * descent + 1e-14 * abs(
            now
        ):
            factor /= 2
        return factor

    @cached_property
    def _rows(self) -> _Rows:
        weights = [torch.full((len(x),), 1 / (self.clients * len(x)), dtype=torch.float64) for x in self.features]
        features = torch.cat([x.to(torch.float64) for x in self.features])
        return _Rows(features, torch.cat(self._targets), torch.cat(weights))

    @cached_property
    def _padded(self) -> _Rows:
        """Examples as `(clients, rows, dim)`, with rows of weight 0 where a client has fewer than another."""
        most = max(len(x) for x in self.features)
        weights = [pad(torch.full((len(x),), 1 / len(x), dtype=torch.float64), (0, most - len(x))) for x in self.features]
        features = pad_sequence([x.to(torch.float64) for x in self.features], batch_first=True)
        return _Rows(features, pad_sequence(list(self._targets), batch_first=True), torch.stack(weights))

    @cached_property
    def _span(self) -> Tensor:
        """An orthonormal basis `(dim, rank)` of the span of all examples."""
        values, vectors = torch.linalg.eigh((self._rows.features.T * self._rows.weights) @ self._rows.features)
        basis: Tensor = vectors[:, values > _RANK_CUTOFF * values[-1]]
        return basis

    @property
    def _targets(self) -> list[Tensor]:
        return [y.to(torch.float64) for y in self.labels]

    @abstractmethod
    def _loss(self, fitted: Tensor, y: Tensor) -> Tensor: ...

    @abstractmethod
    def _slope(self, fitted: Tensor, y: Tensor) -> Tensor: ...

    @abstractmethod
    def _bend(self, fitted: Tensor, y: Tensor) -> Tensor: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class LogisticRegression(Regression):
    """ℓ(z, y) = log(1 + e^{−yz}) for two classes, labelled 0 and 1 or −1 and 1. Its second derivative is at most 1/4."""

    curvature = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        found = {float(value) for y in self.labels for value in torch.unique(y)}
        if not (found <= {0.0, 1.0} or found <= {-1.0, 1.0}):
            shown = ", ".join(f"{value:g}" for value in sorted(found)[:5])
            raise InputError(f"labels of a logistic regression are 0 and 1, or -1 and 1, got {shown}. Choose two classes.")

    @property
    def _targets(self) -> list[Tensor]:
        return [torch.where(y > 0, 1.0, -1.0).to(torch.float64) for y in self.labels]

    def _loss(self, fitted: Tensor, y: Tensor) -> Tensor:
        return softplus(-y * fitted)

    def _slope(self, fitted: Tensor, y: Tensor) -> Tensor:
        return -y * torch.sigmoid(-y * fitted)

    def _bend(self, fitted: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(fitted) * torch.sigmoid(-fitted)


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearRegression(Regression):
    """ℓ(z, y) = (z − y)²/2. Every f_c is a parabola, so the smallest eigenvalue of its Hessian adds to μ."""

    curvature = 1.0

    def _strong_convexity(self, spectra: Tensor) -> float:
        least, most = float(spectra[:, 0].min()), float(spectra[:, -1].max())
        return least if least > _RANK_CUTOFF * most else self.regularisation

    def _loss(self, fitted: Tensor, y: Tensor) -> Tensor:
        return (fitted - y).square() / 2

    def _slope(self, fitted: Tensor, y: Tensor) -> Tensor:
        return fitted - y

    def _bend(self, fitted: Tensor, y: Tensor) -> Tensor:
        return torch.ones_like(fitted)
