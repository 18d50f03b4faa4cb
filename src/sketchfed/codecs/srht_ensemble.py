"""An ensemble of randomised transforms in blocks: any dim without padding, and no matrices."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from os import cpu_count
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sketchfed.codecs.ensemble_base import LARGEST_MATRIX, Ensemble, Floats, Share
from sketchfed.errors import InputError
from sketchfed.kernels import draws, philox, projections
from sketchfed.kernels.cosine import cosine, cosine_transposed
from sketchfed.kernels.scratch import scratch
from sketchfed.seeds import PublicSeed

Result = TypeVar("Result")

_LANES = 4  # sums over clients have this many parts on every machine, so that all machines get the same result
_WORTH_THREADS = 2**17  # with fewer numbers to transform, starting a thread takes longer than it saves
_FEWEST_ROWS = 16  # rows per block, unless the caller asks for fewer
_SMALLEST_BLOCK = 4096
_AT_ONCE = 2**20  # how many numbers of a tail are transformed together


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
        return self._tail is None or self._tail.entries <= LARGEST_MATRIX

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
