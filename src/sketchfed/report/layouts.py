"""Where the nodes of a graph are drawn: rings as rings, tori as grids, stars as stars, and all others by springs."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sketchfed.graphs import Graph
from sketchfed.graphs.named import path, torus

Points = npt.NDArray[np.float64]
_NEAR_SHARE = 0.6
"""The share of edges between near nodes from which a graph is drawn as a circle with chords, such as a small world."""
_LONGEST_LINE = 12
_LEAST_STEPS, _MOST_STEPS, _WORK = 15, 150, 10_000_000
"""How many steps springs take: fewer in large graphs, where each takes longer."""


@dataclass(frozen=True)
class Placement:
    """The places of the nodes, `(nodes, 2)`, in units of no meaning. y grows downwards."""

    points: Points
    columns: int = 0
    """Of a torus, which is drawn as a grid: the nodes in a row. 0 for all other graphs."""
    around: bool = False
    """Whether the nodes are on a circle around the origin."""


def layout(graph: Graph) -> Placement:
    """Places that show what kind of graph it is. The same graph always gets the same places."""
    count = graph.nodes
    if graph.edges == path(count).edges:
        return Placement(_snake(count))
    if columns := torus_columns(graph):
        return Placement(np.array([divmod(node, columns)[::-1] for node in range(count)], np.float64), columns)
    degrees = [graph.degree(node) for node in range(count)]
    if len(graph.edges) == count - 1 == max(degrees):
        return Placement(_star(count, degrees.index(count - 1)))
    return Placement(_circle(count), around=True) if _goes_around(graph) else Placement(_springs(graph))


def torus_columns(graph: Graph) -> int:
    """The nodes in a row, if the graph is a torus. Otherwise 0."""
    count = graph.nodes
    if len(graph.edges) == 2 * count:
        for rows in range(3, count // 3 + 1):
            if count % rows == 0 and torus(count, rows=rows).edges == graph.edges:
                return count // rows
    return 0


def _goes_around(graph: Graph) -> bool:
    """Whether most edges join nodes that are near on a circle, and some close it. Or half of all pairs have an edge."""
    count, edges = graph.nodes, set(graph.edges)
    if 4 * len(edges) >= count * (count - 1):
        return True
    lengths = [min(b - a, count - b + a) for a, b in edges]
    near = sum(length <= max(len(edges) / count, 1) for length in lengths)
    closed = not edges.isdisjoint({(0, count - 1), (0, count - 2), (1, count - 1)})
    return closed and near >= _NEAR_SHARE * len(edges) and lengths.count(1) >= _NEAR_SHARE * count


def _circle(count: int) -> Points:
    """Clockwise from the top."""
    angles = 2 * np.pi * np.arange(count) / count
    return np.stack([np.sin(angles), -np.cos(angles)], axis=1)


def _star(count: int, hub: int) -> Points:
    return np.insert(_circle(count - 1), hub, 0.0, axis=0)


def _snake(count: int) -> Points:
    """A line, which turns back at the end of each row if it is long."""
    columns = count if count <= _LONGEST_LINE else math.ceil(math.sqrt(1.6 * count))
    rows, places = np.divmod(np.arange(count), columns)
    return np.stack([np.where(rows % 2, columns - 1 - places, places), rows], axis=1).astype(np.float64)


def _springs(graph: Graph) -> Points:
    """Each two nodes are joined by a spring as long as the way between them. Springs between far nodes are weak.

    Paper: Gansner, Koren & North 2005, "Graph drawing by stress majorization". Each step solves a linear system, and the total
    stress never grows.
    """
    apart = _distances(graph)
    weights = np.divide(1.0, apart**2, out=np.zeros_like(apart), where=apart > 0)
    count = graph.nodes
    even = np.full((count, count), 1.0 / count)
    solve = np.linalg.inv(np.diag(weights.sum(axis=1)) - weights + even) - even
    places = _scaled(apart)
    for _ in range(max(_LEAST_STEPS, min(_MOST_STEPS, _WORK // count**2))):
        lengths = np.linalg.norm(places[:, None] - places[None], axis=2)
        pull = -np.divide(weights * apart, lengths, out=np.zeros_like(apart), where=lengths > 1e-9)
        np.fill_diagonal(pull, -pull.sum(axis=1))
        places = solve @ (pull @ places)
    return _spread(_upright(places))


def _distances(graph: Graph) -> Points:
    """The number of edges between each two nodes. Parts that do not hang together are as far apart as the farthest nodes."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    rows, columns = np.array(graph.edges, np.int64).reshape(-1, 2).T
    there = csr_array((np.ones(len(rows)), (rows, columns)), shape=(graph.nodes, graph.nodes))
    found: Points = shortest_path(there, directed=False, unweighted=True)
    known = found[np.isfinite(found)]
    return np.where(np.isfinite(found), found, known.max() + 1)


def _scaled(apart: Points) -> Points:
    """A first guess: the two directions in which distances vary most. A small spiral keeps equal nodes apart."""
    count = len(apart)
    squares = apart**2
    centred = -0.5 * (squares - squares.mean(axis=0) - squares.mean(axis=1)[:, None] + squares.mean())
    values, vectors = np.linalg.eigh(centred)
    turns = 2.4 * np.arange(count)
    spiral = 0.05 * np.sqrt(np.arange(count) / count)[:, None] * np.stack([np.cos(turns), np.sin(turns)], axis=1)
    found: Points = vectors[:, :-3:-1] * np.sqrt(np.maximum(values[:-3:-1], 1e-9)) + spiral
    return found


def _upright(places: Points) -> Points:
    """Turned so that the longest direction lies flat, with node 0 on the left and above."""
    centred = places - places.mean(axis=0)
    turned: Points = centred @ np.linalg.svd(centred, full_matrices=False)[2].T
    return turned * np.where(turned[0] > 0, -1.0, 1.0)


def _spread(places: Points) -> Points:
    """Nodes that are too close to each other are pushed apart."""
    count = len(places)
    size = np.ptp(places, axis=0)
    least = 0.45 * math.sqrt(max(size[0] * size[1], 1e-9) / count)
    for _ in range(_LEAST_STEPS):
        between = places[:, None] - places[None]
        lengths = np.linalg.norm(between, axis=2)
        np.fill_diagonal(lengths, np.inf)
        close = lengths < least
        if not close.any():
            break
        push = np.where(close, 0.5 * (least - lengths), 0.0)
        places = places + (push[..., None] * between / np.maximum(lengths, 1e-6)[..., None]).sum(axis=1)
    return places
