"""Several sketches side by side, each of its own coordinates, and coordinates that are not sketched at all."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed
from sketchfed.sketches.base import Sketch

Span = tuple[int, int]
"""Coordinates from the first number up to, but without, the second."""


@dataclass(frozen=True)
class Block:
    """Some coordinates of a vector, and how many numbers are sent for them."""

    spans: tuple[Span, ...]
    size: int
    plain: bool = False
    """Whether the coordinates are sent as they are. `size` is then their number."""

    @property
    def dim(self) -> int:
        """The number of coordinates."""
        return sum(stop - start for start, stop in self.spans)

    def taken(self, x: Tensor) -> Tensor:
        """The block's coordinates of vectors: `(..., dim of the vector)` to `(..., dim of the block)`."""
        parts = [x[..., start:stop] for start, stop in self.spans]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def put(self, values: Tensor, into: Tensor) -> None:
        """Write the block's coordinates `(..., dim of the block)` into vectors `(..., dim of the vector)`."""
        lengths = [stop - start for start, stop in self.spans]
        for (start, stop), part in zip(self.spans, torch.split(values, lengths, dim=-1), strict=True):
            into[..., start:stop] = part


@dataclass(frozen=True, kw_only=True)
class DirectSum(Sketch):
    """R = R₁ ⊕ R₂ ⊕ …: each block of coordinates has a sketch of one family, drawn from a child seed of its own.

    No paper. Every block is unbiased, so the sum is. E‖RᵀRh‖² is the sum of (1 + αᵢ)‖hᵢ‖² over the blocks, so α is the largest
    of theirs. Plain blocks have α = 0. The numbers of the blocks follow each other in the order of `blocks`.
    """

    family: type[Sketch]
    blocks: tuple[Block, ...]
    options: tuple[tuple[str, Any], ...] = ()

    name = "direct_sum"
    summary = "a sketch for each block of coordinates"
    source = "here"
    cost = "that of its blocks"
    alpha_formula = "the largest of its blocks"
    wide = False

    def __post_init__(self) -> None:
        super().__post_init__()
        covered = sorted(span for block in self.blocks for span in block.spans)
        edges = [0, *(edge for span in covered for edge in span), self.dim]
        if edges[::2] != edges[1::2] or any(start >= stop for start, stop in covered):
            raise InputError(f"the blocks must hold each of {self.dim:,} coordinates once, got the spans {covered}.")
        if sum(block.size for block in self.blocks) != self.size:
            raise InputError(f"the sizes of the blocks must add up to {self.size:,}, got {[b.size for b in self.blocks]}.")
        if any(block.plain and block.size != block.dim for block in self.blocks):
            raise InputError("a plain block sends all of its coordinates, so its size must be their number.")

    @cached_property
    def parts(self) -> tuple[Sketch | None, ...]:
        """The sketch of each block. None for plain blocks."""
        return tuple(
            None if block.plain else self._part(block, self.seed.child("block", index))
            for index, block in enumerate(self.blocks)
        )

    def _part(self, block: Block, seed: PublicSeed) -> Sketch:
        return self.family(dim=block.dim, size=block.size, seed=seed, **dict(self.options))

    @property
    def reads_all(self) -> bool:  # type: ignore[override]
        """Whether every coordinate reaches some coefficient. Plain blocks do that anyway."""
        return self.family.reads_all

    @property
    def portable(self) -> bool:  # type: ignore[override]
        return all(part is None or part.portable for part in self.parts)

    @property
    def alpha(self) -> float:
        return max(0.0 if part is None else part.alpha for part in self.parts)

    @property
    def exact_alpha(self) -> float:
        return max(0.0 if part is None else part.exact_alpha for part in self.parts)

    def _apply(self, x: Tensor) -> Tensor:
        taken = [(part, block.taken(x)) for part, block in zip(self.parts, self.blocks, strict=True)]
        return torch.cat([own if part is None else part._apply(own.contiguous()) for part, own in taken], dim=-1)

    def _adjoint(self, y: Tensor) -> Tensor:
        out = y.new_empty(len(y), self.dim)
        for part, block, own in zip(self.parts, self.blocks, pieces(y, self.blocks), strict=True):
            block.put(own if part is None else part._adjoint(own.contiguous()), out)
        return out


def pieces(values: Tensor, blocks: tuple[Block, ...]) -> list[Tensor]:
    """The numbers of each block, of numbers `(..., size)` of all of them."""
    ends = list(accumulate((block.size for block in blocks), initial=0))
    return [values[..., start:stop] for start, stop in pairwise(ends)]
