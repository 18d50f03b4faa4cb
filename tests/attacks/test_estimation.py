"""What a client makes of two broadcasts: both options as explicit matrices, for every sketch family."""

from itertools import pairwise

import pytest
import torch

from sketchfed import PublicSeed
from sketchfed.attacks import ESTIMATES, Seen, by_adjoint, by_pseudo_inverse, cosine, relative_error
from sketchfed.errors import InputError
from sketchfed.sketches import SKETCHES, dense, make_sketch

SHAPES = [(12, 12), (24, 12), (31, 8), (200, 100)]
every_option = pytest.mark.parametrize("option", ESTIMATES)
every_family = pytest.mark.parametrize("family", SKETCHES)


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seen(weights: torch.Tensor, family: str, *, size: int, seed: int) -> Seen:
    sketch = make_sketch(family, dim=weights.shape[1], size=size, seed=PublicSeed(seed))
    return Seen(rows=sketch.apply(weights), sketch=sketch)


@every_family
@pytest.mark.parametrize(("dim", "size"), SHAPES)
def test_both_options_are_their_matrices(family, dim, size):
    old, new = normal(5, dim), normal(5, dim, seed=2)
    before, after = seen(old, family, size=size, seed=3), seen(new, family, size=size, seed=4)
    s_old, s_new = dense(before.sketch).T, dense(after.sketch).T
    adjoint = old @ s_old @ s_old.T - new @ s_new @ s_new.T
    inverse = old @ s_old @ torch.linalg.pinv(s_old) - new @ s_new @ torch.linalg.pinv(s_new)
    torch.testing.assert_close(by_adjoint(before, after), adjoint)
    torch.testing.assert_close(by_pseudo_inverse(before, after), inverse, rtol=1e-7, atol=1e-7)


@every_family
def test_the_pseudo_inverse_explains_what_was_seen(family):
    """Sketching the least weights that have a sketch gives that sketch again; from zeros on, minus these are the step."""
    weights = normal(5, 40)
    nothing, after = seen(torch.zeros_like(weights), family, size=20, seed=3), seen(weights, family, size=20, seed=4)
    least = -by_pseudo_inverse(nothing, after)
    torch.testing.assert_close(after.sketch.apply(least), after.rows)
    assert least.norm() <= weights.norm()


def test_empty_buckets_give_nothing():
    after = seen(normal(2, 6), "count", size=50, seed=4)
    assert after.sketch.loads.eq(0).any()
    estimate = by_pseudo_inverse(seen(torch.zeros(2, 6, dtype=torch.float64), "count", size=50, seed=3), after)
    assert estimate.isfinite().all()


@every_option
@every_family
def test_estimates_keep_the_type_of_what_was_seen(option, family):
    weights = normal(3, 16).float()
    estimate = ESTIMATES[option](seen(weights, family, size=8, seed=3), seen(weights, family, size=8, seed=4))
    assert estimate.dtype == torch.float32
    assert estimate.shape == weights.shape


@every_option
def test_sizes_may_vary_between_broadcasts(option):
    """Zhang & Wang 2021, Sec. 5.1: varying the size keeps nobody from either option, only from subtracting sketches."""
    weights = normal(3, 40)
    estimate = ESTIMATES[option](seen(weights, "balanced", size=20, seed=3), seen(weights, "balanced", size=17, seed=4))
    assert estimate.shape == weights.shape


@every_option
def test_steps_of_consecutive_rounds_add_up_but_their_noise_does_not(option):
    """The estimates telescope, so many rounds together are seen as well as one: what grows is the step alone."""
    rounds = [seen(normal(3, 40, seed=10 + i), "balanced", size=20, seed=i) for i in range(4)]
    steps = [ESTIMATES[option](old, new) for old, new in pairwise(rounds)]
    torch.testing.assert_close(sum(steps), ESTIMATES[option](rounds[0], rounds[-1]))


@every_option
def test_square_balanced_sketches_hide_nothing(option):
    """At size = dim the sketch that deals out coordinates is a permutation with signs."""
    old, new = normal(3, 40), normal(3, 40, seed=2)
    estimate = ESTIMATES[option](seen(old, "balanced", size=40, seed=3), seen(new, "balanced", size=40, seed=4))
    torch.testing.assert_close(estimate, old - new)


def test_all_zeros_has_error_one_and_a_cosine_knows_no_length():
    truth = normal(3, 5)
    assert relative_error(torch.zeros_like(truth), truth) == pytest.approx(1)
    assert relative_error(3 * truth, truth) == pytest.approx(2)
    assert cosine(3 * truth, truth) == pytest.approx(1)
    assert cosine(-0.1 * truth, truth) == pytest.approx(-1)


def test_a_layer_that_does_not_fit_its_sketch_is_refused():
    sketch = make_sketch("count", dim=8, size=4, seed=PublicSeed(1))
    with pytest.raises(InputError, match=r"rows of 4 coefficients.*got shape \(4, 3\)"):
        Seen(rows=torch.zeros(4, 3), sketch=sketch)
