"""A few orthonormal directions in R^dim that grow by one and turn within their span, again and again, at little cost."""

from collections.abc import Iterable
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.kernels import directions, small
from sketchfed.kernels.finite import all_finite
from sketchfed.kernels.small import Small

Floats = npt.NDArray[np.float32 | np.float64]

_DTYPES = {torch.float32: np.float32, torch.float64: np.float64}


class _Store:
    """Long rows that are written once: a basis sees the first few of them, and whoever sees them all may append another."""

    def __init__(self, rows: Floats, used: int = 0) -> None:
        self.rows = rows
        self.used = used

    def appended(self, row: Floats, *, after: int) -> "_Store":
        """A store with the first `after` rows and this one: the same if it has no others, else a copy."""
        with _TURN:
            is_last = self.used == after
            self.used += is_last
        store = self
        if not is_last:
            store = _Store(np.empty_like(self.rows), after + 1)
            store.rows[:after] = self.rows[:after]
        store.rows[after] = row
        return store


_TURN = Lock()  # taken for a comparison, so one for all will do


class Extension(NamedTuple):
    """A basis that contains one vector more, and what that vector is in it."""

    basis: "Basis"
    coefficients: Small
    """Those of the vector for the directions that there were."""
    norm: float
    """Of what they leave of it, along the last direction now; 0 if nothing is left, and there is no new direction then."""


class Basis:
    """Orthonormal directions U, dim × rank, kept as U = Bᵀ·M: long orthonormal rows B and a small matrix M in float64.

    A vector that is appended becomes a row of B, and directions are turned by turning M, so neither touches the rows there are.
    When all `capacity` rows are in use, MᵀB is written to new memory, with what rounding has taken from its orthonormality
    restored through the Cholesky factor of its Gram matrix. An update thus costs O(dim·capacity) on average, and memory, if
    older bases are let go, is at most (capacity + rank + 2) · dim numbers.

    A basis never changes. One that was extended shares its rows with the basis that came of it; extending it a second time
    copies them. Equal inputs give equal bits on every machine.
    """

    __slots__ = ("_rotation", "_store")

    def __init__(self, store: _Store, rotation: Small) -> None:
        self._store = store
        self._rotation = rotation

    @classmethod
    def empty(cls, *, dim: int, capacity: int, dtype: torch.dtype = torch.float32) -> "Basis":
        """No directions yet. Memory is taken as they come."""
        return cls(_Store(np.empty((capacity, dim), _DTYPES[dtype])), np.empty((0, 0)))

    @classmethod
    def from_rows(cls, rows: Iterable[Tensor], *, like: "Basis", rotation: Small | None = None) -> "Basis":
        """The basis of these orthonormal rows, turned by a matrix `(rows, rank)`, in new memory of the size that `like` has."""
        store = _Store(np.empty_like(like._store.rows))
        for row in rows:
            store.rows[store.used] = row.numpy()
            store.used += 1
        return cls(store, np.eye(store.used) if rotation is None else rotation.copy())

    @classmethod
    def from_tensor(cls, directions: Tensor, *, capacity: int) -> "Basis":
        """The basis of the orthonormal columns `(dim, rank)`, as `to_tensor` gives them. Copies them."""
        empty = cls.empty(dim=len(directions), capacity=capacity, dtype=directions.dtype)
        return cls.from_rows(directions.T, like=empty)

    @property
    def dim(self) -> int:
        return int(self._store.rows.shape[1])

    @property
    def capacity(self) -> int:
        return len(self._store.rows)

    @property
    def rank(self) -> int:
        return int(self._rotation.shape[1])

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self._store.rows.dtype == np.float32 else torch.float64

    @property
    def rows(self) -> Floats:
        """B, `(used, dim)`: a view, to be read only."""
        return self._store.rows[: len(self._rotation)]

    @property
    def rotation(self) -> Small:
        """M, `(used, rank)`."""
        return self._rotation

    def coefficients(self, x: Tensor) -> Tensor:
        """Uᵀx: shape `(..., dim)` to `(..., rank)`."""
        found = small.product(self.inner(x), self._rotation)
        return torch.from_numpy(found).to(x).reshape(*x.shape[:-1], self.rank)

    def combine(self, coefficients: Tensor) -> Tensor:
        """U·c: shape `(..., rank)` to `(..., dim)`."""
        rows = coefficients.detach().reshape(-1, self.rank).to("cpu", torch.float64).numpy()
        out = torch.zeros(len(rows), self.dim, dtype=self.dtype)
        self.add(small.product(rows, self._rotation.T), out)
        return out.to(coefficients).reshape(*coefficients.shape[:-1], self.dim)

    def inner(self, x: Tensor) -> Small:
        """B·x, float64, for every vector of x, flattened to `(vectors, used)`."""
        vectors = np.ascontiguousarray(x.detach().reshape(-1, self.dim).to("cpu", self.dtype).numpy())
        out = np.empty((len(vectors), len(self._rotation)))
        directions.inner(self.rows, vectors, out)
        return out

    def add(self, factors: Small, out: Tensor) -> None:
        """Add Bᵀ·factors to `out`, `(vectors, used)` to `(vectors, dim)`, in place."""
        directions.combine(self.rows, factors.astype(self.rows.dtype), out.numpy())

    def extended(self, x: Tensor) -> Extension:
        """Append what of x, `(dim,)`, lies outside."""
        if x.shape != (self.dim,) or x.dtype not in _DTYPES or not all_finite(x.detach()):
            raise InputError(f"a basis of dim {self.dim:,} is extended by as many finite numbers, got shape {tuple(x.shape)}.")
        rest = np.array(x.detach().to("cpu", self.dtype).numpy())
        inside, outside = self._split(rest)
        norm = np.sqrt(_square(inside) + outside**2)
        if not np.isfinite(norm):
            raise InputError(f"a vector whose squares overflow {rest.dtype} cannot extend a basis. Scale it down.")
        least = 8 * np.finfo(rest.dtype).eps * norm
        coefficients = small.product(inside[None], self._rotation)[0]
        beyond = inside - small.product(coefficients[None], self._rotation.T)[0]  # in the rows' span, but turned away from
        left = float(np.sqrt(_square(beyond) + (outside**2 if outside > least else 0)))
        if left <= least:
            return Extension(self, coefficients, 0.0)
        store, column, grown = self._store, beyond, self._rotation
        if outside > least:
            basis, beyond = self._with_room(beyond, least)
            store = basis._store.appended(rest / rest.dtype.type(outside), after=len(basis._rotation))
            column, grown = np.append(beyond, outside), np.vstack([basis._rotation, np.zeros((1, self.rank))])
        return Extension(Basis(store, np.hstack([grown, column[:, None] / left])), coefficients, left)

    def rotated(self, matrix: Small) -> "Basis":
        """The directions U·matrix, for a small matrix `(rank, new rank)` with orthonormal columns."""
        return Basis(self._store, small.product(self._rotation, matrix))

    def to_tensor(self) -> Tensor:
        """U, `(dim, rank)`."""
        return self.combine(torch.eye(self.rank, dtype=self.dtype)).T

    def _split(self, x: Floats) -> tuple[Small, float]:
        """B·x, and the norm of the rest, which x becomes. Twice, because once leaves rounding errors as large as those of x."""
        rows, first, second = self.rows, np.empty((1, len(self._rotation))), np.empty(len(self._rotation))
        directions.inner(rows, x[None], first)
        directions.remove(rows, first[0].astype(x.dtype), x, second)
        out = torch.from_numpy(x)[None]
        self.add(-second[None], out)
        inside: Small = first[0].astype(x.dtype) + second
        square = np.empty((1, 1))
        directions.inner(x[None], x[None], square)
        return inside, float(np.sqrt(square[0, 0]))

    def _with_room(self, beyond: Small, least: float) -> tuple["Basis", Small]:
        """The same basis with a row to spare, and `beyond`, which is orthogonal to its directions, in terms of its rows.

        Turning the rows would lose what is beyond the directions, so it is kept as one more of them.
        """
        if len(self._rotation) < self.capacity:
            return self, beyond
        length = float(np.sqrt(_square(beyond)))
        kept = self._rotation
        if length > least:
            kept = np.hstack([kept, beyond[:, None] / length])
        if kept.shape[1] >= self.capacity:
            raise InputError(
                f"a basis of rank {self.rank} and capacity {self.capacity} has no room for another direction. "
                f"Give it a capacity of {self.rank + 2} or more; half as many again as directions makes updates cheap."
            )
        turned = self._compressed(kept)
        weights = np.zeros(kept.shape[1])
        weights[self.rank :] = length
        return turned.rotated(np.eye(kept.shape[1], self.rank)), weights

    def _compressed(self, rotation: Small) -> "Basis":
        """The basis of Bᵀ·rotation whose rows are its directions, orthonormal to the rounding errors of the last step."""
        gram = np.empty((len(rotation), len(rotation)))
        directions.gram(self.rows, gram)
        lower = small.cholesky(small.product(rotation.T, small.product(gram, rotation)))
        turn = small.solve_lower(lower, rotation.T)
        store = _Store(np.empty_like(self._store.rows), len(turn))
        directions.turn(self.rows, turn.astype(self.rows.dtype), store.rows)
        return Basis(store, np.eye(len(turn)))


def _square(x: Small) -> float:
    return float(small.product(x[None], x[:, None])[0, 0])
