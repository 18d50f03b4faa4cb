"""Mixing weights and their spectral gaps."""

import numpy as np
import pytest

from sketchfed import PublicSeed
from sketchfed.errors import InputError
from sketchfed.graphs import GRAPHS, Graph, checked_weights, metropolis, spectral_gap

PATH = Graph(3, ((0, 1), (1, 2)))
HALVES = [[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.5, 0.5]]


def gap(name, nodes, **options):
    return spectral_gap(metropolis(GRAPHS[name](nodes=nodes, **options)))


@pytest.mark.parametrize("nodes", [3, 4, 5, 8, 17, 64])
def test_spectral_gaps_are_the_known_ones(nodes):
    """From the eigenvalues of Laplacians: with weights of a third (ring, path), 1/n (star, complete graph)."""
    assert gap("ring", nodes) == pytest.approx(min(2 / 3 * (1 - np.cos(2 * np.pi / nodes)), 1 - 1 / 3 * (nodes == 4)))
    assert gap("path", nodes) == pytest.approx(2 / 3 * (1 - np.cos(np.pi / nodes)))
    assert gap("star", nodes) == pytest.approx(1 / nodes)
    assert gap("complete", nodes) == pytest.approx(1)


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (4, 4), (3, 7), (8, 8)])
def test_the_spectral_gap_of_a_torus_is_the_known_one(rows, columns):
    """Eigenvalues are (1 + 2·cos(2πj/rows) + 2·cos(2πk/columns))/5."""
    j, k = np.meshgrid(np.cos(2 * np.pi * np.arange(rows) / rows), np.cos(2 * np.pi * np.arange(columns) / columns))
    sizes = np.sort(np.abs((1 + 2 * j + 2 * k) / 5).reshape(-1))
    assert gap("torus", rows * columns, rows=rows) == pytest.approx(1 - sizes[-2])


def test_nodes_that_never_agree_have_no_spectral_gap():
    assert spectral_gap(metropolis(Graph(4, ((0, 1), (2, 3))))) == pytest.approx(0, abs=1e-12)
    assert spectral_gap(np.array([[0.0, 1.0], [1.0, 0.0]])) == 0
    assert spectral_gap(metropolis(Graph(1, ()))) == 1


@pytest.mark.parametrize("name", ["random_regular", "erdos_renyi", "small_world"])
@pytest.mark.parametrize("trial", range(5))
def test_metropolis_weights_are_doubly_stochastic_and_symmetric(name, trial):
    graph = GRAPHS[name](nodes=30, seed=PublicSeed(trial))
    weights = metropolis(graph)
    assert (weights == weights.T).all()
    assert (weights.diagonal() > 0).all()
    np.testing.assert_allclose(weights.sum(axis=0), 1, atol=1e-12)
    assert (checked_weights(weights, graph) == weights).all()
    for a, b in graph.edges:
        assert weights[a, b] == 1 / (1 + max(graph.degree(a), graph.degree(b)))
    assert np.count_nonzero(weights) == 30 + 2 * len(graph.edges)


def test_repeated_mixing_leads_to_the_mean_at_the_rate_of_the_spectral_gap():
    """‖x_k − mean‖ ≤ (1 − gap)^k ‖x_0 − mean‖."""
    weights = metropolis(GRAPHS["torus"](nodes=16))
    values = np.arange(16.0) - 7.5
    for step in range(1, 30):
        values = weights @ values
        assert np.linalg.norm(values) <= (1 - spectral_gap(weights)) ** step * np.linalg.norm(np.arange(16.0) - 7.5) + 1e-12


def test_weights_of_your_own_may_be_lists():
    assert checked_weights(HALVES, PATH).tolist() == HALVES


REFUSED = [
    ([[0.5, 0.5], [0.5, 0.5]], "a row and a column for each of the 3 nodes, got shape (2, 2)"),
    ([[0.5, 0.5], [0.5]], "3 rows with 3 numbers each, got rows of different lengths"),
    ("even", "3 rows with 3 numbers each"),
    ([[0.5, np.nan, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]], "the weight from node 1 to node 0 is not finite: nan"),
    ([[1.5, -0.5, 0], [-0.5, 1, 0.5], [0, 0.5, 0.5]], "the weight from node 1 to node 0 is negative: -0.5"),
    ([[0.5, 0.4, 0], [0.4, 0.1, 0.5], [0, 0.5, 0.5]], "row 0 sums to 0.9, and each row and column must sum to 1. Change the"),
    ([[0.5, 0.4, 0], [0.4, 0.1, 0.5], [0, 0.5, 0.5]], "Change the weight of node 0 for itself by 0.1"),
    (
        [[0.5, 0.5, 0], [0.4, 0.1, 0.5], [0.1, 0.4, 0.5]],
        "row 0 has 0.5 for node 1, and row 1 has 0.4 for node 0",
    ),
    ([[0.5, 0, 0.5], [0, 1, 0], [0.5, 0, 0.5]], "weights give 0.5 to the pair 0–2, which is no edge of the graph"),
]


@pytest.mark.parametrize(("weights", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_what_are_no_mixing_weights_is_refused(weights, why):
    with pytest.raises(InputError) as refused:
        checked_weights(weights, PATH)
    assert why in str(refused.value)


def test_a_sum_may_miss_one_by_rounding():
    thirds = [[2 / 3, 1 / 3, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 3, 2 / 3 + 5e-10]]
    assert checked_weights(thirds, PATH)[0, 1] == 1 / 3


@pytest.mark.parametrize("matrix", [[[1, 0, 0], [0, 1, 0], [0, 0, 1]], [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]]])
def test_weights_that_never_make_all_nodes_agree_are_refused(matrix):
    with pytest.raises(InputError, match="spectral gap is 0"):
        checked_weights(matrix, Graph(3, ((0, 1), (1, 2))))
