"""Graphs that are the same in every draw: ring, path, torus, star and complete."""

from itertools import combinations
from math import isqrt

from sketchfed.errors import InputError
from sketchfed.graphs.graph import Graph


def ring(nodes: int) -> Graph:
    """a circle: each node has two neighbours, and the diameter is ⌊n/2⌋"""
    if nodes < 3:
        raise InputError(f"a ring has at least 3 nodes, and data.clients = {nodes}. Raise data.clients, or use graph 'path'.")
    return Graph(nodes, tuple((node, (node + 1) % nodes) for node in range(nodes)))


def path(nodes: int) -> Graph:
    """a line: the ring without one edge, of diameter n − 1"""
    return Graph(nodes, tuple((node, node + 1) for node in range(nodes - 1)))


def torus(nodes: int, *, rows: int | None = None) -> Graph:
    """a grid whose opposite sides are joined: each node has four neighbours

    Without `rows`, it is as near to a square as the number of nodes allows.
    """
    if rows is None:
        rows = _rows_of(nodes)
        if rows is None:
            raise InputError(
                f"a torus has rows × columns nodes, each number at least 3, and data.clients = {nodes} is no such product. Use "
                f"data.clients = {_near_torus(nodes)}, or another graph."
            )
    if rows < 3 or nodes % rows or nodes // rows < 3:
        possible = [each for each in range(3, nodes // 3 + 1) if nodes % each == 0]
        remedy = f"Use rows = {' or '.join(map(str, possible))}." if possible else f"Use data.clients = {_near_torus(nodes)}."
        raise InputError(
            f"a torus with graph.rows = {rows} cannot have data.clients = {nodes} nodes: it has rows × columns nodes, each "
            f"number at least 3. {remedy}"
        )
    columns = nodes // rows
    right = [(node, node - node % columns + (node + 1) % columns) for node in range(nodes)]
    down = [(node, (node + columns) % nodes) for node in range(nodes)]
    return Graph(nodes, tuple(right + down))


def star(nodes: int) -> Graph:
    """node 0 in the middle, joined to all others: what a server is among its clients"""
    return Graph(nodes, tuple((0, node) for node in range(1, nodes)))


def complete(nodes: int) -> Graph:
    """an edge between any two nodes"""
    return Graph(nodes, tuple(combinations(range(nodes), 2)))


def _rows_of(nodes: int) -> int | None:
    """The largest number of rows, at least 3, that has as many columns or more."""
    return next((rows for rows in range(isqrt(nodes), 2, -1) if nodes % rows == 0), None)


def _near_torus(nodes: int) -> str:
    below = next((each for each in range(nodes - 1, 8, -1) if _rows_of(each)), None)
    above = next(each for each in range(max(nodes + 1, 9), nodes + 10) if _rows_of(each))
    return f"{above}" if below is None else f"{below} or {above}"
