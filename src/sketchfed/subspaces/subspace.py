"""The subspace in which a round's gradients are sent: kept directions and random probes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.kernels import directions, small
from sketchfed.kernels.finite import all_finite
from sketchfed.kernels.small import Small
from sketchfed.seeds import PublicSeed
from sketchfed.subspaces.basis import Basis
from sketchfed.subspaces.probes import Probes

_SLACK = 1e-3  # of rounding, over any number of updates

STATE = ("rows", "rotation", "values", "energy", "counts")


@dataclass(frozen=True, kw_only=True, eq=False)
class Subspace:
    """S = [U | Q], dim × size with orthonormal columns: the first `kept` directions of a basis, and probes outside them.

    Paper: Nicolas et al. 2025, Eq. (9) and Alg. 2, line 15. S is never written down: `apply` and `adjoint` cost a pass
    over the basis and dim additions. All parties that have seen the same broadcasts hold the same subspace, to the last bit.
    It never changes, and shares memory with what an update makes of it: see `Basis`. Everything is computed on the CPU.
    """

    size: int
    seed: PublicSeed
    """The run's; each draw of probes has its own child."""
    basis: Basis
    kept: int = 0
    values: Small = field(default_factory=lambda: np.empty(0))
    """What the update rule knows of each direction of the basis, `(rank,)`: how much of the past it carries."""
    energy: Small = field(default_factory=lambda: np.empty(0))
    """diag(UUᵀ) of the kept directions, `(dim,)`, from a rule that keeps track of it; else empty, and computed where needed."""
    draw: int = 0
    """How many times the probes have been drawn anew."""

    def __post_init__(self) -> None:
        if not 1 <= self.size <= self.dim // 2:
            raise InputError(
                f"a subspace of size {self.size:,} in {self.dim:,} dimensions: probes beside kept directions need room. "
                f"Use a size from 1 to {self.dim // 2:,}."
            )
        if not (0 <= self.kept <= min(self.size, self.basis.rank) and len(self.values) == self.basis.rank):
            raise InputError(
                f"a subspace of size {self.size} cannot keep {self.kept} of {self.basis.rank} directions with "
                f"{len(self.values)} values."
            )
        if len(self.energy) not in (0, self.dim):
            raise InputError(f"the energy of {len(self.energy):,} coordinates is not that of {self.dim:,}. Leave it out.")

    @property
    def dim(self) -> int:
        return self.basis.dim

    @cached_property
    def probes(self) -> Probes | None:
        """None where the kept directions fill the subspace."""
        if self.kept == self.size:
            return None
        return Probes(count=self.size - self.kept, seed=self.seed.child("probes", self.draw), basis=self.basis, kept=self.kept)

    def apply(self, x: Tensor) -> Tensor:
        """Sᵀx: shape `(..., dim)` to `(..., size)`."""
        self._check(x, self.dim, "apply")
        found = small.product(self.basis.inner(x), self._rotation)
        if self.probes is not None:
            found = np.hstack([found, self.probes.solved(self.probes.sketched(x), found)])
        return torch.from_numpy(found).to(x).reshape(*x.shape[:-1], self.size)

    def adjoint(self, y: Tensor) -> Tensor:
        """S·y: shape `(..., size)` to `(..., dim)`."""
        self._check(y, self.size, "adjoint")
        numbers = y.detach().reshape(-1, self.size).to("cpu", torch.float64).numpy()
        inside, outside = np.ascontiguousarray(numbers[:, : self.kept]), numbers[:, self.kept :]
        if self.probes is None:
            out = torch.zeros(len(numbers), self.dim, dtype=self.basis.dtype)
        else:
            out, correction = self.probes.spread(outside)
            inside = inside + correction
        self.basis.add(small.product(inside, self._rotation.T), out)
        return out.to(y).reshape(*y.shape[:-1], self.dim)

    def diagonal(self) -> Tensor:
        """diag(SSᵀ), `(dim,)`: what variance unit noise on S's coefficients gives a coordinate (Nicolas et al. 2025, Eq. (11)).

        With u a coordinate's row of U, b its bucket and ± its sign in Ω, and K = (L·Lᵀ)⁻¹, it is
        uᵀ(I + A·K·Aᵀ)u ∓ 2·(K·Aᵀu)_b + K_bb. The quadratic form needs U·C for a Cholesky factor C, a few coordinates at a
        time: no memory, but 2·dim·rows·kept operations, more than an update. Exact up to rounding.
        """
        out = np.zeros(self.dim, self.basis.rows.dtype)
        form = np.eye(self.kept)
        if self.probes is not None:
            across = small.product(self.probes.overlap, self.probes.inverse)
            form += small.product(across, self.probes.overlap.T)
            self._add_probes(self.probes, across, out)
        if self.kept:
            factor = small.product(small.cholesky(form).T, self._rotation.T)
            directions.squares(self.basis.rows, factor.astype(out.dtype), out)
        return torch.from_numpy(out)

    def kept_energy(self) -> Small:
        """diag(UUᵀ) of the kept directions, `(dim,)`: at no cost where the update rule keeps track of it."""
        if len(self.energy):
            return self.energy
        out = np.zeros(self.dim)
        if self.kept:
            directions.squares(self.basis.rows, np.ascontiguousarray(self._rotation.T.astype(self.basis.rows.dtype)), out)
        return out

    def expected_diagonal(self) -> Tensor:
        """The mean of `diagonal()` over draws of the probes, `(dim,)`, at the cost of dim operations (if `energy` is known).

        A random subspace outside U has probes/(dim − kept) of the energy that U leaves a coordinate. De-biasing (Nicolas et
        al. 2025, Alg. 1, line 19) with it is unbiased over draws of the probes: a variance from which noise · expected_diagonal
        is taken off errs by the same mean as with `diagonal()`, what the noise was in this very draw. This mean is exact for
        Gaussian probes, and for ours while nothing is kept; otherwise tests see no difference of 1 % or more.
        """
        kept = self.kept_energy()
        outside = (self.size - self.kept) / (self.dim - self.kept)
        return torch.from_numpy(kept + outside * (1 - kept)).to(self.basis.dtype)

    def captured(self, gradient: Tensor) -> float:
        """‖Sᵀg‖²/‖g‖², the share of a gradient's energy that reaches the other side."""
        return float(self.apply(gradient).double().square().sum() / gradient.double().square().sum())

    def tensors(self) -> dict[str, Tensor]:
        """All that it is beside its seed, for checkpoints and snapshots: views, to be read only."""
        return {
            "rows": torch.from_numpy(self.basis.rows),
            "rotation": torch.from_numpy(self.basis.rotation),
            "values": torch.from_numpy(self.values),
            "energy": torch.from_numpy(self.energy),
            "counts": torch.tensor([self.size, self.kept, self.draw, self.basis.capacity]),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], *, seed: PublicSeed, like: "Subspace | None" = None) -> "Subspace":
        """The subspace of which these are the `tensors`, to the bit, in memory of its own.

        Tensors that somebody else sent are compared with one that is `like` it, before any memory is taken.
        """
        rows, rotation, values, energy, counts = (tensors[name] for name in STATE)
        fits = rows.ndim == rotation.ndim == 2 and values.ndim == energy.ndim == 1 and counts.shape == (4,)
        fits = fits and len(rows) == len(rotation) and rotation.shape[1] == len(values)
        fits = fits and rows.dtype in (torch.float32, torch.float64)
        fits = fits and rotation.dtype == values.dtype == energy.dtype == torch.float64
        size, kept, draw, capacity = (int(count) for count in counts.tolist()) if fits else (0, 0, 0, 0)
        if not (fits and rotation.shape[1] <= len(rows) <= capacity <= rows.shape[1] and draw >= 0):
            shapes = ", ".join(f"{name} {list(tensors[name].shape)}" for name in STATE)
            raise InputError(f"these tensors are not a subspace: {shapes}. Pass what `tensors()` gave.")
        if like is not None and (size, rows.shape[1], capacity, rows.dtype) != like._kind:
            raise InputError(
                f"it has size {size:,} in {rows.shape[1]:,} dimensions, room for {capacity:,} directions and {rows.dtype}; "
                f"{like.size:,}, {like.dim:,}, {like.basis.capacity:,} and {like.basis.dtype} are wanted. Use the same "
                "configuration on both sides."
            )
        if not all(all_finite(t) for t in (rotation, values, energy, rows)):
            raise InputError("these tensors are not a subspace: some numbers are NaN or infinite. Pass what `tensors()` gave.")
        turned = rotation.T @ rotation - torch.eye(len(values), dtype=torch.float64)
        lengths = rows.square().sum(1) - 1
        if max(map(_largest, (turned, lengths, -values.clamp(max=0), energy.clamp(0, 1) - energy))) > _SLACK:
            raise InputError(
                "these tensors are not a subspace: rows have norm 1, the rotation is orthonormal, values are not negative and "
                "energies lie from 0 to 1. Pass what `tensors()` gave."
            )
        empty = Basis.empty(dim=rows.shape[1], capacity=capacity, dtype=rows.dtype)
        basis = Basis.from_rows(rows, like=empty, rotation=rotation.numpy())
        known = {"values": values.numpy().copy(), "energy": energy.numpy().copy()}
        return cls(size=size, seed=seed, basis=basis, kept=kept, draw=draw, **known)

    @property
    def _kind(self) -> tuple[int, int, int, torch.dtype]:
        return self.size, self.dim, self.basis.capacity, self.basis.dtype

    @property
    def _rotation(self) -> Small:
        return np.ascontiguousarray(self.basis.rotation[:, : self.kept])

    def _add_probes(
        self, probes: Probes, across: Small, out: np.ndarray[tuple[int], np.dtype[np.float32 | np.float64]]
    ) -> None:
        """Add K_bb and, for A·K in `across`, ∓2·(K·Aᵀu)_b to every coordinate."""
        sketch, own = probes.sketch, np.ascontiguousarray(np.diag(probes.inverse)).astype(out.dtype)
        for (start, first), (stop, _) in pairwise(sketch.runs.tolist()):
            out[start:stop] += own[first:][sketch.table[start:stop] >> 1]
        if self.kept:
            crossed = small.product(self._rotation, across).repeat(2, axis=1)
            crossed[:, ::2] *= -2
            crossed[:, 1::2] *= 2
            directions.products(self.basis.rows, sketch.table, sketch.runs, crossed.astype(out.dtype), out)

    def _check(self, t: Tensor, length: int, method: str) -> None:
        if t.dtype not in (torch.float32, torch.float64) or t.ndim == 0 or t.shape[-1] != length:
            raise InputError(
                f"{method} takes float32 or float64 tensors of shape (..., {length}), got {t.dtype} and {tuple(t.shape)}."
            )
        if not all_finite(t.detach()):
            raise InputError(
                f"{method} got values that are NaN or infinite. Find where training diverged, or drop this update."
            )


def _largest(t: Tensor) -> float:
    return float(t.abs().max()) if t.numel() else 0.0
