import re
from itertools import pairwise

import numpy as np
import pytest

from sketchfed.graphs import GRAPHS, Graph
from sketchfed.graphs.named import complete, path, ring, star, torus
from sketchfed.report.drawing import MOST_NODES, picture, shades
from sketchfed.report.layouts import layout
from sketchfed.report.networks import Link, NetworkRecord
from sketchfed.seeds import PublicSeed
from sketchfed.tables import parameters_of


def made(name: str, nodes: int) -> Graph:
    build = GRAPHS[name]
    if name == "edges":  # a tree
        return build(nodes=nodes, edges=[[(node - 1) // 2, node] for node in range(1, nodes)])
    seeded = {"seed": PublicSeed(3)} if any(each.name == "seed" for each in parameters_of(build)) else {}
    return build(nodes=nodes, **seeded)


def network(graph: Graph, sent=lambda a, b: 1_000, **changes) -> NetworkRecord:
    links = tuple(Link(a, b, sent(a, b), sent(b, a)) for a, b in graph.edges)
    about = {"name": "ring", "round": 5, "diameter": 2, "spectral_gap": 0.25, "redraw": 0} | changes
    return NetworkRecord(nodes=graph.nodes, links=links, **about)


def nearest(points) -> float:
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    return float(apart[np.triu_indices(len(points), 1)].min())


@pytest.mark.parametrize("nodes", [12, 120])
@pytest.mark.parametrize("name", GRAPHS.built_in)
def test_every_graph_has_a_place_for_each_node_and_always_the_same(name, nodes):
    graph = made(name, nodes)
    points = layout(graph).points
    assert points.shape == (nodes, 2)
    assert np.isfinite(points).all()
    assert nearest(points) > 0.02 * np.ptp(points, axis=0).max() / np.sqrt(nodes)
    assert np.array_equal(points, layout(graph).points)


def test_rings_paths_and_stars_look_like_it():
    around = np.linalg.norm(layout(ring(10)).points, axis=1)
    assert around == pytest.approx(np.ones(10))
    spokes = np.linalg.norm(layout(star(10)).points, axis=1)
    assert spokes == pytest.approx([0] + [1] * 9)
    for nodes in (7, 40):
        line = layout(path(nodes)).points
        assert [np.abs(a - b).sum() for a, b in pairwise(line)] == pytest.approx([1] * (nodes - 1))
    assert layout(complete(9)).around
    assert layout(made("small_world", 30)).around


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (4, 4), (3, 8), (8, 3)])
def test_a_torus_is_a_grid_whose_outer_edges_leave_it(rows, columns):
    found = layout(torus(rows * columns, rows=rows))
    assert found.columns == columns
    assert found.points[columns + 1].tolist() == [1, 1]
    lines = re.findall(r'<path d="([^"]+)"', picture(network(torus(rows * columns, rows=rows))))
    assert sum(line.count("M") == 2 for line in lines) == rows + columns
    assert len(lines) == 2 * rows * columns


def test_a_grid_of_ones_own_is_unfolded_by_springs():
    """Of the edges of a 5 × 6 grid, all are about as long as each other, and no two nodes meet."""
    beside = [(6 * row + place, 6 * row + place + 1) for row in range(5) for place in range(5)]
    below = [(6 * row + place, 6 * row + place + 6) for row in range(4) for place in range(6)]
    found = layout(Graph(30, tuple(beside + below)))
    assert not found.around
    assert not found.columns
    lengths = [np.linalg.norm(found.points[a] - found.points[b]) for a, b in beside + below]
    assert max(lengths) < 1.6 * min(lengths)
    assert nearest(found.points) > 0.6 * min(lengths)


def test_parts_that_do_not_hang_together_are_drawn_too():
    points = layout(Graph(5, ((0, 1), (2, 3)))).points
    assert np.isfinite(points).all()
    assert nearest(points) > 0


def test_edges_that_carried_about_as_much_look_alike():
    links = [Link(0, node, 500, count) for node, count in enumerate([500, 510, 495], start=1)]
    (shade,) = shades(links)
    assert shade.text == "995 B to 1.01 kB"
    assert [shade.text for shade in shades([Link(0, 1, 0, 0)])] == ["nothing"]
    assert shades([]) == []


def test_more_bytes_are_wider_and_each_edge_is_in_the_legend_once():
    links = [Link(0, node, 100 * node, 0) for node in range(11)]
    found = shades(links)
    assert [shade.text for shade in found] == [
        "nothing", "100 B to 200 B", "300 B to 400 B", "500 B to 600 B", "700 B to 800 B", "900 B to 1.00 kB",
    ]  # fmt: skip
    assert [shade.width for shade in found[1:]] == sorted({shade.width for shade in found[1:]})
    assert sorted(link.high for shade in found for link in shade.links) == list(range(11))


def test_bytes_that_differ_much_are_told_apart_by_their_logarithm():
    assert [len(shade.links) for shade in shades([Link(0, node, 10**node, 0) for node in range(1, 7)])] == [2, 1, 1, 1, 1]


def test_edges_and_nodes_say_their_bytes():
    drawn = picture(network(path(3), lambda a, b: 1_000 * (a + 1)))
    assert "<title>0–1: 1.00 kB from 0 to 1, 2.00 kB from 1 to 0</title>" in drawn
    assert "<title>node 1: sent 4.00 kB to 2 neighbours</title>" in drawn
    assert "<title>node 0: sent 1.00 kB to 1 neighbour</title>" in drawn
    assert re.findall(r"<text[^>]*>(\d+)</text>", drawn) == ["0", "1", "2"]
    assert 'aria-label="Graph of the run: ring, 3 nodes, 2 edges, diameter 2, spectral gap 0.250. Each edge carried' in drawn


def test_large_graphs_are_thinner_and_have_no_numbers():
    drawn = picture(network(made("random_regular", 300)))
    assert "<text" not in drawn
    assert drawn.count("<circle") == 300
    assert max(map(float, re.findall(r'<g class="edge-\d" stroke-width="([\d.]+)"', drawn))) < 1.5


def test_a_graph_that_is_too_large_is_described_in_words():
    drawn = picture(network(ring(MOST_NODES + 1)))
    assert "<svg" not in drawn
    assert "too large to draw: ring, 1,001 nodes, 1,001 edges" in drawn
