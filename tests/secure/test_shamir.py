"""Secret sharing: any threshold of shares give the secret, fewer say nothing."""

from itertools import combinations, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odds import uniformity
from sketchfed.errors import InputError
from sketchfed.secure.shamir import PRIME, combine, deal, field_elements

SEED = bytes(range(32))


def secret_of(number: int) -> bytes:
    return number.to_bytes(32, "little")


def test_the_prime_is_one():
    """Fermat's test to a hundred bases; a composite passes one by chance in a quarter of cases at most."""
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in range(2, 102))


def test_every_choice_of_threshold_shares_gives_the_secret_and_no_fewer_do():
    secret = secret_of(2**200 + 12345)
    shares = dict(zip(range(1, 7), deal(secret, threshold=4, points=range(1, 7), seed=SEED), strict=True))
    assert all(combine({p: shares[p] for p in chosen}) == secret for chosen in combinations(shares, 4))
    assert all(combine({p: shares[p] for p in chosen}) != secret for chosen in combinations(shares, 3))


@settings(deadline=None)
@given(
    secret=st.integers(0, PRIME - 1),
    threshold=st.integers(1, 12),
    spare=st.integers(0, 5),
    seed=st.binary(min_size=32, max_size=32),
)
def test_any_secret_of_the_field_comes_back(secret, threshold, spare, seed):
    points = range(3, 3 + threshold + spare)
    shares = dict(zip(points, deal(secret_of(secret), threshold=threshold, points=points, seed=seed), strict=True))
    assert combine(dict(list(shares.items())[-threshold:])) == secret_of(secret)


def test_a_share_does_not_depend_on_which_other_points_are_dealt():
    few, many = (deal(secret_of(7), threshold=3, points=points, seed=SEED) for points in ((2, 5), (1, 2, 3, 4, 5)))
    assert few == [many[1], many[4]]


@pytest.mark.parametrize("guess", [0, 1, 42, PRIME - 1])
def test_fewer_shares_than_the_threshold_fit_every_secret(guess):
    """Of three, two say nothing: there is a third share for any secret. At 3 its weight is 1, beside points 1 and 2."""
    one, two = deal(secret_of(42), threshold=3, points=(1, 2), seed=SEED)
    without = int.from_bytes(combine({1: one, 2: two, 3: bytes(32)}), "little")
    assert combine({1: one, 2: two, 3: secret_of((guess - without) % PRIME)}) == secret_of(guess)


def test_shares_of_one_secret_look_uniform_over_seeds():
    """χ² on the low byte of 5,000 shares of zero: false alarm 1e-9."""
    counts = [0] * 256
    for trial in range(5_000):
        (share,) = deal(bytes(32), threshold=2, points=[1], seed=trial.to_bytes(32, "little"))
        counts[share[0]] += 1
    assert uniformity(counts) > 1e-9


def test_field_elements_are_below_the_prime_and_never_repeat():
    drawn = list(islice(field_elements(SEED), 1_000))
    assert len(set(drawn)) == 1_000
    assert all(int.from_bytes(element, "little") < PRIME for element in drawn)


def test_elements_that_are_not_below_the_prime_are_rejected(monkeypatch):
    import sketchfed.secure.shamir as module

    monkeypatch.setattr(module, "PRIME", 2**255)
    drawn = list(islice(field_elements(SEED), 100))
    assert all(int.from_bytes(element, "little") < 2**255 for element in drawn)


@pytest.mark.parametrize("secret", [PRIME.to_bytes(32, "little"), b"\xff" * 32, bytes(31)])
def test_what_is_not_an_element_of_the_field_is_refused(secret):
    with pytest.raises(InputError, match="below 2\\^256 - 189"):
        deal(secret, threshold=2, points=[1, 2], seed=SEED)
