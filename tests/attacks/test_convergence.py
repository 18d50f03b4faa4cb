"""Song et al. 2023, Theorem 7.5: gradient descent on the mismatch of gradients converges linearly, under its conditions."""

from itertools import pairwise

import pytest
import torch

from sketchfed.attacks.convergence import Landscape
from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import dense, make_sketch

INPUTS, WEIGHTS = 40, 12


def gradient_map(seed: int = 0) -> torch.Tensor:
    """F(w, x) = ⟨w, Ax⟩ has the gradient Ax: linear in x, and under-parametrised, as Sec. 7.1 asks."""
    return torch.randn(WEIGHTS, INPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) / INPUTS**0.5


def descended(sketch: torch.Tensor, landscape: Landscape, *, iterations: int) -> list[float]:
    """‖R∇F(w, x) − Rg‖² along gradient descent from zero, with the theorem's step, through autograd."""
    truth = torch.rand(INPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    w = torch.zeros(WEIGHTS, dtype=torch.float64, requires_grad=True)
    x, losses = torch.zeros(INPUTS, dtype=torch.float64, requires_grad=True), []
    seen = sketch @ (gradient_map() @ truth)
    for _ in range(iterations):
        (gradient,) = torch.autograd.grad(w @ (gradient_map() @ x), w, create_graph=True)
        loss = (sketch @ gradient - seen).square().sum()
        losses.append(float(loss.detach()))
        (slope,) = torch.autograd.grad(loss, x)
        x = (x - landscape.step * slope).detach().requires_grad_()
    return losses


@pytest.mark.parametrize("size", [None, 5, 8, 12])
def test_the_mismatch_shrinks_by_the_promised_rate_in_every_iteration(size):
    """Also through sketches, of fewer numbers than the gradient has (Theorem 7.8): 1 − γ at least, to the last bits."""
    sketch = torch.eye(WEIGHTS, dtype=torch.float64)
    if size is not None:
        sketch = dense(make_sketch("gaussian", dim=WEIGHTS, size=size, seed=PublicSeed(3))).double()
    values = torch.linalg.svdvals(sketch @ gradient_map())
    landscape = Landscape.of_linear(least=float(values.min()), most=float(values.max()))
    losses = descended(sketch, landscape, iterations=200)
    assert 0 < landscape.rate() < 1
    for before, after in pairwise(losses):
        assert after <= (1 - landscape.rate()) * before * (1 + 1e-9)
    assert losses[-1] < 0.9 * losses[0]


def test_a_linear_landscape_is_what_its_definitions_say():
    """Defs. 7.2 and 7.3 at random points."""
    matrix, generator = gradient_map(), torch.Generator().manual_seed(2)
    values = torch.linalg.svdvals(matrix)
    landscape = Landscape.of_linear(least=float(values.min()), most=float(values.max()))
    for _ in range(200):
        x, y, truth = torch.randn(3, INPUTS, dtype=torch.float64, generator=generator)
        loss = {name: float((matrix @ (point - truth)).square().sum()) for name, point in (("x", x), ("y", y))}
        slope = 2 * matrix.T @ (matrix @ (x - truth))
        assert loss["y"] <= loss["x"] + float(slope @ (y - x)) + landscape.b * float((y - x).square().sum()) + 1e-9
        square = float(slope.square().sum())
        assert landscape.least**2 * loss["x"] <= square * (1 + 1e-9)
        assert square <= landscape.most**2 * loss["x"] * (1 + 1e-9)


@pytest.mark.parametrize("spread", [1.0, 1.5, 10.0])
def test_the_published_constants_never_meet_the_conditions_of_the_theorem(spread):
    """A gradient whose pseudo-kernel has eigenvalues up to most² is no better than most-Lipschitz."""
    landscape = Landscape.published(lipschitz=spread, least=1.0, most=spread)
    assert landscape.margin < 0
    with pytest.raises(InputError, match="says nothing"):
        _ = landscape.step


@pytest.mark.parametrize("change", [{"p": 2.0}, {"a": -1.0}, {"b": 0.0}, {"least": 0.0}, {"least": 3.0}])
def test_landscapes_that_cannot_be_are_refused(change):
    with pytest.raises(InputError, match="landscape"):
        Landscape(**({"a": 0.0, "b": 1.0, "p": 0.5, "least": 1.0, "most": 2.0} | change))


def test_steps_beyond_the_theorem_are_refused():
    landscape = Landscape.of_linear(least=1.0, most=2.0)
    assert landscape.rate(landscape.step / 2) == pytest.approx(landscape.rate() / 2)
    with pytest.raises(InputError, match="steps from 0"):
        landscape.rate(2 * landscape.step)
