"""Mixing weights: how much each node takes of what its neighbours send."""

import numpy as np
import numpy.typing as npt

from sketchfed.errors import InputError
from sketchfed.graphs.graph import Graph

Weights = npt.NDArray[np.float64]
"""`(nodes, nodes)`: row i has the weights with which node i takes what it hears, its own included."""
_TOLERANCE = 1e-9


def metropolis(graph: Graph) -> Weights:
    """Metropolis weights, `(nodes, nodes)`: w_ij = 1/(1 + max(degree_i, degree_j)), and the rest to the node itself.

    Paper: Xiao, Boyd & Kim 2007, "Distributed average consensus with least-mean-square deviation", Sec. 2. They are
    symmetric and doubly stochastic, and each node can compute its row from its neighbours' degrees. With them, repeated mixing
    leads to the mean on every connected graph.

    >>> metropolis(Graph(3, ((0, 1), (1, 2)))).round(2).tolist()
    [[0.67, 0.33, 0.0], [0.33, 0.33, 0.33], [0.0, 0.33, 0.67]]
    """
    found = np.zeros((graph.nodes, graph.nodes))
    for a, b in graph.edges:
        found[a, b] = found[b, a] = 1 / (1 + max(graph.degree(a), graph.degree(b)))
    for node in range(graph.nodes):
        found[node, node] = 1 - sum(found[node, each] for each in graph.neighbours(node))
    return found


def checked_weights(matrix: object, graph: Graph) -> Weights:
    """The matrix as an array, if it is one of mixing weights on this graph: symmetric and doubly stochastic."""
    nodes = graph.nodes
    try:
        found = np.array(matrix, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            f"weights must be a table of {nodes} rows with {nodes} numbers each, got rows of different lengths or something "
            "that is not a number."
        ) from None
    if found.shape != (nodes, nodes):
        raise InputError(
            f"weights must have a row and a column for each of the {nodes} nodes, got shape {found.shape}. Give {nodes} rows "
            f"of {nodes} numbers, or use weights = 'metropolis'."
        )
    for what, wrong in (("not finite", ~np.isfinite(found)), ("negative", found < 0)):
        if wrong.any():
            a, b = map(int, np.argwhere(wrong)[0])
            raise InputError(f"the weight from node {b} to node {a} is {what}: {found[a, b]}. Weights are shares from 0 to 1.")
    uneven = np.abs(found - found.T) > _TOLERANCE
    if uneven.any():
        a, b = map(int, np.argwhere(uneven)[0])
        raise InputError(
            f"weights are not symmetric: row {a} has {found[a, b]:g} for node {b}, and row {b} has {found[b, a]:g} for node "
            f"{a}. These are directed edges, where symmetry is needed. Give both the same weight, or use weights = "
            "'metropolis'."
        )
    sums = found.sum(axis=1)  # of a symmetric matrix, columns have the same sums
    if (np.abs(sums - 1) > _TOLERANCE).any():
        row = int(np.argmax(np.abs(sums - 1) > _TOLERANCE))
        raise InputError(
            f"weights are not doubly stochastic: row {row} sums to {sums[row]:.12g}, and each row and column must sum to 1. "
            f"Change the weight of node {row} for itself by {1 - sums[row]:.12g}, or use weights = 'metropolis'."
        )
    linked = np.eye(nodes, dtype=bool)
    for a, b in graph.edges:
        linked[a, b] = linked[b, a] = True
    stray = (found > 0) & ~linked
    if stray.any():
        a, b = map(int, np.argwhere(stray)[0])
        raise InputError(
            f"weights give {found[a, b]:g} to the pair {a}–{b}, which is no edge of the graph. Set that weight to 0, or add "
            "the edge."
        )
    if nodes > 1 and spectral_gap(found) < _TOLERANCE:
        raise InputError(
            "these weights never make the models of all nodes equal: their spectral gap is 0, as if the graph were not "
            "connected, or as if nodes only took turns. Give weights above 0 to edges that connect all nodes, and to nodes "
            "themselves, or use weights = 'metropolis'."
        )
    return found


def spectral_gap(weights: Weights) -> float:
    """1 minus the second largest absolute eigenvalue of symmetric weights.

    Each mixing step brings the nodes nearer to their mean by this share at least. It is 0 if they never agree.

    >>> spectral_gap(metropolis(Graph(3, ((0, 1), (1, 2))))).__round__(6)
    0.333333
    """
    if len(weights) == 1:
        return 1.0
    sizes = np.sort(np.abs(np.linalg.eigvalsh(weights)))
    return float(max(0.0, 1 - sizes[-2]))
