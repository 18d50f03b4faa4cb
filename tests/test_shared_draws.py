import math

import pytest
import torch

from sketchfed import PublicSeed
from sketchfed.draws import normals, permutation, subset, uniform
from sketchfed.errors import InputError

SEED = PublicSeed(7)


def test_a_permutation_has_every_number_once_and_depends_on_the_seed():
    drawn = permutation(SEED, 1_000)
    assert drawn.dtype == torch.int64
    assert torch.equal(drawn.sort().values, torch.arange(1_000))
    assert torch.equal(drawn, permutation(PublicSeed(7), 1_000))
    assert not torch.equal(drawn, permutation(PublicSeed(8), 1_000))
    assert len(permutation(SEED, 0)) == 0


def test_a_subset_has_different_numbers_in_order():
    drawn = subset(SEED, 200, of=1_000)
    assert drawn.dtype == torch.int64
    assert drawn.tolist() == sorted(set(drawn.tolist()))
    assert drawn[0] >= 0
    assert drawn[-1] < 1_000
    assert torch.equal(subset(SEED, 5, of=5), torch.arange(5))
    assert len(subset(SEED, 0, of=5)) == 0


def test_normal_numbers_have_mean_0_and_variance_1():
    """Both within 5.5 standard errors: a false alarm in fewer than 1 of 10 million seeds, and this seed is fixed."""
    drawn, count = normals(SEED, 100_000).double(), 100_000
    assert abs(float(drawn.mean())) < 5.5 / math.sqrt(count)
    assert abs(float(drawn.var()) - 1) < 5.5 * math.sqrt(2 / count)


def test_rows_of_normal_numbers_do_not_depend_on_those_drawn_with_them():
    together = normals(SEED, 50, rows=torch.tensor([0, 3, 9]))
    assert together.shape == (3, 50)
    assert torch.equal(together[1], normals(SEED, 50, rows=torch.tensor([3]))[0])
    assert torch.equal(together[0], normals(SEED, 50))


def test_uniform_numbers_stay_within_the_bound_and_fill_it():
    drawn = uniform(SEED, (100, 200), bound=0.5)
    assert drawn.shape == (100, 200)
    assert drawn.dtype == torch.float32
    assert -0.5 < float(drawn.min()) < -0.499, "of 20,000 numbers none below −0.499 has a chance of 2e-9"
    assert 0.499 < float(drawn.max()) < 0.5
    assert torch.equal(uniform(SEED, (), bound=1.0), uniform(SEED, (1,), bound=1.0)[0])


@pytest.mark.parametrize(
    ("draw", "why"),
    [
        (lambda: permutation(SEED, -1), "count must be a whole number from 0 to 2,147,483,647, got -1"),
        (lambda: permutation(SEED, 2.0), "count must be a whole number"),
        (lambda: subset(SEED, 6, of=5), "size must be a whole number from 0 to 5, got 6"),
        (lambda: subset(SEED, True, of=5), "size must be a whole number"),
        (lambda: normals(SEED, -3), "count must be a whole number"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, why):
    with pytest.raises(InputError, match=why):
        draw()
