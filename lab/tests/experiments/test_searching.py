"""A search that walks to better neighbours, within the tries that it has."""

from math import log2

import pytest

from sketchfed_lab.experiments.searching import halves_and_doubles, searched


def hill(top):
    """Scores that fall with the number of doublings between a point and the top."""
    return lambda point: -sum(abs(log2(value / best)) for value, best in zip(point, top, strict=True))


def climbing(tops, *, tries):
    asked = []

    def scores(wanted):
        asked.extend(wanted)
        return [hill(tops[place])(point) for place, point in wanted]

    starts = dict.fromkeys(tops, (1.0, 1.0))
    return searched(starts, near=halves_and_doubles, scores=scores, tries=tries), asked


def test_a_search_ends_at_a_point_whose_neighbours_are_all_known_and_worse():
    best, asked = climbing({"a": (4.0, 0.5), "b": (1.0, 1.0)}, tries=100)
    assert best == {"a": (4.0, 0.5), "b": (1.0, 1.0)}
    assert len(asked) == len(set(asked))
    assert {("a", point) for point in halves_and_doubles((4.0, 0.5))} <= set(asked)
    assert sum(place == "b" for place, _ in asked) == 5


@pytest.mark.parametrize("tries", [1, 3, 7])
def test_a_search_takes_no_more_tries_than_it_has(tries):
    best, asked = climbing({"a": (64.0, 1.0)}, tries=tries)
    assert len(asked) == tries
    assert best["a"] == max((point for _, point in asked), key=hill((64.0, 1.0)))


def test_neighbours_differ_in_one_number_by_a_factor_of_two():
    assert halves_and_doubles((0.5, 3.0)) == [(1.0, 3.0), (0.25, 3.0), (0.5, 6.0), (0.5, 1.5)]
