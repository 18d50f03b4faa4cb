"""A search ends at a point whose neighbours are all no better, wherever it lies."""

from pathlib import Path

import pytest

from sketchfed.runs import Case
from sketchfed_lab.experiments.climbing import DOUBLES, HALF_DECADES, Axis, Tuning, climbed, decades, neighbours, values

AXES = {"local_rate": HALF_DECADES, "proximal": decades(-3)}


@pytest.mark.parametrize("top", [(0, 0), (7, -5), (-9, 2)])
def test_a_search_finds_a_single_top_however_far_away_it_is(top):
    asked = []

    def scores(points):
        asked.extend(points)
        return [-sum(abs(place - goal) for place, goal in zip(point, top, strict=True)) for point in points]

    assert climbed((0, 0), [HALF_DECADES, DOUBLES], scores) == top
    assert set(neighbours(top, [HALF_DECADES, DOUBLES])) <= set(asked)


def test_a_search_stays_where_neighbours_are_equal():
    assert climbed((2, 3), [HALF_DECADES, DOUBLES], lambda points: [0.5] * len(points)) == (2, 3)


def test_places_are_round_numbers_and_an_axis_may_have_a_first_and_a_last_place():
    assert [HALF_DECADES.value(place) for place in range(-4, 3)] == [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
    assert [DOUBLES.value(place) for place in (-2, 0, 1)] == [0.25, 1.0, 2.0]
    assert values((-2, -3), AXES) == {"local_rate": 0.1, "proximal": 0.001}
    assert neighbours((-2, -3), list(AXES.values())) == [(-3, -3), (-1, -3), (-2, -2)]
    assert neighbours((0,), [Axis(DOUBLES.value, most=0)]) == [(-1,)]


def test_what_is_tuned_is_the_mean_over_seeds_of_the_last_scores_and_diverged_runs_never_win(tmp_path: Path):
    """At μ = 0.1 one of two seeds is best of all and the other one diverges. At a local rate of 3, an early score is best."""
    mean = {0.01: 0.6, 0.1: 0.7, 1.0: 0.65}

    def compute(case):
        mu, rate, seed = (case.key[name] for name in ("proximal", "local_rate", "seed"))
        late = mean.get(mu, 0.0) - 0.1 * abs(rate - 1) + 0.05 * seed
        if (mu, seed) == (0.1, 1):
            return {"curve": [[1, 0.1, 0.99]], "diverged": True, "seconds": 0.0}
        return {"curve": [[1, 0.1, rate], [2, 0.1, late], [3, 0.1, late]], "diverged": False, "seconds": 0.0}

    tuning = Tuning(path=tmp_path / "tuning.jsonl", seeds=[0, 1], last=2, processes=1, compute=compute)
    found = tuning.best((0, -2), AXES, lambda tried, seed: Case(key={**tried, "seed": seed}))
    assert values(found, AXES) == {"local_rate": 1.0, "proximal": 0.01}
    lines = (tmp_path / "tuning.jsonl").read_text().splitlines()
    assert len(lines) == 2 * 5, "the start and its four neighbours, with two seeds each"
