"""An undirected graph of nodes 0 to n − 1, its distances, and its spanning trees."""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sketchfed.errors import InputError

Edge = tuple[int, int]


@dataclass(frozen=True)
class Graph:
    """Nodes 0 to `nodes` − 1, and the undirected edges between them.

    Each edge is a pair of its ends, the smaller one first, and the edges are in ascending order. They may be given in any
    order: equal graphs are equal objects.

    >>> square = Graph(4, [(0, 1), (1, 2), (2, 3), (3, 0)])
    >>> square.neighbours(0), square.diameter
    ((1, 3), 2)
    """

    nodes: int
    edges: tuple[Edge, ...]

    def __post_init__(self) -> None:
        if not _is_whole(self.nodes) or self.nodes < 1:
            raise InputError(f"a graph has at least one node, got nodes = {self.nodes!r}.")
        seen: set[Edge] = set()
        for edge in self.edges:
            a, b = _ends(edge)
            for end in (a, b):
                if not 0 <= end < self.nodes:
                    raise InputError(
                        f"the edge {a}–{b} names node {end}, and a graph of {self.nodes:,} nodes has the nodes 0 to "
                        f"{self.nodes - 1}. Nodes are counted from 0."
                    )
            if a == b:
                raise InputError(f"the edge {a}–{b} joins node {a} to itself. Remove it: every node hears itself anyway.")
            pair = (min(a, b), max(a, b))
            if pair in seen:
                raise InputError(
                    f"the edge {pair[0]}–{pair[1]} is there twice. Remove one: edges are undirected, and {pair[0]}–{pair[1]} "
                    f"and {pair[1]}–{pair[0]} are the same."
                )
            seen.add(pair)
        object.__setattr__(self, "edges", tuple(sorted(seen)))

    @cached_property
    def _neighbours(self) -> tuple[tuple[int, ...], ...]:
        found: list[list[int]] = [[] for _ in range(self.nodes)]
        for a, b in self.edges:
            found[a].append(b)
            found[b].append(a)
        return tuple(tuple(sorted(each)) for each in found)

    @cached_property
    def _distances(self) -> npt.NDArray[np.float64]:
        """The number of edges between each two nodes, `(nodes, nodes)`. Infinity where there is no way."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import shortest_path

        rows, columns = np.array(self.edges, np.int64).reshape(-1, 2).T
        there = csr_array((np.ones(len(rows)), (rows, columns)), shape=(self.nodes, self.nodes))
        found: npt.NDArray[np.float64] = shortest_path(there, directed=False, unweighted=True)
        return found

    def neighbours(self, node: int) -> tuple[int, ...]:
        """The nodes that share an edge with this one, in ascending order."""
        return self._neighbours[self._checked(node)]

    def degree(self, node: int) -> int:
        """The number of neighbours of a node."""
        return len(self.neighbours(node))

    @cached_property
    def components(self) -> tuple[tuple[int, ...], ...]:
        """The nodes of each connected part, in ascending order. The parts are in the order of their lowest nodes."""
        found, seen = [], set[int]()
        for node in range(self.nodes):
            if node not in seen:
                part = self.tree(node).order
                seen.update(part)
                found.append(tuple(sorted(part)))
        return tuple(found)

    @property
    def connected(self) -> bool:
        """Whether there is a way between any two nodes."""
        return len(self.components) == 1

    @cached_property
    def diameter(self) -> int:
        """The largest distance between two nodes, as a number of edges. Refused if the graph is not connected."""
        self.check_connected("the graph")
        return int(self._distances.max())

    @cached_property
    def centre(self) -> int:
        """The node whose farthest node is nearest; the lowest number wins. If not connected, that of the largest component."""
        part = np.array(max(self.components, key=len))
        return int(part[np.argmin(self._distances[np.ix_(part, part)].max(axis=1))])

    def check_connected(self, what: str) -> None:
        """Raise `InputError` if there is no way between some nodes. `what` is the graph's name in the message."""
        if not self.connected:
            first, second = self.components[:2]
            raise InputError(
                f"{what} is not connected: there is no way from node {first[0]} to node {second[0]}, and it falls into "
                f"{len(self.components):,} parts. Add edges between {_listed(first)} and {_listed(second)}, such as "
                f"{first[0]}–{second[0]}."
            )

    def without(self, nodes: Collection[int] = (), edges: Collection[Edge] = ()) -> "Graph":
        """The graph without these edges and without all edges of these nodes, which stay as nodes without neighbours."""
        gone = {(min(edge), max(edge)) for edge in edges}
        kept = [(a, b) for a, b in self.edges if (a, b) not in gone and a not in nodes and b not in nodes]
        return Graph(self.nodes, tuple(kept))

    def tree(self, root: int | None = None) -> "Tree":
        """The breadth-first spanning tree of the root's component. Each node has the shortest way to the root.

        Without a root, it is `centre`, and the tree is as low as can be.
        """
        start = self.centre if root is None else self._checked(root)
        parent, order, waiting = dict[int, int](), [start], deque([start])
        while waiting:
            node = waiting.popleft()
            for each in self._neighbours[node]:
                if each != start and each not in parent:
                    parent[each] = node
                    order.append(each)
                    waiting.append(each)
        return Tree(root=start, parent=parent, order=tuple(order))

    def _checked(self, node: int) -> int:
        if not 0 <= node < self.nodes:
            raise InputError(f"there is no node {node} in a graph with the nodes 0 to {self.nodes - 1}.")
        return node


@dataclass(frozen=True)
class Tree:
    """A tree over some nodes of a graph."""

    root: int
    parent: Mapping[int, int]
    """The next node on the way to the root, for each node but the root."""
    order: tuple[int, ...]
    """All nodes, breadth-first from the root: parents come before their children."""

    @cached_property
    def _children(self) -> Mapping[int, tuple[int, ...]]:
        found: dict[int, list[int]] = {node: [] for node in self.order}
        for node in self.order[1:]:
            found[self.parent[node]].append(node)
        return {node: tuple(children) for node, children in found.items()}

    @cached_property
    def depth(self) -> int:
        """The number of edges from the root to the farthest node."""
        below = {self.root: 0}
        for node in self.order[1:]:
            below[node] = below[self.parent[node]] + 1
        return max(below.values())

    def children(self, node: int) -> tuple[int, ...]:
        """The nodes whose parent is this node, in ascending order."""
        if node not in self._children:
            raise InputError(
                f"node {node} is not in this tree, whose root is node {self.root}. Ask the tree of its own component."
            )
        return self._children[node]

    def below(self, node: int) -> tuple[int, ...]:
        """A node, and all nodes whose way to the root leads over it."""
        found = [node]
        for each in found:  # which grows while it is read
            found += self.children(each)
        return tuple(found)


def _ends(edge: Iterable[int]) -> Edge:
    ends = tuple(edge) if isinstance(edge, Iterable) and not isinstance(edge, str) else ()
    if len(ends) != 2 or not all(map(_is_whole, ends)):
        raise InputError(f"an edge is a pair of node numbers, got {edge!r}. Write it as [0, 1].")
    return int(ends[0]), int(ends[1])


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _listed(nodes: tuple[int, ...]) -> str:
    if len(nodes) == 1:
        return f"node {nodes[0]}"
    return f"nodes {', '.join(map(str, nodes[:4]))}{', …' if len(nodes) > 4 else ''}"
