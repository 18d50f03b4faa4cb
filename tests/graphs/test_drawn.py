"""Random graphs: everybody draws the same, and they are what their names promise."""

from hashlib import sha256

import numpy as np
import pytest

from odds import binomial
from sketchfed import PublicSeed
from sketchfed.errors import InputError
from sketchfed.graphs import GRAPHS, Graph, first_connected
from sketchfed.graphs.drawn import _paired

GOLDEN = {
    "random_regular": "fd0fc350f23cde0f",
    "erdos_renyi": "b68e63f439428be1",
    "small_world": "bc28c0ecacec6cf6",
}
"""What seed 7 draws for 32 nodes: digests of the edges. Runs that were interrupted draw the same graphs again."""


@pytest.mark.parametrize("name", GOLDEN)
def test_random_graphs_of_a_seed_never_change(name):
    edges = GRAPHS[name](nodes=32, seed=PublicSeed(7)).edges
    assert sha256(repr(edges).encode()).hexdigest()[:16] == GOLDEN[name]


@pytest.mark.parametrize("name", GOLDEN)
def test_random_graphs_are_connected_and_differ_between_seeds(name):
    drawn = [GRAPHS[name](nodes=24, seed=PublicSeed(trial)) for trial in range(20)]
    assert all(graph.connected for graph in drawn)
    assert len(set(drawn)) == 20


@pytest.mark.parametrize(("nodes", "degree"), [(5, 2), (5, 4), (10, 3), (12, 8), (12, 11), (50, 7), (300, 4)])
def test_all_nodes_of_a_regular_graph_have_its_degree(nodes, degree):
    graph = GRAPHS["random_regular"](nodes=nodes, seed=PublicSeed(1), degree=degree)
    assert {graph.degree(node) for node in range(nodes)} == {degree}


def test_all_pairs_are_equally_likely_in_a_regular_graph():
    """Each of 45 pairs is in one draw of three (degree 3 of 9). False alarm below 45 · 1e-8 = 5e-7 by exact binomial tests."""
    counts = np.zeros((10, 10), int)
    for trial in range(2_000):
        for a, b in _paired(10, 3, PublicSeed(trial)):
            counts[a, b] += 1
    assert min(binomial(int(each), 2_000, 1 / 3) for each in counts[np.triu_indices(10, 1)]) > 1e-8


def test_pairs_of_an_erdos_renyi_graph_have_its_probability():
    """False alarm below 1e-6 by an exact binomial test. Draws that are not connected are rarer than 1e-13 here."""
    found = sum(len(GRAPHS["erdos_renyi"](nodes=100, seed=PublicSeed(trial), probability=0.3).edges) for trial in range(20))
    assert binomial(found, 20 * 4_950, 0.3) > 1e-6


def test_without_a_probability_an_erdos_renyi_graph_has_twice_what_connects_it():
    """2·ln(n)/n. False alarm below 1e-6. A draw in about 50 is not connected and drawn again, which hardly moves the mean."""
    found = sum(len(GRAPHS["erdos_renyi"](nodes=64, seed=PublicSeed(trial)).edges) for trial in range(20))
    assert binomial(found, 20 * 2_016, 2 * np.log(64) / 64) > 1e-6
    assert GRAPHS["erdos_renyi"](nodes=2, seed=PublicSeed(0)) == Graph(2, ((0, 1),))


def test_a_small_world_without_rewiring_is_a_ring_of_near_neighbours():
    graph = GRAPHS["small_world"](nodes=9, seed=PublicSeed(0), rewiring=0.0)
    assert graph.neighbours(0) == (1, 2, 7, 8)
    assert graph.diameter == 2
    assert GRAPHS["small_world"](nodes=9, seed=PublicSeed(0), degree=2, rewiring=0.0) == GRAPHS["ring"](nodes=9)


def test_a_small_world_moves_the_share_of_edges_that_is_asked_for():
    """False alarm below 1e-6 by an exact binomial test. An edge may move onto a near pair that is free, in 1 of 100 cases."""
    near, moved = set(GRAPHS["small_world"](nodes=300, seed=PublicSeed(0), rewiring=0.0).edges), 0
    for trial in range(10):
        graph = GRAPHS["small_world"](nodes=300, seed=PublicSeed(trial), rewiring=0.2)
        assert len(graph.edges) == 600
        moved += len(set(graph.edges) - near)
    assert binomial(moved, 6_000, 0.2) > 1e-6


def test_rewiring_shortens_the_ways():
    far = GRAPHS["small_world"](nodes=200, seed=PublicSeed(0), rewiring=0.0).diameter
    assert GRAPHS["small_world"](nodes=200, seed=PublicSeed(0)).diameter < far / 2


def test_a_graph_that_is_not_connected_is_drawn_again():
    drawn = []

    def draw(seed):
        drawn.append(seed)
        return Graph(2, ((0, 1),)) if len(drawn) == 3 else Graph(2, ())

    assert first_connected(draw, PublicSeed(0), otherwise="").connected
    assert len(set(drawn)) == 3


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("small_world", {"degree": 2, "rewiring": 1.0}, "Raise graph.degree, or lower graph.rewiring"),
        ("random_regular", {"degree": 2}, "Raise graph.degree; 3 is usually enough"),
    ],
)
def test_a_graph_that_is_never_connected_is_refused_with_what_to_change(monkeypatch, name, options, why):
    """One draw is allowed, and seed 0 draws one that is not connected."""
    monkeypatch.setattr("sketchfed.graphs.drawn.DRAWS", 1)
    with pytest.raises(InputError, match=why):
        GRAPHS[name](nodes=200, seed=PublicSeed(0), **options)


REFUSED = [
    ("random_regular", 9, {"degree": 3}, "nodes × degree counts the ends of all edges, so it must be even. Use degree = 2"),
    (
        "random_regular",
        4,
        {},
        "graph.degree = 4 is a number of neighbours among data.clients = 4 nodes. Use",
    ),
    ("random_regular", 9, {"degree": 1}, "Use a degree from 2 to 8"),
    ("erdos_renyi", 50, {"probability": 0.01}, "none of 100 draws of an Erdős–Rényi graph of 50 nodes"),
    ("erdos_renyi", 50, {"probability": 0.01}, "Raise graph.probability above ln(n)/n = 0.0782"),
    ("erdos_renyi", 50, {"probability": 0.0}, "graph.probability must be above 0 and at most 1, got 0.0"),
    ("erdos_renyi", 50, {"probability": 1.5}, "graph.probability must be above 0 and at most 1, got 1.5"),
    ("small_world", 9, {"degree": 3}, "graph.degree = 3 must be an even number from 2 to 8 for data.clients = 9"),
    ("small_world", 4, {}, "graph.degree = 4 must be an even number from 2 to 2 for data.clients = 4"),
    ("small_world", 2, {}, "a small world has at least 3 nodes, and data.clients = 2. Use graph 'path'"),
    ("small_world", 9, {"rewiring": 1.1}, "graph.rewiring is a share of the edges, so it must be from 0 to 1, got 1.1"),
]


@pytest.mark.parametrize(("name", "nodes", "options", "why"), REFUSED, ids=[why for *_, why in REFUSED])
def test_what_cannot_be_drawn_is_refused(name, nodes, options, why):
    with pytest.raises(InputError) as refused:
        GRAPHS[name](nodes=nodes, seed=PublicSeed(0), **options)
    assert why in str(refused.value)
