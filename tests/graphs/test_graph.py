"""Graphs: their distances, centres and trees, and what is refused."""

import math

import pytest

from sketchfed.errors import InputError
from sketchfed.graphs import GRAPHS, Graph

HOUSE = Graph(6, ((0, 1), (1, 2), (2, 3), (0, 3), (3, 4)))
"""A square with a tail, and node 5 by itself."""


def built(name, nodes, **options):
    return GRAPHS[name](nodes=nodes, **options)


@pytest.mark.parametrize("nodes", [3, 4, 9, 16, 31])
def test_diameters_are_the_known_ones(nodes):
    assert built("ring", nodes).diameter == nodes // 2
    assert built("path", nodes).diameter == nodes - 1
    assert built("star", nodes).diameter == 2
    assert built("complete", nodes).diameter == 1


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (3, 5), (4, 4), (4, 8), (5, 7)])
def test_a_torus_has_four_neighbours_each_and_the_diameter_of_two_rings(rows, columns):
    torus = built("torus", rows * columns, rows=rows)
    assert {torus.degree(node) for node in range(torus.nodes)} == {4}
    assert torus.diameter == rows // 2 + columns // 2


def test_a_torus_is_as_near_to_a_square_as_it_can_be():
    assert built("torus", 24) == built("torus", 24, rows=4)
    assert built("torus", 64).diameter == 8


@pytest.mark.parametrize("nodes", [2, 3, 10])
def test_numbers_of_edges_are_the_known_ones(nodes):
    assert len(built("path", nodes).edges) == len(built("star", nodes).edges) == nodes - 1
    assert len(built("complete", nodes).edges) == math.comb(nodes, 2)


def test_edges_may_be_given_in_any_order():
    assert Graph(3, [[2, 1], (1, 0)]) == Graph(3, ((0, 1), (1, 2)))
    assert Graph(3, [[2, 1], (1, 0)]).edges == ((0, 1), (1, 2))


def test_neighbours_are_in_ascending_order():
    assert HOUSE.neighbours(3) == (0, 2, 4)
    assert HOUSE.neighbours(5) == ()
    assert (HOUSE.degree(3), HOUSE.degree(5)) == (3, 0)


def test_components_are_in_the_order_of_their_lowest_nodes():
    assert Graph(5, ((1, 4), (0, 3))).components == ((0, 3), (1, 4), (2,))
    assert not HOUSE.connected
    assert built("path", 4).connected


def test_the_centre_is_the_node_nearest_to_all_others_with_the_lowest_number():
    assert built("path", 5).centre == 2
    assert built("path", 6).centre == 2
    assert built("ring", 7).centre == 0
    assert Graph(4, ((3, 0), (3, 1), (3, 2))).centre == 3
    assert HOUSE.centre == 0  # in the largest component, where nodes 0, 2 and 3 are equally near


def test_a_tree_has_the_shortest_ways_to_its_root():
    tree = built("ring", 7).tree(2)
    assert tree.root == 2
    assert tree.order == (2, 1, 3, 0, 4, 6, 5)
    assert tree.parent == {1: 2, 3: 2, 0: 1, 4: 3, 6: 0, 5: 4}
    assert tree.depth == 3
    assert tree.children(2) == (1, 3)
    assert tree.children(5) == ()


@pytest.mark.parametrize("name", ["ring", "path", "star", "torus", "complete"])
def test_a_tree_from_the_centre_is_as_low_as_can_be(name):
    graph = built(name, 12)
    assert graph.tree().root == graph.centre
    assert graph.tree().depth == min(graph.tree(node).depth for node in range(12))
    assert graph.diameter == max(graph.tree(node).depth for node in range(12))


def test_a_tree_spans_the_component_of_its_root_only():
    assert HOUSE.tree(5).order == (5,)
    assert HOUSE.tree(5).depth == 0
    assert sorted(HOUSE.tree().order) == [0, 1, 2, 3, 4]
    with pytest.raises(InputError, match="node 5 is not in this tree, whose root is node 0"):
        HOUSE.tree().children(5)


def test_a_graph_without_some_nodes_keeps_them_without_neighbours():
    left = built("ring", 5).without(nodes={2}, edges=[(4, 0)])
    assert left == Graph(5, ((0, 1), (3, 4)))
    assert left.neighbours(2) == ()


def test_a_single_node_is_a_graph():
    assert (Graph(1, ()).connected, Graph(1, ()).diameter, Graph(1, ()).centre) == (True, 0, 0)


REFUSED = [
    (0, (), "a graph has at least one node, got nodes = 0"),
    (3, ((0, 3),), "the edge 0–3 names node 3, and a graph of 3 nodes has the nodes 0 to 2"),
    (3, ((-1, 0),), "the edge -1–0 names node -1"),
    (3, ((1, 1),), "the edge 1–1 joins node 1 to itself. Remove it"),
    (3, ((0, 1), (1, 0)), "the edge 0–1 is there twice. Remove one"),
    (3, ((0, 1, 2),), "an edge is a pair of node numbers, got (0, 1, 2)"),
    (3, ((0, 1.0),), "an edge is a pair of node numbers, got (0, 1.0)"),
    (3, (7,), "an edge is a pair of node numbers, got 7"),
]


@pytest.mark.parametrize(("nodes", "edges", "why"), REFUSED, ids=[why for *_, why in REFUSED])
def test_what_is_no_graph_is_refused(nodes, edges, why):
    with pytest.raises(InputError) as refused:
        Graph(nodes, edges)
    assert why in str(refused.value)


def test_the_diameter_of_a_disconnected_graph_is_refused_and_names_two_of_its_parts():
    with pytest.raises(InputError) as refused:
        _ = HOUSE.diameter
    assert "no way from node 0 to node 5, and it falls into 2 parts" in str(refused.value)
    assert "Add edges between nodes 0, 1, 2, 3, … and node 5, such as 0–5." in str(refused.value)


def test_nodes_that_are_not_there_are_refused():
    for ask in (HOUSE.neighbours, HOUSE.degree, HOUSE.tree):
        with pytest.raises(InputError, match="there is no node 6 in a graph with the nodes 0 to 5"):
            ask(6)
