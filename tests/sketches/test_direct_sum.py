"""A direct sum of sketches is a sketch, and each of its blocks is the sketch of its own coordinates."""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar

import pytest
import torch

from odds import mean_interval
from sketchfed import PublicSeed
from sketchfed.algorithms.blocks import shared
from sketchfed.errors import InputError
from sketchfed.sketches import SKETCHES, Block, DirectSum, dense, make_sketch
from sketchfed.testing import SketchConformance
from sketchfed.testing.suite import only

SEED = PublicSeed(7)


def blocks_for(dim: int, size: int, *, plain: bool = False) -> tuple[Block, ...]:
    """Up to three blocks. The first holds coordinates from both ends. The last is plain, if its numbers fit into `size`."""
    count = min(3, size, dim // 2)
    if count < 2:
        return (Block(((0, dim),), size),)
    cut = dim // (2 * count)
    inner = [cut, *([dim // 2] if count == 3 else []), dim - cut]
    spans = [((0, cut), (dim - cut, dim)), *(((start, stop),) for start, stop in pairwise(inner))]
    dims = [sum(stop - start for start, stop in each) for each in spans]
    if plain and (left := size - dims[-1]) >= count - 1:
        sizes = [*shared(left, dims[:-1]), dims[-1]]
    else:
        plain, sizes = False, shared(size, dims)
    places = zip(spans, sizes, strict=True)
    return tuple(Block(each, own, plain=plain and place == count - 1) for place, (each, own) in enumerate(places))


@dataclass(frozen=True, kw_only=True, init=False)
class Divided(DirectSum):
    """A direct sum with blocks that follow from its shape."""

    plain: bool = False

    def __init__(self, *, dim, size, seed, family="srht", plain=False):
        blocks = blocks_for(dim, size, plain=plain) if type(dim) is type(size) is int and 0 < size <= dim else ()
        object.__setattr__(self, "plain", plain)
        super().__init__(dim=dim, size=size, seed=seed, family=SKETCHES[family], blocks=blocks)


class TestDirectSum(SketchConformance):
    sketches: ClassVar = {
        "srht": Divided,
        "count": partial(Divided, family="count"),
        "gaussian": partial(Divided, family="gaussian"),
        "sampling": partial(Divided, family="sampling"),
    }


class TestDirectSumWithPlainCoordinates(SketchConformance):
    sketches: ClassVar = {"srht": partial(Divided, plain=True)}

    @only(lambda suite, family: False)
    def test_the_second_moment_is_exact_alpha_and_below_alpha(self, family):
        """Only the block that loses most attains α: see the test below."""


PARTS = (Block(((0, 10), (40, 64)), 12), Block(((10, 30),), 4), Block(((30, 40),), 10, plain=True))


def summed(seed: PublicSeed = SEED, family: str = "srht") -> DirectSum:
    return DirectSum(dim=64, size=26, seed=seed, family=SKETCHES[family], blocks=PARTS)


def test_the_matrix_has_the_sketch_of_each_block_at_its_coordinates_and_zeros_elsewhere():
    matrix, wanted = dense(summed()), torch.zeros(26, 64, dtype=torch.float64)
    first = dense(make_sketch("srht", dim=34, size=12, seed=SEED.child("block", 0)))
    wanted[:12, :10], wanted[:12, 40:] = first[:, :10], first[:, 10:]
    wanted[12:16, 10:30] = dense(make_sketch("srht", dim=20, size=4, seed=SEED.child("block", 1)))
    wanted[16:, 30:40] = torch.eye(10, dtype=torch.float64)
    assert torch.equal(matrix, wanted)


def test_plain_coordinates_make_the_round_trip_to_the_last_bit():
    x = torch.randn(3, 64)
    assert torch.equal(summed().adjoint(summed().apply(x))[:, 30:40], x[:, 30:40])


@pytest.mark.parametrize("family", ["gaussian", "srht", "count", "balanced"])
def test_energy_grows_in_each_block_by_its_own_alpha(family):
    """E‖RᵢᵀRᵢhᵢ‖² = (1 + αᵢ)‖hᵢ‖² for each block, and their largest is α. False alarm below 1e-6 a block, by Student's t.

    With 600 sketches, an αᵢ that is off by 0.3 standard deviations of the energy is found with probability 0.99.
    """
    h, energy = torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), []
    for trial in range(600):
        sketch = summed(PublicSeed(2).child("trial", trial), family)
        back = sketch.adjoint(sketch.apply(h))
        energy.append(torch.stack([block.taken(back).square().sum() for block in PARTS]))
    alphas = [0.0 if part is None else part.exact_alpha for part in sketch.parts]
    for block, alpha, samples in zip(PARTS, alphas, torch.stack(energy).T, strict=True):
        low, high = mean_interval(samples, false_alarm=1e-6)
        assert low - 1e-9 <= (1 + alpha) * float(block.taken(h).square().sum()) <= high + 1e-9
    assert sketch.exact_alpha == max(alphas) == alphas[1]
    assert sketch.alpha == max(part.alpha for part in sketch.parts[:2])


@pytest.mark.parametrize(
    ("blocks", "reason"),
    [
        ((Block(((0, 60),), 26),), "must hold each of 64 coordinates once"),
        ((Block(((0, 40),), 13), Block(((39, 64),), 13)), "must hold each of 64 coordinates once"),
        ((Block(((0, 64), (64, 64)), 26),), "must hold each of 64 coordinates once"),
        ((), "must hold each of 64 coordinates once"),
        ((Block(((0, 64),), 25),), "must add up to 26, got .25."),
        ((Block(((0, 40),), 14), Block(((40, 64),), 12, plain=True)), "its size must be their number"),
        ((Block(((0, 63),), 0), Block(((63, 64),), 26)), "size must be from 1"),
    ],
)
def test_blocks_that_do_not_divide_the_vector_are_refused(blocks, reason):
    with pytest.raises(InputError, match=reason):
        DirectSum(dim=64, size=26, seed=SEED, family=SKETCHES["count"], blocks=blocks).alpha  # noqa: B018
