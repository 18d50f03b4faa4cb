import itertools
import math

import numpy as np
import pytest

from odds import uniformity
from sketchfed import PublicSeed
from sketchfed.kernels import draws


def streams(count: int):
    seed = PublicSeed(5)
    return (seed.child("trial", t).stream for t in range(count))


@pytest.mark.parametrize(("dim", "size"), [(1, 1), (10, 10), (64, 1), (65, 64), (1000, 37), (100_000, 99_999), (2**20, 1000)])
def test_a_subset_is_ascending_distinct_and_in_range(dim, size):
    subset = draws.subset(PublicSeed(1).stream, dim=dim, size=size)
    assert len(subset) == size
    assert subset.min() >= 0
    assert subset.max() < dim
    assert (np.diff(subset) > 0).all()


def test_subsets_are_uniform():
    """χ² over all 56 triples of 8; false alarm below 1e-6."""
    places = {triple: i for i, triple in enumerate(itertools.combinations(range(8), 3))}
    counts = np.zeros(len(places))
    for stream in streams(20_000):
        counts[places[tuple(draws.subset(stream, dim=8, size=3).tolist())]] += 1
    assert uniformity(counts) > 1e-6


@pytest.mark.parametrize("dim", [1, 2, 1000, 2**15, 2**15 + 1, 2**17 + 3, 10**6])
def test_a_permutation_holds_everything_once(dim):
    assert np.array_equal(np.sort(draws.permutation(PublicSeed(1).stream, dim=dim)), np.arange(dim))


def test_permutations_are_uniform():
    """χ² over all 120 orders of five; false alarm below 1e-6."""
    places = {order: i for i, order in enumerate(itertools.permutations(range(5)))}
    counts = np.zeros(math.factorial(5))
    for stream in streams(20_000):
        counts[places[tuple(draws.permutation(stream, dim=5).tolist())]] += 1
    assert uniformity(counts) > 1e-6


def test_permutations_through_bins_spread_every_item_evenly():
    """χ² of where a given item lands, over 16 stretches; false alarm below 3e-6.

    With 500 permutations, an item that never comes to three of the stretches is found with probability 0.999.
    """
    dim, lands = 2**16, np.zeros((3, 16))
    for stream in streams(500):
        where = np.argsort(draws.permutation(stream, dim=dim))
        for k, item in enumerate((0, dim // 2, dim - 1)):
            lands[k, where[item] * 16 // dim] += 1
    assert min(uniformity(row) for row in lands) > 1e-6
