from sketchfed.caches import cached, clear_caches
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
