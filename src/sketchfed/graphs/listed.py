"""A graph whose edges are given one by one."""

from pathlib import Path

from sketchfed.errors import InputError
from sketchfed.graphs.graph import Edge, Graph


def edges(nodes: int, *, edges: list[list[int]] | None = None, path: str = "", directed: bool = False) -> Graph:
    """the edges that `edges` lists, such as [[0, 1], [1, 2]], or that a text file at `path` has, a pair in each line"""
    if directed:
        raise InputError(
            "graph.directed = true is not possible: neighbours answer each other, so each edge must lead both ways. Remove "
            "directed, and list each pair once."
        )
    if (edges is None) == (not path):
        raise InputError(
            "graph 'edges' takes its edges either from graph.edges or from the file graph.path. "
            + ("Give one of them." if edges is None else "Remove one of them.")
        )
    pairs = read_edges(path) if edges is None else [_pair(each) for each in edges]
    last = max((max(pair) for pair in pairs), default=-1)
    if last >= nodes:
        raise InputError(
            f"edges name node {last}, and data.clients = {nodes} gives the nodes 0 to {nodes - 1}. Each client is a node: set "
            f"data.clients = {last + 1}, or remove the edges of nodes above {nodes - 1}."
        )
    if pairs and last + 1 < nodes:
        raise InputError(
            f"edges name the nodes 0 to {last}, and data.clients = {nodes}. Each client is a node: set data.clients = "
            f"{last + 1}, or add edges to all nodes up to {nodes - 1}."
        )
    return Graph(nodes, tuple(pairs))


def read_edges(path: str | Path) -> list[Edge]:
    """The edges of a text file: two node numbers in a line, with spaces or a comma between them. `#` starts a comment."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InputError(f"cannot read the edges of graph.path = '{path}': {why}. Check the path.") from None
    found: list[Edge] = []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words):
            raise InputError(
                f"line {number} of {path} is {line.strip()[:80]!r}. Write two node numbers in a line, such as 0 1."
            )
        found.append((int(words[0]), int(words[1])))
    return found


def _pair(each: list[int]) -> Edge:
    if len(each) != 2 or min(each) < 0:
        raise InputError(f"an edge is a pair of node numbers from 0, got {each!r} in graph.edges. Write it as [0, 1].")
    return each[0], each[1]
