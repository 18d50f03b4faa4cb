"""What every sketch family must do."""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.kernels.jit import forced_twins
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import Sketch, dense
from sketchfed.testing.odds import mean_interval
from sketchfed.testing.suite import Check, Suite, other_device

Family = Callable[..., Sketch]
"""Makes a sketch from `dim`, `size` and `seed`: a class, or a `partial` of one with options."""

SEED = PublicSeed(7)
SHAPES = [(1, 1), (2, 1), (7, 7), (31, 5), (64, 64), (100, 48), (129, 50), (1000, 100)]
TWIN_SHAPES = [(1, 1), (31, 5), (129, 50), (1000, 100)]
ALPHA_SHAPES = [(1, 1), (5, 2), (97, 13), (1000, 999), (100_003, 1001)]
DTYPES = [torch.float32, torch.float64]
SCALES = (1.0, 1e-3, 1e4)
"""How much longer or shorter vectors are than usual ones: linear maps do not care."""
TRIALS, MOMENT_TRIALS = 400, 600
"""Sketches that are drawn for a statistical check."""


def normal(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    """Standard normal numbers, the same each time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def tolerance(dtype: torch.dtype) -> float:
    """How far rounding may take a sum of a few numbers."""
    return 1e-11 if dtype == torch.float64 else 1e-4


def made(family: Family, *, dim: int = 100, size: int = 48, seed: PublicSeed = SEED) -> Sketch:
    """A sketch of a family."""
    return family(dim=dim, size=size, seed=seed)


def at(shapes: list[tuple[int, int]]) -> Callable[[Check], Check]:
    """Runs a check at these shapes `(dim, size)`, except for those that an option of the family forbids."""

    def marked(check: Check) -> Check:
        check.shapes = shapes  # type: ignore[attr-defined]
        return check

    return marked


every_dtype = pytest.mark.parametrize("dtype", DTYPES)


class SketchConformance(Suite):
    """All demands on a sketch family. `sketches` are classes, or `functools.partial` of a class with options."""

    argument, attribute, kind, example = "family", "sketches", Sketch, "[Mine, functools.partial(Mine, option=2)]"
    sketches: ClassVar[Mapping[str, Family] | Sequence[Family]]

    def refused(self, part: object) -> str | None:
        """What a family is, and what it should be, if it does not make sketches."""
        made = part.func if isinstance(part, partial) else part
        if isinstance(made, type) and issubclass(made, Sketch):
            return None
        if isinstance(made, Sketch):
            return f"an instance of {type(made).__name__}, but the checks need classes, to make sketches of many shapes"
        return f"{part!r}, which is neither a subclass of Sketch nor a partial of one, so the checks cannot run"

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Gives every check its families, and its shapes if it has `dim` and `size`."""
        shapes = getattr(metafunc.function, "shapes", None)
        if shapes is None:
            super().pytest_generate_tests(metafunc)
            return
        cases = {
            f"{name}-{dim}-{size}": (family, dim, size)
            for name, family in self._cases_to_collect().items()
            for dim, size in shapes
            if _possible(family, dim, size)
        }
        metafunc.parametrize(("family", "dim", "size"), list(cases.values()), ids=list(cases))

    @every_dtype
    @at(SHAPES)
    def test_apply_and_adjoint_are_the_dense_matrix(self, family: Family, dim: int, size: int, dtype: torch.dtype) -> None:
        """`apply` and `adjoint` are R and Rᵀ of one matrix, in float32 and float64, for every size from 1 to `dim`."""
        sketch = made(family, dim=dim, size=size)
        matrix = dense(sketch, dtype=dtype)
        assert matrix.shape == (size, dim), f"the matrix has shape {tuple(matrix.shape)}, not {(size, dim)}"
        x, y = normal(3, dim, dtype=dtype), normal(3, size, dtype=dtype, seed=2)
        scale = float(matrix.abs().sum(1).max())
        slack = tolerance(dtype) * scale
        _check_close(sketch.apply(x), x @ matrix.T, "apply, compared with the matrix of the adjoint,", atol=slack)
        _check_close(sketch.adjoint(y), y @ matrix, "adjoint, compared with its own matrix,", atol=slack)

    @every_dtype
    def test_the_adjoint_passes_the_dot_test(self, family: Family, dtype: torch.dtype) -> None:
        """⟨Rx, y⟩ = ⟨x, Rᵀy⟩."""
        sketch = made(family, dim=3000, size=700)
        x, y = normal(3000, dtype=dtype), normal(700, dtype=dtype, seed=2)
        left, right = sketch.apply(x) @ y, x @ sketch.adjoint(y)
        near = abs(float(left) - float(right)) <= tolerance(dtype) * 3000
        assert near, f"⟨Rx, y⟩ = {float(left):.6g}, but ⟨x, Rᵀy⟩ = {float(right):.6g}: adjoint is not the transpose of apply"

    def test_a_sketch_is_linear(self, family: Family) -> None:
        """R(3x − y/2) = 3Rx − Ry/2, and likewise for Rᵀ, for vectors of every length: 0.001, 1 and 10,000 times as long."""
        sketch = made(family)
        for name, of, length in (("R", sketch.apply, 100), ("Rᵀ", sketch.adjoint, 48)):
            x, y = normal(length), normal(length, seed=2)
            wanted = 3 * of(x) - 0.5 * of(y)
            for scale in SCALES:
                found = of(scale * (3 * x - 0.5 * y)) / scale
                _check_close(found, wanted, f"{name} of a sum, for vectors of length {scale:g},")

    def test_leading_dimensions_are_kept_and_rows_are_independent(self, family: Family) -> None:
        """Leading dimensions are kept, also empty ones. Each row is sketched as if it were alone, contiguous or not."""
        sketch = made(family)
        x = normal(2, 3, 100)
        y = sketch.apply(x)
        shapes = [tuple(each.shape) for each in (y, sketch.adjoint(y), sketch.apply(normal(0, 100)))]
        assert shapes == [(2, 3, 48), (2, 3, 100), (0, 48)], f"shapes of results are {shapes}"
        _check_close(y[1, 2], sketch.apply(x[1, 2]), "a row of a batch, compared with the same row alone,")
        across = normal(100, 3).T
        _check_close(sketch.apply(across), sketch.apply(across.contiguous()), "apply to vectors that are not contiguous")

    @every_dtype
    @at(TWIN_SHAPES)
    def test_the_torch_twin_is_the_same_operator(self, family: Family, dim: int, size: int, dtype: torch.dtype) -> None:
        """The torch operations that run on other devices than the CPU (the twin) make the same matrix as the kernel."""
        sketch, x = made(family, dim=dim, size=size), normal(2, dim, dtype=dtype)
        with forced_twins():
            twin, twin_sketch = dense(sketch, dtype=dtype), sketch.apply(x)
        _check_close(twin, dense(sketch, dtype=dtype), "the twin's matrix", atol=1e-6 if dtype == torch.float32 else 1e-13)
        slack = tolerance(dtype) * math.sqrt(dim)
        _check_close(twin_sketch, sketch.apply(x), "apply of the twin", rtol=1e-4, atol=slack)

    @every_dtype
    def test_another_device_gives_the_same_numbers(self, family: Family, dtype: torch.dtype) -> None:
        """On another device than the CPU, `apply` and `adjoint` mix no devices and give the same numbers, also in backward
        passes. If the sketch is `portable`, `adjoint` gives the same bits.

        The device is pretended (`sketchfed.testing.devices`).
        """
        device, sketch = other_device(), made(family)
        x, y = normal(3, 100, dtype=dtype), normal(3, 48, dtype=dtype, seed=2)
        y[0, :20], y[1, :20], y[2, :20] = -0.0, 0.0, 1e-41  # zeros have signs, and some devices take small numbers for zero
        slack = 1e-3 * tolerance(dtype) * 100
        for name, of, vectors in (("apply", sketch.apply, x), ("adjoint", sketch.adjoint, y)):
            there = vectors.to(device).requires_grad_()
            found = of(there)
            assert found.device == device, f"{name} of a vector on {device} is on {found.device}"
            _check_close(found.detach().cpu(), of(vectors), f"{name} on another device", rtol=1e-4, atol=slack)
            found.square().sum().backward()  # type: ignore[no-untyped-call]
            assert there.grad is not None, f"{name} on another device has no derivative"
            assert there.grad.device == device, f"the derivative of {name} on {device} is on {there.grad.device}"
        same = _bits(found.detach().cpu()).equal(_bits(sketch.adjoint(y)))
        assert same or not sketch.portable, "adjoint is said to be portable, but on another device its bits differ"

    def test_float32_and_float64_are_the_same_operator(self, family: Family) -> None:
        """float32 and float64 use the same matrix, up to rounding."""
        sketch = made(family)
        _check_close(dense(sketch, dtype=torch.float32).double(), dense(sketch), "the matrix of float32", atol=1e-6)

    def test_equal_fields_are_the_same_operator_and_other_seeds_are_not(self, family: Family) -> None:
        """All randomness comes from `seed`: sketches with equal fields are equal, have equal hashes and the same matrix."""
        assert made(family) == made(family), "two sketches with equal fields are not equal: the class should be a dataclass"
        assert hash(made(family)) == hash(made(family)), "two sketches with equal fields have different hashes"
        assert torch.equal(dense(made(family)), dense(made(family))), "two sketches with equal fields have different matrices"
        other = made(family, seed=PublicSeed(8))
        assert other != made(family), "sketches with different seeds are equal"
        assert not torch.equal(dense(other), dense(made(family))), "another seed gives the same matrix"

    def test_threads_do_not_change_a_bit(self, family: Family) -> None:
        """Results are the same bits for any number of threads, and if several threads use one sketch."""
        sketch, x = made(family, dim=5000, size=600), normal(8, 5000, dtype=torch.float32)
        alone = [made(family, dim=5000, size=600).apply(row) for row in x]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(sketch.apply, x))
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            single = [sketch.apply(row) for row in x]
        finally:
            torch.set_num_threads(threads)
        for a, b, c in zip(alone, together, single, strict=True):
            assert torch.equal(a, b), f"four threads that use one sketch make it {_off(b, a)} of its length different"
            assert torch.equal(a, c), f"one thread instead of {threads} makes results {_off(c, a)} of their length different"

    def test_derivatives_of_every_order_exist(self, family: Family) -> None:
        """`apply` and `adjoint` can be differentiated twice (the base class `Sketch` does it)."""
        sketch = made(family)
        x, y = normal(2, 100).requires_grad_(), normal(2, 48).requires_grad_()
        assert torch.autograd.gradcheck(sketch.apply, x, fast_mode=True)
        assert torch.autograd.gradcheck(sketch.adjoint, y, fast_mode=True)
        assert torch.autograd.gradgradcheck(lambda t: sketch.apply(t).pow(3), x, fast_mode=True)
        assert torch.autograd.gradgradcheck(lambda t: sketch.adjoint(t).pow(3), y, fast_mode=True)

    def test_function_transforms_work(self, family: Family) -> None:
        """`torch.func.vmap`, `grad`, `jvp` and `hessian` work."""
        sketch, matrix, x = made(family), dense(made(family)), normal(5, 100)

        def energy(t: Tensor) -> Tensor:
            return sketch.apply(t).square().sum()

        _check_close(torch.func.vmap(torch.func.grad(energy))(x), 2 * x @ matrix.T @ matrix, "vmap of grad of ‖Rx‖²")
        _check_close(torch.func.vmap(sketch.apply, in_dims=1)(x.T), x @ matrix.T, "vmap of apply")
        _check_close(torch.func.jvp(sketch.apply, (x[0],), (x[1],))[1], matrix @ x[1], "jvp of apply")
        _check_close(torch.func.hessian(energy)(x[0]), 2 * matrix.T @ matrix, "hessian of ‖Rx‖²")

    def test_the_round_trip_is_unbiased(self, family: Family) -> None:
        """E[RᵀRh] = h over seeds (Song et al. 2023, Thm 4.2).

        Along ten directions. False alarm below 1e-5 a family, by Student's t. With 400 sketches, a bias of 0.37 standard
        deviations along one direction is found with probability 0.99.
        """
        h, directions = normal(96), torch.cat([normal(8, 96, seed=3), torch.eye(96, dtype=torch.float64)[[0, 95]]])
        along = []
        for trial in range(TRIALS):
            sketch = made(family, dim=96, size=48, seed=PublicSeed(1).child("trial", trial))
            along.append(directions @ sketch.adjoint(sketch.apply(h)))
        for samples, expected in zip(torch.stack(along).T, directions @ h, strict=True):
            low, high = mean_interval(samples, false_alarm=1e-6)
            mean = float(samples.mean())
            assert low <= float(expected) <= high, (
                f"along one direction, RᵀRh is {mean:.4g} on average, h is {float(expected):.4g}: E[RᵀR] is not the identity"
            )

    def test_the_second_moment_is_exact_alpha_and_below_alpha(self, family: Family) -> None:
        """E‖RᵀRh‖² = 1 + `exact_alpha` ≤ 1 + `alpha` for unit vectors h (Song et al. 2023, Thm 4.2, Table 1).

        For a normal vector, one coordinate and a flat vector, with the same sketches. False alarm below 6e-6 a family, by
        Student's t. With 600 sketches, an exact_alpha that is off by 0.3 standard deviations of ‖RᵀRh‖² is found with
        probability 0.99.
        """
        h = torch.stack([normal(96), torch.eye(96, dtype=torch.float64)[17], torch.ones(96, dtype=torch.float64)])
        h = h / h.norm(dim=-1, keepdim=True)
        moments = []
        for trial in range(MOMENT_TRIALS):
            sketch = made(family, dim=96, size=48, seed=PublicSeed(2).child("trial", trial))
            moments.append(sketch.adjoint(sketch.apply(h)).square().sum(-1))
        for samples, shape in zip(torch.stack(moments).T, ("a normal vector", "one coordinate", "a flat vector"), strict=True):
            low, high = mean_interval(samples, false_alarm=2e-6)
            found = f"E‖RᵀRh‖² is {float(samples.mean()):.4g}, from {low:.4g} to {high:.4g}, for {shape}"
            assert low <= 1 + sketch.exact_alpha <= high, f"{found}, but 1 + exact_alpha = {1 + sketch.exact_alpha:.4g}"
            assert low <= 1 + sketch.alpha, f"{found}, but 1 + alpha = {1 + sketch.alpha:.4g}"
        _check_alphas(sketch)

    @at(ALPHA_SHAPES)
    def test_exact_alpha_never_exceeds_the_published_bound_nor_beats_the_least_possible(
        self, family: Family, dim: int, size: int
    ) -> None:
        """dim/size − 1 ≤ `exact_alpha` ≤ `alpha` for every shape.

        E tr((RᵀR)²) ≥ dim²/size for every R of `size` rows with E[RᵀR] = I, so no α lies below dim/size − 1.
        """
        sketch = made(family, dim=dim, size=size)
        _check_alphas(sketch)
        least = dim / size - 1
        assert least - 1e-9 <= sketch.exact_alpha, f"exact_alpha = {sketch.exact_alpha:.6g}, but none lies below {least:.6g}"

    @pytest.mark.parametrize("field", ["dim", "size"])
    @pytest.mark.parametrize("value", [0, -3, 2**31, 1.5, "12", None, True])
    def test_dim_and_size_must_be_positive_integers(self, family: Family, field: str, value: object) -> None:
        """`dim` and `size` that are not positive integers are refused."""
        with pytest.raises(InputError, match=field):
            family(**{"dim": 10, "size": 2, "seed": PublicSeed(1), field: value})

    def test_a_size_beyond_dim_works_or_is_refused_in_words(self, family: Family) -> None:
        """A size beyond `dim` works if the class says `wide`, and is refused with the reason if not."""
        try:
            kind = type(made(family, dim=6, size=6))
        except InputError:
            pytest.skip("an option forbids this shape")
        if kind.wide:
            shape = tuple(dense(made(family, dim=5, size=9)).shape)
            assert shape == (9, 5), f"the matrix for dim 5 and size 9 has shape {shape}"
        else:
            with pytest.raises(InputError, match=f"size 9 exceeds dim 5: '{kind.name}'.*Use size <= 5"):
                made(family, dim=5, size=9)

    def test_what_apply_and_adjoint_refuse(self, family: Family) -> None:
        """Other shapes, integers, half precision, NaN and infinity are refused with the reason (`Sketch` does it)."""
        sketch = made(family)
        cases: list[tuple[object, str]] = [
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
                sketch.apply(bad)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="last dimension of y must be size = 48"):
            sketch.adjoint(torch.ones(100))
        with pytest.raises(InputError, match="1 values that are NaN or infinite"):
            sketch.adjoint(torch.cat([torch.ones(47), torch.tensor([torch.nan])]))


def _bits(t: Tensor) -> Tensor:
    return t.contiguous().view(torch.int32)


def _check_close(found: Tensor, wanted: Tensor, what: str, *, rtol: float | None = None, atol: float | None = None) -> None:
    """Fails with how far something is off. With `atol` alone, errors may not grow with the numbers."""
    if found.shape != wanted.shape:
        pytest.fail(f"{what} has shape {tuple(found.shape)}, not {tuple(wanted.shape)}")
    relative = rtol if rtol is not None else 1e-5 if atol is None else 0.0
    near = torch.allclose(found, wanted, rtol=relative, atol=1e-8 if atol is None else atol)
    assert near, f"{what} is off by {_off(found, wanted)} of its length"


def _check_alphas(sketch: Sketch) -> None:
    ordered = -1e-9 <= sketch.exact_alpha <= sketch.alpha
    assert ordered, f"exact_alpha = {sketch.exact_alpha:.6g} should be from 0 to alpha = {sketch.alpha:.6g}"


def _off(found: Tensor, wanted: Tensor) -> str:
    """How far a result is off, as a share of the length that it should have."""
    return f"{float((found - wanted).norm() / wanted.norm().clamp(min=1e-300)):.3g}"


def _possible(family: Family, dim: int, size: int) -> bool:
    """Whether a family has this shape. Only an option may forbid one: a plain class takes every size up to dim."""
    if not isinstance(family, partial):
        return True
    try:
        made(family, dim=dim, size=size)
    except InputError:
        return False
    return True
