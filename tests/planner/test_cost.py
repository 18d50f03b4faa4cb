import pytest
import torch

from odds import mean_interval
from sketchfed import PublicSeed
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.planner import DENSE, Problem, admissible_rate, curvature_alpha, plan, rounds_to
from sketchfed.sketches import SKETCHES, Block, DirectSum, dense, make_sketch

PROBLEM = Problem(smoothness=2.0, strong_convexity=0.01, heterogeneity=1.0, top_curvature=1.6, total_curvature=8.0)
SHAPE = {"dim": 1024, "size": 64, "target": 1e-4}


def by_family(rows):
    return {row.family: row for row in rows}


def test_a_plan_has_a_row_for_every_family_and_one_without_a_sketch():
    rows = plan(PROBLEM, **SHAPE)
    assert [row.family for row in rows] == [DENSE, *SKETCHES]
    for row in rows:
        assert row.rate == admissible_rate(PROBLEM, alpha=row.alpha)
        assert row.rounds == rounds_to(PROBLEM, alpha=row.alpha, target=1e-4)
        assert row.bits == 32 * row.size * row.rounds
        assert row.relative == pytest.approx(row.bits / rows[0].bits)


def test_with_exact_alpha_the_best_sketch_costs_what_sending_everything_costs():
    """(1 + α)·size = dim for srht at a power of two, so rounds grow by what each of them saves (Cor. 5.2)."""
    for size in (512, 64, 4):
        row = by_family(plan(PROBLEM, dim=1024, size=size, target=1e-4))["srht"]
        assert row.relative == pytest.approx(1, abs=0.01)


def test_with_the_published_alpha_it_costs_two_or_three_times_as_much():
    rows = by_family(plan(PROBLEM, **SHAPE, exact=False))
    assert rows["srht"].alpha == 32
    assert rows["srht"].relative == pytest.approx(33 / 16, rel=0.01)
    assert rows["gaussian"].relative == pytest.approx(49 / 16, rel=0.01)


def test_the_published_corollary_favours_small_sketches_because_of_a_drift_that_is_not_there():
    """Without a sketch its step is cut for the sake of σ², with a small sketch it is small enough already."""
    rows = by_family(plan(PROBLEM, dim=1024, size=4, target=1e-4, exact=False, analysis="published"))
    assert rows["srht"].relative < 0.1
    assert rows[DENSE].rounds > 30 * by_family(plan(PROBLEM, **SHAPE))[DENSE].rounds


def test_bits_follow_from_the_bits_of_a_coefficient():
    few, many = (by_family(plan(PROBLEM, **SHAPE, bits_per_coefficient=bits))["count"] for bits in (4, 32))
    assert many.bits == 8 * few.bits


def test_concentrated_curvature_makes_sketches_cheaper_than_sending_everything():
    """tr(H)/λ is 5, dim 1,024: α falls from 15 to 6·15/1023."""
    rows = by_family(plan(PROBLEM, **SHAPE, analysis="curvature"))
    assert rows["srht"].alpha == pytest.approx(6 * 15 / 1023)
    assert rows["gaussian"].alpha == pytest.approx(6 / 64)
    assert rows["srht"].relative < 0.07
    assert rows["sampling"].alpha == 15


@pytest.mark.parametrize("name", SKETCHES)
def test_the_curvature_alpha_bounds_what_a_step_meets(name):
    """gᵀ·E[RᵀRHRᵀR]·g ≤ (1 + α)λ‖g‖² for three g. False alarm below 1e-6 for each by Student's t, one-sided.

    With 1,000 sketches, a mean that exceeds the bound by 0.23 standard deviations is found with probability 0.99.
    """
    dim, size = 12, 3
    generator = torch.Generator().manual_seed(7)
    root = torch.randn(dim, dim, generator=generator, dtype=torch.float64) * torch.tensor([3.0, 1.0] + [0.3] * 10)
    curvature = root.T @ root
    values, vectors = torch.linalg.eigh(curvature)
    problem = Problem(smoothness=100.0, top_curvature=float(values[-1]), total_curvature=float(values.sum()))
    drawn = [make_sketch(name, dim=dim, size=size, seed=PublicSeed(draw)) for draw in range(1_000)]
    matrices = torch.stack([dense(sketch) for sketch in drawn])
    limit = (1 + curvature_alpha(problem, drawn[0])) * values[-1]
    for g in (vectors[:, -1], vectors[:, 0], torch.nn.functional.normalize(root[0], dim=0)):
        restored = torch.einsum("nsd,nse,e->nd", matrices, matrices, g)
        met = torch.einsum("nd,de,ne->n", restored, curvature, restored)
        low, high = mean_interval(met, false_alarm=2e-6)
        assert low <= limit
        if name == "gaussian" and torch.equal(g, vectors[:, -1]):
            assert high >= limit  # the top direction attains it


def test_the_curvature_alpha_is_never_above_the_exact_one():
    """For a round bowl the trace is dim times the top, and nothing is gained."""
    bowl = Problem(smoothness=1.0, strong_convexity=1.0, top_curvature=1.0, total_curvature=1024.0)
    flat = Problem(smoothness=1.0, top_curvature=0.0, total_curvature=0.0)
    for name in SKETCHES:
        sketch = make_sketch(name, dim=1024, size=64, seed=PublicSeed(7))
        assert curvature_alpha(bowl, sketch) == sketch.exact_alpha
        assert curvature_alpha(flat, sketch) == sketch.exact_alpha


@pytest.mark.parametrize(
    "sketch",
    [
        make_sketch("srht", dim=1024, size=64, seed=PublicSeed(7), block=256),
        make_sketch("srht", dim=1024, size=64, seed=PublicSeed(7), transform="cosine"),
        make_sketch("balanced", dim=20_000, size=5_000, seed=PublicSeed(7)),
        make_sketch("count", dim=1, size=4, seed=PublicSeed(7)),
        DirectSum(
            dim=64,
            size=24,
            seed=PublicSeed(7),
            family=SKETCHES["balanced"],
            blocks=(Block(((0, 48),), 8), Block(((48, 64),), 16, plain=True)),
        ),
    ],
    ids=lambda sketch: sketch.name,
)
def test_sketches_whose_columns_are_not_alike_gain_nothing(sketch):
    assert curvature_alpha(PROBLEM, sketch) == sketch.exact_alpha


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"size": 2048}, "size 2,048 exceeds dim 1,024"),
        ({"bits_per_coefficient": 0}, "bits_per_coefficient must be a positive integer"),
        ({"target": -1.0}, "target must be a finite number above 0"),
        ({"local_steps": 2, "analysis": "curvature"}, "Use analysis 'sharpened'"),
    ],
)
def test_a_plan_that_cannot_be_made_is_refused(changed, why):
    with pytest.raises(InputError) as refused:
        plan(PROBLEM, **(SHAPE | changed))
    assert why in str(refused.value)


def test_unknown_analyses_and_unknown_curvature_are_refused():
    with pytest.raises(UnknownNameError, match="sharpened"):
        plan(PROBLEM, **SHAPE, analysis="sharp")
    with pytest.raises(InputError, match="Measure it, or use exact_alpha"):
        curvature_alpha(Problem(smoothness=1.0), make_sketch("count", dim=9, size=3, seed=PublicSeed(7)))
