"""What every sketch family must do: a new one is tested by being registered."""

import hashlib
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from odds import mean_interval
from sketchfed import PublicSeed
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.kernels.jit import forced_twins
from sketchfed.sketches import SKETCHES, dense, make_sketch
from sketchfed.sketches.columns import ColumnSketch

GOLDEN = Path(__file__).parents[1] / "golden" / "sketches.json"
VARIANTS = {name: (name, {}) for name in SKETCHES} | {
    "srht, blocks": ("srht", {"block": 32}),
    "srht, cosine": ("srht", {"transform": "cosine"}),
    "srht, cosine blocks": ("srht", {"transform": "cosine", "block": 30}),
    "sparse, 2 nonzeros": ("sparse", {"nonzeros": 2}),
    "sparse, 40 nonzeros": ("sparse", {"nonzeros": 40}),
    "sparse_blocks, 3 nonzeros": ("sparse_blocks", {"nonzeros": 3}),
}
SHAPES = [(1, 1), (2, 1), (7, 7), (31, 5), (64, 64), (100, 48), (129, 50), (1000, 100)]
DTYPES = [torch.float32, torch.float64]

SEED = PublicSeed(7)

every_variant = pytest.mark.parametrize("variant", VARIANTS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def sketch_of(variant: str, *, dim: int = 100, size: int = 48, seed: PublicSeed = SEED):
    name, options = VARIANTS[variant]
    return make_sketch(name, dim=dim, size=size, seed=seed, **options)


def possible(shapes: list[tuple[int, int]]) -> list[tuple[str, int, int]]:
    """Every variant at every shape, but for those that an option of the variant forbids."""
    cases = []
    for variant, (_, options) in VARIANTS.items():
        for dim, size in shapes:
            try:
                sketch_of(variant, dim=dim, size=size)
            except InputError:
                assert options, "a family without options takes every size up to dim"
            else:
                cases.append((variant, dim, size))
    return cases


def normal(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def tolerance(dtype: torch.dtype) -> float:
    return 1e-11 if dtype == torch.float64 else 1e-4


@every_dtype
@pytest.mark.parametrize(("variant", "dim", "size"), possible(SHAPES))
def test_apply_and_adjoint_are_the_dense_matrix(variant, dtype, dim, size):
    sketch = sketch_of(variant, dim=dim, size=size)
    matrix = dense(sketch, dtype=dtype)
    assert matrix.shape == (size, dim)
    x, y = normal(3, dim, dtype=dtype), normal(3, size, dtype=dtype, seed=2)
    scale = float(matrix.abs().sum(1).max())
    assert torch.allclose(sketch.apply(x), x @ matrix.T, rtol=0, atol=tolerance(dtype) * scale)
    assert torch.allclose(sketch.adjoint(y), y @ matrix, rtol=0, atol=tolerance(dtype) * scale)


@every_variant
@every_dtype
def test_the_adjoint_passes_the_dot_test(variant, dtype):
    """⟨Rx, y⟩ = ⟨x, Rᵀy⟩."""
    sketch = sketch_of(variant, dim=3000, size=700)
    x, y = normal(3000, dtype=dtype), normal(700, dtype=dtype, seed=2)
    left, right = sketch.apply(x) @ y, x @ sketch.adjoint(y)
    assert float(left) == pytest.approx(float(right), abs=tolerance(dtype) * 3000)


@every_variant
def test_a_sketch_is_linear(variant):
    sketch = sketch_of(variant)
    x, y = normal(100), normal(100, seed=2)
    assert torch.allclose(sketch.apply(3 * x - 0.5 * y), 3 * sketch.apply(x) - 0.5 * sketch.apply(y))


@every_variant
def test_leading_dimensions_are_kept_and_rows_are_independent(variant):
    sketch = sketch_of(variant)
    x = normal(2, 3, 100)
    y = sketch.apply(x)
    assert y.shape == (2, 3, 48)
    assert torch.allclose(y[1, 2], sketch.apply(x[1, 2]))
    assert sketch.adjoint(y).shape == (2, 3, 100)
    assert sketch.apply(normal(0, 100)).shape == (0, 48)
    assert torch.allclose(sketch.apply(normal(100, 3).T), sketch.apply(normal(100, 3).T.contiguous()))


@every_dtype
@pytest.mark.parametrize(("variant", "dim", "size"), possible([(1, 1), (31, 5), (129, 50), (1000, 100)]))
def test_the_torch_twin_is_the_same_operator(variant, dtype, dim, size):
    sketch, x = sketch_of(variant, dim=dim, size=size), normal(2, dim, dtype=dtype)
    with forced_twins():
        twin, twin_sketch = dense(sketch, dtype=dtype), sketch.apply(x)
    assert torch.allclose(dense(sketch, dtype=dtype), twin, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-13)
    assert torch.allclose(sketch.apply(x), twin_sketch, rtol=1e-4, atol=tolerance(dtype) * math.sqrt(dim))
    if isinstance(sketch, ColumnSketch):
        assert torch.equal(torch.from_numpy(sketch._codes(0, dim).astype(np.int64)), sketch._codes_twin(torch.arange(dim)))


@every_variant
def test_float32_and_float64_are_the_same_operator(variant):
    sketch = sketch_of(variant)
    assert torch.allclose(dense(sketch, dtype=torch.float32).double(), dense(sketch), rtol=0, atol=1e-6)


@every_variant
def test_equal_fields_are_the_same_operator_and_other_seeds_are_not(variant):
    assert sketch_of(variant) == sketch_of(variant)
    assert hash(sketch_of(variant)) == hash(sketch_of(variant))
    assert torch.equal(dense(sketch_of(variant)), dense(sketch_of(variant)))
    other = sketch_of(variant, seed=PublicSeed(8))
    assert other != sketch_of(variant)
    assert not torch.equal(dense(other), dense(sketch_of(variant)))


@every_variant
def test_operators_are_frozen_for_all_time(variant):
    """A stored digest of the matrix, to a thousandth. To register a new family: delete nothing, run, and add what it prints."""
    matrix = dense(sketch_of(variant, dim=129, size=50)).mul(1000).round().to(torch.int32).numpy()
    digest = hashlib.sha256(matrix.astype("<i4").tobytes()).hexdigest()[:32]
    assert json.loads(GOLDEN.read_text()).get(variant) == digest, f'"{variant}": "{digest}"'


@every_variant
def test_threads_do_not_change_a_bit(variant):
    sketch, x = sketch_of(variant, dim=5000, size=600), normal(8, 5000, dtype=torch.float32)
    alone = [sketch_of(variant, dim=5000, size=600).apply(row) for row in x]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(sketch.apply, x))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        single = [sketch.apply(row) for row in x]
    finally:
        torch.set_num_threads(threads)
    for a, b, c in zip(alone, together, single, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


@every_variant
def test_derivatives_of_every_order_exist(variant):
    sketch = sketch_of(variant)
    x, y = normal(2, 100).requires_grad_(), normal(2, 48).requires_grad_()
    assert torch.autograd.gradcheck(sketch.apply, x, fast_mode=True)
    assert torch.autograd.gradcheck(sketch.adjoint, y, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda t: sketch.apply(t).pow(3), x, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda t: sketch.adjoint(t).pow(3), y, fast_mode=True)


@every_variant
def test_function_transforms_work(variant):
    sketch, matrix, x = sketch_of(variant), dense(sketch_of(variant)), normal(5, 100)
    energy = lambda t: sketch.apply(t).square().sum()  # noqa: E731
    assert torch.allclose(torch.func.vmap(torch.func.grad(energy))(x), 2 * x @ matrix.T @ matrix)
    assert torch.allclose(torch.func.vmap(sketch.apply, in_dims=1)(x.T), x @ matrix.T)
    assert torch.allclose(torch.func.jvp(sketch.apply, (x[0],), (x[1],))[1], matrix @ x[1])
    assert torch.allclose(torch.func.hessian(energy)(x[0]), 2 * matrix.T @ matrix)


TRIALS = 2_000


@every_variant
def test_the_round_trip_is_unbiased(variant):
    """E[RᵀRh] = h along ten directions (Song et al. 2023, Thm 4.2). False alarm below 1e-5 a variant, by Student's t."""
    h, directions = normal(96), torch.cat([normal(8, 96, seed=3), torch.eye(96, dtype=torch.float64)[[0, 95]]])
    along = []
    for trial in range(TRIALS):
        sketch = sketch_of(variant, dim=96, size=48, seed=PublicSeed(1).child("trial", trial))
        along.append(directions @ sketch.adjoint(sketch.apply(h)))
    for samples, expected in zip(torch.stack(along).T, directions @ h, strict=True):
        low, high = mean_interval(samples, false_alarm=1e-6)
        assert low <= float(expected) <= high


@every_variant
@pytest.mark.parametrize("shape", ["normal", "one coordinate", "flat"])
def test_the_second_moment_is_exact_alpha_and_below_alpha(variant, shape):
    """E‖RᵀRh‖² = 1 + exact_alpha ≤ 1 + alpha for unit h (Thm 4.2, Table 1). False alarm below 2e-6 a case, by Student's t."""
    h = {
        "normal": normal(96),
        "one coordinate": torch.eye(96, dtype=torch.float64)[17],
        "flat": torch.ones(96, dtype=torch.float64),
    }[shape]
    h = h / h.norm()
    moments = []
    for trial in range(TRIALS):
        sketch = sketch_of(variant, dim=96, size=48, seed=PublicSeed(2).child(shape, trial))
        moments.append(float(sketch.adjoint(sketch.apply(h)).square().sum()))
    low, high = mean_interval(moments, false_alarm=2e-6)
    assert low <= 1 + sketch.exact_alpha <= high
    assert low <= 1 + sketch.alpha
    assert 0 <= sketch.exact_alpha <= sketch.alpha


@pytest.mark.parametrize(("variant", "dim", "size"), possible([(1, 1), (5, 2), (97, 13), (1000, 999), (100_003, 1001)]))
def test_exact_alpha_never_exceeds_the_published_bound_nor_beats_the_least_possible(variant, dim, size):
    """E tr((RᵀR)²) ≥ dim²/size for every R of `size` rows with E[RᵀR] = I, so no α lies below dim/size − 1."""
    sketch = sketch_of(variant, dim=dim, size=size)
    assert dim / size - 1 - 1e-9 <= sketch.exact_alpha <= sketch.alpha


@pytest.mark.parametrize("name", SKETCHES)
@pytest.mark.parametrize("field", ["dim", "size"])
@pytest.mark.parametrize("value", [0, -3, 2**31, 1.5, "12", None, True])
def test_dim_and_size_must_be_positive_integers(name, field, value):
    with pytest.raises(InputError, match=field):
        make_sketch(name, **{"dim": 10, "size": 2, "seed": PublicSeed(1), field: value})


@pytest.mark.parametrize("name", SKETCHES)
def test_a_size_beyond_dim_works_or_is_refused_in_words(name):
    if SKETCHES[name].wide:
        assert dense(make_sketch(name, dim=5, size=9, seed=PublicSeed(1))).shape == (9, 5)
    else:
        with pytest.raises(InputError, match=f"size 9 exceeds dim 5: '{name}'.*Use size <= 5"):
            make_sketch(name, dim=5, size=9, seed=PublicSeed(1))


@every_variant
def test_what_apply_and_adjoint_refuse(variant):
    sketch = sketch_of(variant)
    cases = [
        (torch.ones(99), "last dimension of x must be dim = 100, got shape"),
        (torch.tensor(1.0), "last dimension"),
        (torch.ones(100, dtype=torch.int64), "int64.*Convert it: x.to"),
        (torch.ones(100, dtype=torch.float16), "float16"),
        (np.ones(100), "torch tensor, got ndarray"),
        (torch.full((100,), torch.nan), "100 values that are NaN or infinite"),
        (torch.cat([torch.ones(50), torch.tensor([torch.inf]), torch.ones(49)]), "first at coordinate 50"),
    ]
    for bad, why in cases:
        with pytest.raises(InputError, match=why):
            sketch.apply(bad)
    with pytest.raises(InputError, match="last dimension of y must be size = 48"):
        sketch.adjoint(torch.ones(100))
    with pytest.raises(InputError, match="1 values that are NaN or infinite"):
        sketch.adjoint(torch.cat([torch.ones(47), torch.tensor([torch.nan])]))


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
