import torch

from sketchfed.caches import cached, cached_within, clear_caches
from sketchfed.secure import planned_neighbourhood

CALLS = []


@cached(maxsize=2)
def squared(number):
    CALLS.append(number)
    return number**2


def test_what_was_computed_is_kept_until_caches_are_cleared():
    CALLS.clear()
    assert [squared(3), squared(3)] == [9, 9]
    assert CALLS == [3]
    clear_caches()
    assert squared(3) == 9
    assert CALLS == [3, 3]


def test_no_more_is_kept_than_was_asked_for():
    clear_caches()
    CALLS.clear()
    for number in (1, 2, 3, 1):
        squared(number)
    assert CALLS == [1, 2, 3, 1]


def test_the_librarys_own_results_are_forgotten_and_computed_again():
    first = planned_neighbourhood(1_000, colluders=0.1, dropouts=0.1)
    assert planned_neighbourhood.cache_info().currsize > 0
    clear_caches()
    assert planned_neighbourhood.cache_info().currsize == 0
    assert planned_neighbourhood(1_000, colluders=0.1, dropouts=0.1) == first


@cached_within(room=100)
def halves(number, *, of=torch.zeros):
    CALLS.append(number)
    return (of(number, dtype=torch.uint8), of(number, dtype=torch.uint8))


def test_tensors_are_kept_as_long_as_they_fit_the_latest_ones_first():
    CALLS.clear()
    for number in (20, 20, 20, 30, 20, 40, 20, 30):
        halves(number)
    assert CALLS == [20, 30, 40, 20, 30], "40 leaves no room for the others, and is itself the first to go"


def test_what_does_not_fit_is_kept_until_something_else_is_asked_for():
    clear_caches()
    CALLS.clear()
    for number in (90, 90, 10, 90):
        halves(number)
    assert CALLS == [90, 10, 90]
