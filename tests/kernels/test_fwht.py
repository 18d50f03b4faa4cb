from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.linalg
import torch

from sketchfed.kernels import fwht, philox

DTYPES = [torch.float32, torch.float64]


def integers(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers, whose transforms are exact."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("log", range(12))
def test_hadamard_is_the_matrix(log, dtype):
    x = integers(3, 1 << log, dtype=dtype)
    matrix = torch.from_numpy(scipy.linalg.hadamard(1 << log)).to(dtype)
    assert torch.equal(fwht.hadamard_(x.clone()), x @ matrix)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("log", [*range(1, 19), 21])
def test_hadamard_has_the_same_bits_as_its_twin(log, dtype):
    x = torch.randn(1 << log, generator=torch.Generator().manual_seed(log), dtype=dtype)
    assert torch.equal(fwht.hadamard_(x.clone()), fwht.hadamard_twin(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("length", "log"), [(1, 0), (3, 2), (31, 5), (33, 6), (64, 6), (65, 7), (1000, 10), (5000, 13), (40_000, 16)]
)
def test_signs_and_padding_are_fused_into_the_first_stage(length, log, dtype):
    x = integers(length + 5, dtype=dtype).numpy()
    words = np.random.default_rng(2).integers(0, 2**32, 2 * -(-length // 64), dtype=np.uint32)
    out = np.full(1 << log, np.nan, x.dtype)
    fwht.signed_transform(x, 5, length, words, out, log)
    signs = 1 - 2 * philox.bits(words, length).astype(x.dtype)
    padded = torch.from_numpy(np.pad(signs * x[5:], (0, (1 << log) - length)))
    assert np.array_equal(out, fwht.hadamard_twin(padded).numpy())
    restored = np.zeros(length + 3, x.dtype)
    fwht.negate(padded.numpy(), words, length, restored, 3)
    assert np.array_equal(restored[3:], x[5:])


def test_threads_do_not_change_a_bit():
    rows = torch.randn(8, 1 << 14, generator=torch.Generator().manual_seed(3))
    alone = fwht.hadamard_(rows.clone())
    together = rows.clone()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fwht.hadamard_, together))
    assert torch.equal(alone, together)
