"""A few rows of a randomly signed fast transform."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sketchfed.caches import cached_within
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.kernels import draws, fwht, philox
from sketchfed.kernels.cosine import cosine, cosine_transposed
from sketchfed.kernels.jit import on_cpu
from sketchfed.kernels.pages import empty_like
from sketchfed.kernels.scratch import scratch
from sketchfed.seeds import Words
from sketchfed.sketches.base import MOST_MOVED, Sketch

TRANSFORMS = ("hadamard", "cosine")
LEAST_IN_PIECES = 2**22
"""Transforms of at least this width work in pieces, with less memory. Shorter ones stay in a cache as a whole."""


class _Part(NamedTuple):
    """One diagonal block: coordinates start to stop, coefficients first to last, a transform of `width`."""

    start: int
    stop: int
    first: int
    last: int
    width: int

    @property
    def length(self) -> int:
        return self.stop - self.start

    @property
    def rows(self) -> int:
        return self.last - self.first


@dataclass(frozen=True, kw_only=True)
class Srht(Sketch):
    """Subsampled randomised Hadamard transform, R = √(n/size)·S·H·D: signs, transform, `size` rows without replacement.

    Paper: Song et al. 2023, Def. D.3, which asks for dim a power of two. Here dim is padded to n with zeros, or cut into
    equal parts of at most `block` coordinates with a transform and a share of the rows each: less padding, and a working
    set that stays in cache. `transform="cosine"` takes the cosine transform instead, which needs no padding at all. Unbiased.
    Lemma D.12 gives α = 2·dim/size; exactly it is (dim − 1)(n − size)/(size·(n − 1)), at most dim/size − 1, the least
    possible, when nothing is padded.
    """

    transform: str = "hadamard"
    block: int | None = None

    name = "srht"
    summary = "signs, Hadamard transform, sampled rows"
    source = "Song et al. 2023, Def. D.3"
    cost = "dim · log dim"
    alpha_formula = "2 dim/size"
    wide = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.transform not in TRANSFORMS:
            raise UnknownNameError("transform", self.transform, TRANSFORMS)
        if self.block is not None and (isinstance(self.block, bool) or not isinstance(self.block, int) or self.block < 1):
            raise InputError(f"block must be a positive number of coordinates, got {self.block!r}. Leave it out for one block.")
        if min(part.rows for part in self._parts) < 1:
            raise InputError(
                f"block {self.block:,} cuts dim {self.dim:,} into {len(self._parts):,} parts, but size {self.size:,} "
                f"gives some of them no coefficient. Use block >= {-(-2 * self.dim // self.size):,} or a larger "
                "size."
            )

    @cached_property
    def _parts(self) -> list[_Part]:
        number = 1 if self.block is None else -(-self.dim // self.block)
        edges = [p * self.dim // number for p in range(number + 1)]
        shares = [edge * self.size // self.dim for edge in edges]
        parts = zip(edges, edges[1:], shares, shares[1:], strict=False)
        return [_Part(*part, width=self._width(part[1] - part[0])) for part in parts]

    def _width(self, length: int) -> int:
        return length if self.transform == "cosine" else 1 << (length - 1).bit_length()

    @property
    def portable(self) -> bool:  # type: ignore[override]
        """The fast cosine transform is another one on each device."""
        return self.transform == "hadamard"

    @property
    def alpha(self) -> float:
        return max(2 * part.length / part.rows for part in self._parts)

    @property
    def exact_alpha(self) -> float:
        return max((p.length - 1) * (p.width - p.rows) / (p.rows * max(1, p.width - 1)) for p in self._parts)

    @cached_property
    def _words(self) -> Words:
        """Sign bits, a row of words a part."""
        each = 2 * max(-(-part.length // 64) for part in self._parts)
        drawn = philox.words(self.seed.child("signs").stream, each * len(self._parts))
        return drawn[: each * len(self._parts)].reshape(len(self._parts), each)

    @cached_property
    def _rows(self) -> npt.NDArray[np.int32]:
        """The rows taken of each part's transform, part after part."""
        seed = self.seed.child("rows")
        return np.concatenate(
            [
                draws.subset(seed.child("part", number).stream, dim=part.width, size=part.rows)
                for number, part in enumerate(self._parts)
            ]
        )

    @cached_property
    def _layout(self) -> npt.NDArray[np.int64]:
        return np.array(self._parts, np.int64)

    def _scale(self, part: _Part) -> float:
        """√(n/rows), and 1/√n more for the transform whose entries are ±1."""
        return math.sqrt(part.width / part.rows) if self.transform == "cosine" else 1 / math.sqrt(part.rows)  # as in the kernel

    def _apply(self, x: Tensor) -> Tensor:
        out = x.new_empty(x.shape[0], self.size)
        if self.transform == "hadamard" and on_cpu(x):
            if self._in_pieces and self.size << fwht.PIECES_LOG <= self._widest >> 2:  # the sampled rows of all pieces are few
                work = self._work(x, self._piece + (self.size << fwht.PIECES_LOG))
                fwht.sampled_transform_of_pieces(x.numpy(), self.dim, self._words[0], self._rows, work, out.numpy())
            else:
                work = self._work(x, self._widest)
                fwht.sampled_transform(x.numpy(), self._layout, self._words, self._rows, work, out.numpy())
            return out
        for part, signs, rows in self._each_part(x):
            signed = signs * x[:, part.start : part.stop]
            transformed = self._transformed(torch.nn.functional.pad(signed, (0, part.width - part.length)))
            out[:, part.first : part.last] = transformed[:, rows] * self._scale(part)
        return out

    def _adjoint(self, y: Tensor) -> Tensor:
        out = empty_like(y, y.shape[0], self.dim)
        if self.transform == "hadamard" and on_cpu(y):
            if self._in_pieces:
                beyond = self._widest - self.dim // self._piece * self._piece
                work = self._work(y, beyond)
                fwht.sampled_transform_adjoint_in_place(y.numpy(), self.dim, self._words[0], self._rows, work, out.numpy())
            else:
                work = self._work(y, self._widest)
                fwht.sampled_transform_adjoint(y.numpy(), self._layout, self._words, self._rows, work, out.numpy())
            return out
        for part, signs, rows in self._each_part(y):
            spread = y.new_zeros(y.shape[0], part.width)
            spread[:, rows] = y[:, part.first : part.last] * self._scale(part)
            restored = cosine_transposed(spread) if self.transform == "cosine" else fwht.hadamard_twin(spread)
            out[:, part.start : part.stop] = signs * restored[:, : part.length]
        return out

    @cached_property
    def _widest(self) -> int:
        return max(part.width for part in self._parts)

    @property
    def _piece(self) -> int:
        return self._widest >> fwht.PIECES_LOG

    @property
    def _in_pieces(self) -> bool:
        """Whether the transform is long enough to save memory, which does not change a bit."""
        return len(self._parts) == 1 and self._widest >= LEAST_IN_PIECES

    def _work(self, like: Tensor, count: int) -> npt.NDArray[np.float32 | np.float64]:
        return scratch(count, np.float32 if like.dtype == torch.float32 else np.float64)

    def _transformed(self, x: Tensor) -> Tensor:
        return cosine(x) if self.transform == "cosine" else fwht.hadamard_twin(x)

    def _each_part(self, like: Tensor) -> Iterator[tuple[_Part, Tensor, Tensor]]:
        """Every part with its signs and its rows as tensors beside `like`."""
        signs, rows = _moved(self, like.device)
        for index, part in enumerate(self._parts):
            yield part, signs[index, : part.length].to(like.dtype), rows[part.first : part.last].long()


@cached_within(room=MOST_MOVED)
def _moved(sketch: Srht, device: torch.device) -> tuple[Tensor, Tensor]:
    """The signs `(parts, coordinates)` and the rows of all parts, drawn on the CPU and moved once, in 8 and 32 bits."""
    most = max(part.length for part in sketch._parts)
    signs = np.stack([1 - 2 * philox.bits(words, most).astype(np.int8) for words in sketch._words])
    return torch.from_numpy(signs).to(device), torch.from_numpy(sketch._rows).to(device)
