"""Every registered sketch family, with several options, does what `sketchfed.testing` demands of a sketch."""

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from sketchfed import PublicSeed
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.sketches import SKETCHES, dense, make_sketch
from sketchfed.testing import SketchConformance

GOLDEN = Path(__file__).parents[1] / "golden" / "sketches.json"
VARIANTS = {name: SKETCHES[name] for name in SKETCHES} | {
    "srht, blocks": partial(SKETCHES["srht"], block=32),
    "srht, cosine": partial(SKETCHES["srht"], transform="cosine"),
    "srht, cosine blocks": partial(SKETCHES["srht"], transform="cosine", block=30),
    "sparse, 2 nonzeros": partial(SKETCHES["sparse"], nonzeros=2),
    "sparse, 40 nonzeros": partial(SKETCHES["sparse"], nonzeros=40),
    "sparse_blocks, 3 nonzeros": partial(SKETCHES["sparse_blocks"], nonzeros=3),
}


class TestEverySketch(SketchConformance):
    sketches: ClassVar = VARIANTS


@pytest.mark.parametrize("variant", VARIANTS)
def test_operators_are_frozen_for_all_time(variant):
    """A stored digest of the matrix, to a thousandth. To register a new family: delete nothing, run, and add what it prints."""
    matrix = dense(VARIANTS[variant](dim=129, size=50, seed=PublicSeed(7))).mul(1000).round().to(torch.int32).numpy()
    digest = hashlib.sha256(matrix.astype("<i4").tobytes()).hexdigest()[:32]
    assert json.loads(GOLDEN.read_text()).get(variant) == digest, f'"{variant}": "{digest}"'


def test_values_that_overflow_are_told_from_values_that_are_not_finite():
    with pytest.raises(InputError, match="overflowed"):
        make_sketch("srht", dim=64, size=64, seed=PublicSeed(1)).apply(torch.full((64,), 3e38))


def test_large_finite_values_are_not_mistaken_for_infinities():
    sketch = make_sketch("sampling", dim=64, size=64, seed=PublicSeed(1))
    assert torch.isfinite(sketch.apply(torch.full((64,), 3e38))).all()


def test_unknown_names_and_options_list_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"no sketch named 'counts'. Did you mean 'count'. Known: gaussian, srht"):
        make_sketch("counts", dim=5, size=2, seed=PublicSeed(1))
    with pytest.raises(UnknownNameError, match="no sketch named"):
        make_sketch(["count"], dim=5, size=2, seed=PublicSeed(1))
    with pytest.raises(InputError, match="'srht' has no option 'blocks'; it has transform, block"):
        make_sketch("srht", dim=5, size=2, seed=PublicSeed(1), blocks=2)
    with pytest.raises(InputError, match="'count' has no option 's'; it has none"):
        make_sketch("count", dim=5, size=2, seed=PublicSeed(1), s=2)
    with pytest.raises(InputError, match="PublicSeed, got int"):
        make_sketch("count", dim=5, size=2, seed=7)
