"""The stacked random maps of a round's clients. Each client has a map G from dim numbers to size numbers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from os import cpu_count
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sketchfed.codecs import spatial_law
from sketchfed.codecs.spatial_law import Integrals
from sketchfed.errors import InputError
from sketchfed.kernels import draws, philox, projections, scatter
from sketchfed.kernels.cosine import cosine, cosine_transposed
from sketchfed.kernels.scratch import scratch
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import Sketch, dense, make_sketch
from sketchfed.sketches.balanced import Balanced

Floats = npt.NDArray[Any]
Result = TypeVar("Result")

_LANES = 4  # sums over clients have this many parts on every machine, so that all machines get the same result
_WORTH_THREADS = 2**17  # with fewer numbers to transform, starting a thread takes longer than it saves
_FEWEST_ROWS = 16  # rows per block, unless the caller asks for fewer
_SMALLEST_BLOCK = 4096
_LARGEST_MATRIX = 2**26
_AT_ONCE = 2**20  # how many numbers of a tail are transformed together


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
        return self.clients * self.size * self.dim <= _LARGEST_MATRIX


class SrhtEnsemble(Ensemble):
    """Signs, Hadamard transform and sampled rows (Jiang et al. 2023, Eq. 6), for any dim and without padding.

    The paper requires a power of two. Here each full block has such a length and is transformed separately. The remaining
    coordinates go through a cosine transform, which works for every length. The rows stay orthonormal and all coordinates
    have the same chance, so blocks do not change the error (`spatial_law`: it depends only on share, ρ and R).
    """

    name = "srht"
    summary = "signs, Hadamard transform, sampled rows"

    def __init__(self, dim: int, size: int, seeds: Sequence[PublicSeed], block: int | None = None) -> None:
        super().__init__(dim, size, seeds)
        if block is not None and (type(block) is not int or block < 1 or block & (block - 1)):
            raise InputError(f"the size of a block must be a power of two, got block = {block!r}. Use 4096, or leave it out.")
        edges = _edges(dim, size, block)
        ends = [edge * size // dim for edge in edges]
        parts = list(zip(edges, edges[1:], ends, ends[1:], strict=False))
        if any(last == first for _, _, first, last in parts):
            raise InputError(
                f"block {block} cuts {dim:,} coordinates into {len(parts):,} parts, but {size:,} coefficients are too few for "
                "all of them. Use larger blocks, or leave block out."
            )
        self.shares = [Share(start, stop, (last - first) / (stop - start)) for start, stop, first, last in parts]
        start, stop, first, last = parts[-1]
        tail = (stop - start) & (stop - start - 1) != 0
        blocks = [(*part, part[1] - part[0]) for part in (parts[:-1] if tail else parts)]
        self._layout = np.array(blocks, np.int64).reshape(-1, 5)
        self._tail = _CosineTail(start, first, stop - start, last - first, seeds) if tail else None

    @cached_property
    def _words(self) -> npt.NDArray[np.uint32]:
        """Sign bits: one row of words per block, for every client."""
        blocks, each = len(self._layout), 2 * -(-self._width // 64)
        drawn = [philox.words(seed.child("signs").stream, blocks * each)[: blocks * each] for seed in self.seeds]
        return np.stack(drawn).reshape(self.clients, blocks, each)

    @cached_property
    def _rows(self) -> npt.NDArray[np.int32]:
        rows = np.empty((self.clients, self.size), np.int32)
        for client, seed in enumerate(self.seeds):
            for number, (_, _, first, last, width) in enumerate(self._layout.tolist()):
                stream = seed.child("rows", number).stream
                rows[client, first:last] = draws.subset(stream, dim=width, size=last - first)
        return rows

    @property
    def _width(self) -> int:
        return int(self._layout[:, 4].max(initial=1))

    def forward(self, v: Tensor) -> Tensor:
        out = v.new_empty(self.clients, self.size)

        def work(first: int, last: int) -> None:
            projections.forward(v.numpy(), self._layout, self._words, self._rows, first, last, self._memory(v), out.numpy())

        self._in_lanes(work)
        if self._tail is not None:
            self._tail.forward(v, out)
        return out

    def adjoint(self, z: Tensor) -> Tensor:
        z = z.contiguous()

        def work(first: int, last: int) -> Tensor:
            total, memory = z.new_zeros(self.dim), self._memory(z)
            projections.adjoint(z.numpy(), self._layout, self._words, self._rows, first, last, memory, total.numpy())
            return total

        total, *others = self._in_lanes(work)
        for other in others:
            total += other
        if self._tail is not None:
            self._tail.adjoint(z, total)
        return total

    def gram(self) -> Floats:
        rows = self.clients * self.size
        out = np.zeros((rows, rows))
        projections.gram(self._layout, self._words, self._rows, np.empty(self._width), np.ones(self._width), out)
        if self._tail is not None:
            self._tail.add_gram(out.reshape(self.clients, self.size, self.clients, self.size))
        return out

    @property
    def has_gram(self) -> bool:
        return self._tail is None or self._tail.entries <= _LARGEST_MATRIX

    def _memory(self, like: Tensor) -> Floats:
        return scratch(self._width, np.float32 if like.dtype == torch.float32 else np.float64)

    def _in_lanes(self, work: Callable[[int, int], Result]) -> list[Result]:
        lanes = min(_LANES, self.clients)
        ends = [lane * self.clients // lanes for lane in range(lanes + 1)]
        spread = map if lanes == 1 or self.clients * self.dim < _WORTH_THREADS else _threads().map
        return list(spread(work, ends, ends[1:]))


class _CosineTail:
    """A randomised cosine transform of the coordinates from `start` on, which do not fill a block."""

    def __init__(self, start: int, first: int, length: int, size: int, seeds: Sequence[PublicSeed]) -> None:
        self._start, self._first, self._length, self._size, self._seeds = start, first, length, size, seeds

    @property
    def entries(self) -> int:
        """The number of entries in the matrix of all clients."""
        return len(self._seeds) * self._size * self._length

    @cached_property
    def _signs(self) -> Tensor:
        words = [philox.words(seed.child("tail signs").stream, -(-self._length // 32)) for seed in self._seeds]
        return torch.from_numpy(1 - 2 * np.stack([philox.bits(drawn, self._length) for drawn in words]).astype(np.int8))

    @cached_property
    def _rows(self) -> Tensor:
        streams = [seed.child("tail rows").stream for seed in self._seeds]
        return torch.from_numpy(np.stack([draws.subset(s, dim=self._length, size=self._size) for s in streams])).long()

    def _chunks(self) -> Iterator[slice]:
        each = max(1, _AT_ONCE // self._length)
        return (slice(client, client + each) for client in range(0, len(self._seeds), each))

    def forward(self, v: Tensor, out: Tensor) -> None:
        for some in self._chunks():
            transformed = cosine(self._signs[some] * v[self._start :])
            out[some, self._first :] = transformed.gather(1, self._rows[some])

    def adjoint(self, z: Tensor, total: Tensor) -> None:
        for some in self._chunks():
            spread = z.new_zeros(len(self._rows[some]), self._length).scatter_(1, self._rows[some], z[some, self._first :])
            total[self._start :] += (self._signs[some] * cosine_transposed(spread)).sum(0)

    def add_gram(self, product: Floats) -> None:
        rows = cosine_transposed(torch.eye(self._length, dtype=torch.float64))[self._rows] * self._signs[:, None, :]
        flat = rows.reshape(-1, self._length).numpy()
        clients, size = len(self._seeds), self._size
        product[:, self._first :, :, self._first :] += (flat @ flat.T).reshape(clients, size, clients, size)


class Sketches(Ensemble):
    """An ensemble whose maps are sketches of one family with scaled rows."""

    family: ClassVar[str]

    @cached_property
    def _sketches(self) -> list[Sketch]:
        return [make_sketch(self.family, dim=self.dim, size=self.size, seed=seed) for seed in self.seeds]

    @abstractmethod
    def _row_scale(self) -> Tensor:
        """The factor for each coefficient of the sketch, in float64."""

    @cached_property
    def _scales(self) -> dict[torch.dtype, Tensor]:
        exact = self._row_scale()
        return {dtype: exact.to(dtype) for dtype in (torch.float32, torch.float64)}

    def forward(self, v: Tensor) -> Tensor:
        out = v.new_empty(self.clients, self.size)
        for row, sketch in zip(out, self._sketches, strict=True):
            torch.mul(sketch.apply(v), self._scales[v.dtype], out=row)
        return out

    def adjoint(self, z: Tensor) -> Tensor:
        total, scaled = z.new_zeros(self.dim), z * self._scales[z.dtype]
        for sketch, row in zip(self._sketches, scaled, strict=True):
            total += sketch.adjoint(row)
        return total

    def gram(self) -> Floats:
        scale = self._scales[torch.float64][:, None]
        return _products(torch.cat([scale * dense(sketch) for sketch in self._sketches]))


class BalancedCount(Sketches):
    """Equal buckets from a permutation, with random signs and rows of norm 1. It encodes any dim in dim additions."""

    name = family = "balanced"
    summary = "equal buckets from a permutation"

    def _row_scale(self) -> Tensor:
        edges = torch.arange(self.size + 1) * self.dim // self.size
        return edges.diff().to(torch.float64).rsqrt()

    @cached_property
    def _dealt(self) -> list[tuple[Any, Any]]:
        """The codes and runs of each client's sketch. Passing them to the kernels avoids the overhead of the sketch's calls."""
        sketches = [Balanced(dim=self.dim, size=self.size, seed=seed) for seed in self.seeds]
        return [(sketch.table, sketch.runs) for sketch in sketches]

    def forward(self, v: Tensor) -> Tensor:
        out = v.new_zeros(self.clients, self.size)
        numbers, sums = v.numpy()[None], out.numpy()
        for client, (table, runs) in enumerate(self._dealt):
            scatter.scatter_runs(numbers, table, runs, sums[client : client + 1])
        return out.mul_(self._scales[v.dtype])

    def adjoint(self, z: Tensor) -> Tensor:
        total, one = z.new_zeros(self.dim), z.new_empty(1, self.dim)
        scaled = (z * self._scales[z.dtype]).numpy()
        for client, (table, runs) in enumerate(self._dealt):
            scatter.gather_runs(scaled[client : client + 1], table, runs, one.numpy())
            total += one[0]
        return total


class GaussianEnsemble(Sketches):
    """Normal entries of variance 1/dim. Its rows have norm 1 and are orthogonal only on average."""

    name = family = "gaussian"
    summary = "normal entries"
    orthonormal = False

    @staticmethod
    def law(clients: int, share: float, rho: float) -> Integrals:
        return spatial_law.gaussian(clients, share, rho)

    def own(self, z: Tensor) -> Tensor:
        scale = self._scales[z.dtype]
        pairs = zip(self._sketches, z, strict=True)
        return torch.stack([scale * sketch.apply(sketch.adjoint(scale * row)) for sketch, row in pairs])

    def _row_scale(self) -> Tensor:
        return torch.tensor((self.size / self.dim) ** 0.5, dtype=torch.float64).expand(self.size)


class Orthonormal(Ensemble):
    """Uniformly random subspaces, from orthonormalised normal rows. It stores matrices: for comparison at small sizes."""

    name = "orthonormal"
    summary = "uniformly random subspaces, as matrices"

    def __init__(self, dim: int, size: int, seeds: Sequence[PublicSeed], block: int | None = None) -> None:
        super().__init__(dim, size, seeds, block)
        if self.clients * size * dim > _LARGEST_MATRIX:
            raise InputError(
                f"ensemble 'orthonormal' would store {self.clients} matrices of {size:,} × {dim:,} numbers, which is too many. "
                "Use 'srht', which has the same error and stores no matrices."
            )

    @cached_property
    def _rows(self) -> Tensor:
        normal = [dense(make_sketch("gaussian", dim=self.dim, size=self.size, seed=seed)) for seed in self.seeds]
        return torch.stack([torch.linalg.qr(rows.T).Q.T for rows in normal])

    def forward(self, v: Tensor) -> Tensor:
        return (self._rows @ v.to(torch.float64)).to(v.dtype)

    def adjoint(self, z: Tensor) -> Tensor:
        return torch.einsum("nk,nkd->d", z.to(torch.float64), self._rows).to(z.dtype)

    def gram(self) -> Floats:
        return _products(self._rows.reshape(-1, self.dim))


class SamplingEnsemble(Ensemble):
    """The coordinates themselves, sampled at random: Rand-k-Spatial (Jiang et al. 2023, Lemma 4.1)."""

    name = "sampling"
    summary = "coordinates themselves: Rand-k-Spatial"

    @staticmethod
    def law(clients: int, share: float, rho: float) -> Integrals:
        return spatial_law.sampling(clients, share, rho)

    @cached_property
    def _rows(self) -> Tensor:
        drawn = [draws.subset(seed.child("rows").stream, dim=self.dim, size=self.size) for seed in self.seeds]
        return torch.from_numpy(np.stack(drawn)).long()

    def forward(self, v: Tensor) -> Tensor:
        return v[self._rows]

    def adjoint(self, z: Tensor) -> Tensor:
        return z.new_zeros(self.dim).index_add_(0, self._rows.reshape(-1), z.reshape(-1))

    def gram(self) -> Floats:
        rows = self._rows.reshape(-1).numpy()
        same: Floats = np.equal.outer(rows, rows).astype(np.float64)
        return same

    @property
    def has_gram(self) -> bool:
        return True


ENSEMBLES: dict[str, type[Ensemble]] = {
    kind.name: kind for kind in (SrhtEnsemble, BalancedCount, GaussianEnsemble, Orthonormal, SamplingEnsemble)
}


def _products(rows: Tensor) -> Floats:
    """The inner products of all pairs of rows."""
    matrix = rows.numpy()
    products: Floats = matrix @ matrix.T
    return products


def _edges(dim: int, size: int, block: int | None) -> list[int]:
    """Where the parts begin. The rest after the full blocks is its own part if it has enough rows, or joins the last block."""
    if block is None:
        block = _SMALLEST_BLOCK
        while block < dim and block * size < _FEWEST_ROWS * dim:
            block *= 2
    edges = [*range(0, dim, block), dim]
    if len(edges) > 2 and dim % block and dim % block * size < _FEWEST_ROWS // 2 * dim:
        del edges[-2]
    return edges


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cpu_count(), thread_name_prefix="projections")
