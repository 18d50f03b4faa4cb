import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sketchfed.errors import InputError, UnknownNameError
from sketchfed.planner import (
    ANALYSES,
    Problem,
    admissible_rate,
    best_rate,
    convex_bound,
    rounds_to,
    stationary_bound,
    strongly_convex_bound,
)

STRONG = Problem(smoothness=2.0, strong_convexity=0.5, heterogeneity=3.0, square_distance=4.0, gap=1.5)
CONVEX = Problem(smoothness=2.0, heterogeneity=3.0, square_distance=4.0, gap=1.5)
CURVED = Problem(smoothness=2.0, strong_convexity=0.5, square_distance=4.0, gap=1.5, top_curvature=1.6, total_curvature=4.8)


@pytest.mark.parametrize(
    ("problem", "local_steps", "analysis", "rate"),
    [
        (STRONG, 1, "published", 1 / 32),  # 1/(8·2·2·1)
        (STRONG, 5, "published", 1 / 160),
        (CONVEX, 5, "published", 1 / 160),
        (STRONG, 1, "sharpened", 1 / 4),  # 1/((1 + α)L), Thm E.1
        (CONVEX, 1, "sharpened", 1 / 8),  # 1/(2(1 + α)L), Thm E.2
        (STRONG, 5, "sharpened", 1 / 80),
        (CONVEX, 5, "sharpened", 1 / 80),
        (CURVED, 1, "curvature", 1 / 3.2),
    ],
)
def test_the_admissible_rate_is_that_of_the_theorem(problem, local_steps, analysis, rate):
    assert admissible_rate(problem, alpha=1.0, local_steps=local_steps, analysis=analysis) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("bound", "problem", "arguments", "value"),
    [
        # (L/2)·D = 4; 4η²L²K³σ²/μ = 4·4·8·3/0.5/64² = 0.1875
        (
            strongly_convex_bound,
            STRONG,
            {"local_steps": 2, "rate": 1 / 64, "analysis": "published"},
            4 * math.exp(-5 / 64) + 0.1875,
        ),
        # (3/2)η²L²K(K − 1)σ²/μ = 1.5·4·2·3/0.5/32² = 0.0703125
        (strongly_convex_bound, STRONG, {"local_steps": 2, "rate": 1 / 32}, 4 * (63 / 64) ** 20 + 0.0703125),
        (strongly_convex_bound, STRONG, {"rate": 1 / 4}, 1.5 * (7 / 8) ** 10),  # the gap 1.5 is below (L/2)·D
        (strongly_convex_bound, CURVED, {"rate": 0.3, "analysis": "curvature"}, 1.5 * 0.85**10),
        # 4·4/(ηKT) + 32η²LK²σ² with ηK = 1/32
        (convex_bound, CONVEX, {"local_steps": 2, "rate": 1 / 64, "analysis": "published"}, 16 * 32 / 10 + 192 / 1024),
        # (7/6)·4/(ηKT) + 3η²LK(K − 1)σ² with ηK = 1/16
        (convex_bound, CONVEX, {"local_steps": 2, "rate": 1 / 32}, 14 / 3 * 16 / 10 + 36 / 1024),
        (convex_bound, CONVEX, {"rate": 1 / 8}, 4 * 8 / 10),
        (stationary_bound, CONVEX, {"rate": 1 / 4}, 2 * 1.5 * 4 / 11),  # Thm E.3
        # Δ/(ηK(T + 1)) + ηLG²(K − 1)/2 + ηLKG²(1 + α)/2 with η = 1/8, K = 2, G = 3
        (stationary_bound, CONVEX, {"rate": 1 / 8, "local_steps": 2, "gradient_bound": 3.0}, 6 / 11 + 9 / 8 + 4.5),
        # Δ/(η_g(T + 1)) + ηLK²G²(η + η_gη(1 + α)/2) with η = 1/8, η_g = 1/2
        (
            stationary_bound,
            CONVEX,
            {"rate": 1 / 8, "local_steps": 2, "global_rate": 0.5, "gradient_bound": 3.0, "analysis": "published"},
            3 / 11 + 9 * (1 / 8 + 1 / 16),
        ),
    ],
)
def test_bounds_after_ten_rounds_are_those_on_paper(bound, problem, arguments, value):
    assert bound(problem, alpha=1.0, rounds=10, **arguments) == pytest.approx(value)


def test_before_the_first_round_the_bounds_are_the_start():
    assert strongly_convex_bound(CURVED, alpha=0.0, rate=0.5, rounds=0) == 1.5
    assert convex_bound(CONVEX, alpha=0.0, rate=0.1, rounds=0) == math.inf


@pytest.mark.parametrize("local_steps", [1, 2, 3, 10, 100])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 60.0])
def test_the_sharpened_bounds_are_never_above_the_published_ones(local_steps, alpha):
    arguments = {"alpha": alpha, "local_steps": local_steps, "rounds": 50}
    for problem, bound in ((STRONG, strongly_convex_bound), (CONVEX, convex_bound)):
        rate = admissible_rate(problem, alpha=alpha, local_steps=local_steps, analysis="published")
        assert rate <= admissible_rate(problem, alpha=alpha, local_steps=local_steps)
        assert bound(problem, rate=rate, **arguments) <= bound(problem, rate=rate, analysis="published", **arguments)


@given(
    smoothness=st.floats(0.1, 100),
    conditioning=st.one_of(st.just(0.0), st.floats(1e-3, 1)),
    heterogeneity=st.one_of(st.just(0.0), st.floats(1e-3, 100)),
    alpha=st.one_of(st.just(0.0), st.floats(0, 100)),
    local_steps=st.integers(1, 20),
    target=st.floats(1e-4, 10),
    analysis=st.sampled_from(["published", "sharpened"]),
)
def test_rounds_are_the_fewest_that_reach_the_target(
    smoothness, conditioning, heterogeneity, alpha, local_steps, target, analysis
):
    problem = Problem(smoothness=smoothness, strong_convexity=conditioning * smoothness, heterogeneity=heterogeneity)
    chosen = {"alpha": alpha, "local_steps": local_steps, "analysis": analysis}
    rate = best_rate(problem, target=target, **chosen)
    assert rate <= admissible_rate(problem, **chosen)
    rounds = rounds_to(problem, target=target, **chosen)
    bound = strongly_convex_bound if problem.strongly_convex else convex_bound
    assert bound(problem, rate=rate, rounds=rounds, **chosen) <= target
    assert rounds == 0 or bound(problem, rate=rate, rounds=rounds - 1, **chosen) > target


def test_a_small_target_slows_down_only_where_clients_drift():
    """Cor. 5.2 asks for more rounds when ε < σ²/(8(1 + α)²μ), even for one local step, where nothing drifts."""
    threshold = STRONG.heterogeneity / (8 * 4 * STRONG.strong_convexity)
    published = {"alpha": 1.0, "analysis": "published"}
    assert best_rate(STRONG, target=1.01 * threshold, **published) == admissible_rate(STRONG, **published)
    assert best_rate(STRONG, target=0.99 * threshold, **published) < admissible_rate(STRONG, **published)
    assert best_rate(STRONG, target=1e-9, alpha=1.0) == admissible_rate(STRONG, alpha=1.0)
    assert best_rate(STRONG, target=1e-9, alpha=1.0, local_steps=2) < admissible_rate(STRONG, alpha=1.0, local_steps=2)


def test_a_step_as_long_as_the_parabola_is_wide_takes_one_round():
    ball = Problem(smoothness=2.0, strong_convexity=2.0)
    assert rounds_to(ball, target=1e-9, alpha=0.0) == 1
    assert rounds_to(ball, target=10.0, alpha=0.0) == 0


def test_the_printed_theorem_g2_is_not_true():
    """√(1 + w²) has L = G = 1. A thousand tiny steps from 3 leave the slope as it is; Theorem G.2 has it vanish."""
    w, rate, rounds = 3.0, 1e-9, 1_000
    hill = Problem(smoothness=1.0, gap=math.hypot(1, w) - 1)
    slope = (w - rate * rounds) / math.hypot(1, w - rate * rounds)  # no step is longer than the rate: least slope possible
    arguments = {"alpha": 0.0, "rate": rate, "rounds": rounds, "gradient_bound": 1.0}
    assert slope**2 > 0.89
    assert stationary_bound(hill, analysis="published", **arguments) < 0.01
    assert stationary_bound(hill, **arguments) >= slope**2


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: Problem(smoothness=0.0), "smoothness must be a finite number above 0, got 0.0"),
        (lambda: Problem(smoothness=1.0, strong_convexity=2.0), "strong_convexity 2 exceeds smoothness 1"),
        (lambda: Problem(smoothness=1.0, heterogeneity=-1.0), "heterogeneity must be a finite number from 0, got -1.0"),
        (lambda: Problem(smoothness=1.0, gap=math.nan), "gap must be a finite number"),
        (lambda: Problem(smoothness=1.0, top_curvature=1.0), "give both or neither"),
        (lambda: admissible_rate(CONVEX, alpha=-1.0), "alpha must be a finite number from 0"),
        (lambda: admissible_rate(CONVEX, alpha=1.0, local_steps=0), "local_steps must be an integer from 1, got 0"),
        (lambda: admissible_rate(STRONG, alpha=1.0, analysis="curvature"), "needs the problem's top_curvature"),
        (lambda: admissible_rate(CURVED, alpha=1.0, local_steps=2, analysis="curvature"), "got local_steps = 2"),
        (lambda: convex_bound(CURVED, alpha=1.0, rate=0.1, rounds=1, analysis="curvature"), "proven for one local step"),
        (lambda: strongly_convex_bound(CONVEX, alpha=0.0, rate=0.1, rounds=1), "Use convex_bound"),
        (lambda: strongly_convex_bound(STRONG, alpha=0.0, rate=0.6, rounds=1), "holds for rates up to 0.5 here"),
        (lambda: strongly_convex_bound(STRONG, alpha=0.0, rate=0.1, rounds=-1), "rounds must be an integer from 0"),
        (lambda: convex_bound(CONVEX, alpha=0.0, rate=-0.1, rounds=1), "rate must be a finite number above 0"),
        (lambda: rounds_to(STRONG, target=0.0, alpha=0.0), "target must be a finite number above 0"),
        (lambda: rounds_to(STRONG, target=1e-9, alpha=0.0, local_steps=2, rate=0.01), "because clients drift apart"),
        (lambda: rounds_to(CONVEX, target=1e-9, alpha=1e9), "Use a larger target"),
        (lambda: stationary_bound(Problem(smoothness=1.0), alpha=0.0, rate=0.1, rounds=1), "needs the problem's gap"),
        (lambda: stationary_bound(CONVEX, alpha=0.0, rate=0.1, rounds=1, local_steps=2), "gradient_bound is needed"),
        (lambda: stationary_bound(CONVEX, alpha=0.0, rate=0.9, rounds=1), "rate·global_rate <= 0.5"),
        (lambda: stationary_bound(CURVED, alpha=0.0, rate=0.1, rounds=1, analysis="curvature"), "got 'curvature'"),
    ],
)
def test_what_no_theorem_covers_is_refused(call, why):
    with pytest.raises(InputError) as refused:
        call()
    assert why in str(refused.value)


def test_an_unknown_analysis_is_refused_with_those_that_exist():
    with pytest.raises(UnknownNameError, match="Did you mean 'published'"):
        admissible_rate(CONVEX, alpha=0.0, analysis="publishd")
    assert set(ANALYSES) == {"published", "sharpened", "curvature"}
