"""Rows and mechanisms that tests share."""

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sketchfed.privacy.discrete import DiscreteGaussian
from sketchfed.seeds import PublicSeed, SecretSeed

SECRET, SHARED = SecretSeed.insecure(3), PublicSeed(3)


def rows_of(units: int, size: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(units, size, generator=torch.Generator().manual_seed(seed))


def clipped(rows: torch.Tensor, clip: float) -> torch.Tensor:
    rows = rows.double()
    return rows * (clip / rows.norm(dim=1, keepdim=True).clamp(min=1e-300)).clamp(max=1)


def discrete(**changes) -> DiscreteGaussian:
    return DiscreteGaussian(**{"size": 20, "clip": 1.0, "deviation": 5.0, "scale": 100.0, "bits": 20} | changes)


ROWS = arrays.arrays(
    np.float32,
    st.integers(1, 40),
    elements=st.floats(-(2.0**100), 2.0**100, width=32) | st.floats(-1, 1, width=32) | st.sampled_from([0.0, 1.0, -1.0, 0.5]),
)
