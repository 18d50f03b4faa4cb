"""Random linear maps that every party rebuilds from a shared seed."""

from dataclasses import fields

import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.parts import Registry
from sketchfed.seeds import PublicSeed
from sketchfed.sketches.ams import Ams
from sketchfed.sketches.balanced import Balanced
from sketchfed.sketches.base import Sketch
from sketchfed.sketches.columns import ColumnSketch
from sketchfed.sketches.count import Count
from sketchfed.sketches.direct_sum import Block, DirectSum
from sketchfed.sketches.gaussian import Gaussian
from sketchfed.sketches.rows import RowSketch
from sketchfed.sketches.sampling import Sampling
from sketchfed.sketches.sparse import Sparse, SparseBlocks
from sketchfed.sketches.srht import Srht

__all__ = ["SKETCHES", "Block", "ColumnSketch", "DirectSum", "RowSketch", "Sketch", "dense", "make_sketch"]

SKETCHES: Registry[type[Sketch]] = Registry(
    "sketch",
    {family.name: family for family in (Gaussian, Srht, Ams, Count, Balanced, Sparse, SparseBlocks, Sampling)},
    group="sketchfed.sketches",
    base=Sketch,
)


def make_sketch(name: str, *, dim: int, size: int, seed: PublicSeed, **options: object) -> Sketch:
    """The sketch of a family by its name, or by the `package.module:Class` of your own.

    >>> make_sketch("count", dim=1000, size=10, seed=PublicSeed(7)).alpha
    300.0
    """
    family = SKETCHES[name]
    known = [field.name for field in fields(family) if field.name not in ("dim", "size", "seed")]
    for option in options:
        if option not in known:
            raise InputError(f"sketch '{name}' has no option {option!r}; it has {', '.join(known) or 'none'}.")
    return family(dim=dim, size=size, seed=seed, **options)


def dense(sketch: Sketch, *, dtype: torch.dtype = torch.float64) -> Tensor:
    """The matrix R, `(size, dim)`, for looking and testing: it is what sketches exist to avoid."""
    return sketch.adjoint(torch.eye(sketch.size, dtype=dtype))
