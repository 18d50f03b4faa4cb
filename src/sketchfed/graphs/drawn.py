"""Random graphs. They are drawn from words of a public seed, so that all machines and versions draw the same."""

from collections.abc import Callable
from itertools import combinations
from math import log

from sketchfed.draws import permutation
from sketchfed.errors import InputError
from sketchfed.graphs.graph import Edge, Graph
from sketchfed.seeds import PublicSeed

DRAWS = 100
"""How often a graph is drawn again if it is not connected."""


def first_connected(draw: Callable[[PublicSeed], Graph], seed: PublicSeed, *, otherwise: str) -> Graph:
    """The first of `DRAWS` draws that is connected. `otherwise` says what was drawn, and what to change if none is."""
    for attempt in range(DRAWS):
        found = draw(seed.child("draw", attempt))
        if found.connected:
            return found
    raise InputError(f"none of {DRAWS} draws of {otherwise}")


def random_regular(nodes: int, seed: PublicSeed, *, degree: int = 4) -> Graph:
    """each node has `degree` neighbours, drawn at random; the diameter grows with ln n

    Paper: Steger & Wormald 1999, "Generating random regular graphs quickly", Sec. 2. Each node has `degree` free ends. They are
    paired at random, and ends that would give a loop or a second edge are paired again. For small degrees, all such graphs are
    nearly equally likely. A degree above (n − 1)/2 is drawn as the complement.
    """
    if not 2 <= degree < nodes:
        raise InputError(
            f"graph.degree = {degree} is a number of neighbours among data.clients = {nodes} nodes. Use a degree from 2 to "
            f"{nodes - 1}, or graph 'complete'."
        )
    if nodes * degree % 2:
        raise InputError(
            f"no graph has data.clients = {nodes} nodes of graph.degree = {degree} each: nodes × degree counts the ends of "
            f"all edges, so it must be even. Use degree = {degree - 1 if degree > 2 else degree + 1}, or "
            f"data.clients = {nodes + 1}."
        )

    def draw(own: PublicSeed) -> Graph:
        if 2 * degree <= nodes - 1:
            return Graph(nodes, tuple(_paired(nodes, degree, own)))
        missing = _paired(nodes, nodes - 1 - degree, own)
        return Graph(nodes, tuple(pair for pair in combinations(range(nodes), 2) if pair not in missing))

    what = f"a random graph of {nodes:,} nodes of degree {degree} was connected. Raise graph.degree; 3 is usually enough."
    return first_connected(draw, seed, otherwise=what)


def _paired(nodes: int, degree: int, seed: PublicSeed) -> set[Edge]:
    """The edges of a random graph in which all nodes have this degree."""
    for attempt in range(10_000):
        found, ends, turn = set[Edge](), [node for node in range(nodes) for _ in range(degree)], 0
        while ends:
            order = permutation(seed.child("attempt", attempt).child("pairs", turn), len(ends)).tolist()
            mixed, ends, before = [ends[place] for place in order], [], len(ends)
            for a, b in zip(mixed[::2], mixed[1::2], strict=True):
                pair = (min(a, b), max(a, b))
                if a == b or pair in found:
                    ends += [a, b]
                else:
                    found.add(pair)
            turn += 1
            if len(ends) == before and not _pairable(set(ends), found):
                break
        if not ends:
            return found
    raise InputError(f"no graph of {nodes} nodes of degree {degree} was found in 10,000 attempts. Lower graph.degree.")


def _pairable(nodes: set[int], found: set[Edge]) -> bool:
    return any(pair not in found for pair in combinations(sorted(nodes), 2))


def erdos_renyi(nodes: int, seed: PublicSeed, *, probability: float | None = None) -> Graph:
    """each pair of nodes has an edge with the same probability, by default 2·ln(n)/n

    Paper: Gilbert 1959, "Random graphs"; Erdős & Rényi 1960. Above ln(n)/n, most draws of a large graph are connected.
    """
    chance = min(1.0, 2 * log(nodes) / nodes) if probability is None else probability
    if not 0 < chance <= 1:
        raise InputError(f"graph.probability must be above 0 and at most 1, got {probability}.")
    pairs = tuple(combinations(range(nodes), 2))
    bound = round(chance * 2**32)

    def draw(own: PublicSeed) -> Graph:
        return Graph(
            nodes, tuple(pair for pair, word in zip(pairs, own.words(len(pairs)).tolist(), strict=True) if word < bound)
        )

    what = (
        f"an Erdős–Rényi graph of {nodes:,} nodes with probability = {chance:.3g} was connected. Raise graph.probability above "
        f"ln(n)/n = {log(nodes) / nodes:.3g}; without it, twice that is used."
    )
    return first_connected(draw, seed, otherwise=what)


def small_world(nodes: int, seed: PublicSeed, *, degree: int = 4, rewiring: float = 0.1) -> Graph:
    """a ring in which each node has its `degree` nearest neighbours, and a share `rewiring` of the edges leads elsewhere

    Paper: Watts & Strogatz 1998, "Collective dynamics of 'small-world' networks". One end of each edge moves with probability
    `rewiring` to a random node that is not a neighbour yet.
    """
    if degree < 2 or degree % 2 or degree >= nodes:
        raise InputError(
            f"graph.degree = {degree} must be an even number from 2 to {(nodes - 1) // 2 * 2} for data.clients = {nodes}: half "
            "of a node's neighbours are on each side of it."
            if nodes > 2
            else f"a small world has at least 3 nodes, and data.clients = {nodes}. Use graph 'path'."
        )
    if not 0 <= rewiring <= 1:
        raise InputError(f"graph.rewiring is a share of the edges, so it must be from 0 to 1, got {rewiring}.")
    bound = round(rewiring * 2**32)

    def draw(own: PublicSeed) -> Graph:
        near = [(node, (node + reach) % nodes) for reach in range(1, degree // 2 + 1) for node in range(nodes)]
        found = {(min(pair), max(pair)) for pair in near}
        words = own.words(2 * len(near)).tolist()
        for (node, end), coin, place in zip(near, words[::2], words[1::2], strict=True):
            if coin >= bound:
                continue
            free = [each for each in range(nodes) if each != node and (min(node, each), max(node, each)) not in found]
            if free:
                found.remove((min(node, end), max(node, end)))
                new = free[place * len(free) >> 32]
                found.add((min(node, new), max(node, new)))
        return Graph(nodes, tuple(found))

    what = (
        f"a small world of {nodes:,} nodes with degree = {degree} and rewiring = {rewiring:g} was connected. Raise "
        "graph.degree, or lower graph.rewiring."
    )
    return first_connected(draw, seed, otherwise=what)
