"""The interface of an ensemble: the stacked random maps of a round's clients."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy.typing as npt
from torch import Tensor

from sketchfed.codecs import spatial_law
from sketchfed.codecs.spatial_law import Integrals
from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed

Floats = npt.NDArray[Any]

LARGEST_MATRIX = 2**26
"""The largest number of entries of a matrix that is stored."""


class Share(NamedTuple):
    """A range of coordinates, start to stop, for which every client sends `share` coefficients per coordinate."""

    start: int
    stop: int
    share: float


class Ensemble(ABC):
    """The maps G₁ to G_n, one per client, drawn from independent streams, with E[GᵢᵀGᵢ] = (size/dim)·I."""

    name: ClassVar[str]
    summary: ClassVar[str]
    orthonormal: ClassVar[bool] = True
    """Whether GᵢGᵢᵀ is the identity."""

    def __init__(self, dim: int, size: int, seeds: Sequence[PublicSeed], block: int | None = None) -> None:
        if block is not None:
            raise InputError(f"ensemble '{self.name}' has no blocks, got block = {block}. Leave it out, or use 'srht'.")
        self.dim, self.size, self.seeds = dim, size, seeds
        self.shares = [Share(0, dim, size / dim)]

    @property
    def clients(self) -> int:
        return len(self.seeds)

    @staticmethod
    def law(clients: int, share: float, rho: float) -> Integrals:
        """The law of S for this many clients."""
        return spatial_law.free_projections(clients, share, rho)

    @abstractmethod
    def forward(self, v: Tensor) -> Tensor:
        """Compute Gᵢv for all clients, `(clients, size)`."""

    @abstractmethod
    def adjoint(self, z: Tensor) -> Tensor:
        """Compute Σ Gᵢᵀzᵢ, `(dim,)`."""

    def own(self, z: Tensor) -> Tensor:
        """Compute GᵢGᵢᵀzᵢ for all clients."""
        return z

    @abstractmethod
    def gram(self) -> Floats:
        """Compute GGᵀ in float64, `(clients·size, clients·size)`."""

    @property
    def has_gram(self) -> bool:
        """Whether GGᵀ is cheap enough to compute."""
        return self.clients * self.size * self.dim <= LARGEST_MATRIX


def row_products(rows: Tensor) -> Floats:
    """The inner products of all pairs of rows."""
    matrix = rows.numpy()
    products: Floats = matrix @ matrix.T
    return products
