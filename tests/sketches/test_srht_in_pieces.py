"""Long SRHTs work in pieces, which saves memory and changes no bit."""

import pytest
import torch

from sketchfed.seeds import PublicSeed
from sketchfed.sketches import srht


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("dim", "size"), [(2**13, 80), (5_000, 40), (4_097, 17), (8_191, 100), (6_001, 1), (6_145, 3_000)])
def test_pieces_come_to_the_bits_of_the_whole(monkeypatch, dim, size, dtype):
    sketch = srht.Srht(dim=dim, size=size, seed=PublicSeed(5))
    x, y = torch.randn(3, dim, dtype=dtype), torch.randn(3, size, dtype=dtype)
    whole = sketch.apply(x), sketch.adjoint(y)
    monkeypatch.setattr(srht, "LEAST_IN_PIECES", 2**12)
    assert sketch._in_pieces
    assert torch.equal(sketch.apply(x), whole[0])
    assert torch.equal(sketch.adjoint(y), whole[1])
