"""What a run without a server tells about its nodes: columns of metrics.jsonl, and graph.json with the bytes on each link."""

from typing import Any

from sketchfed.algorithms import Replica
from sketchfed.graphs import GraphSettings, spectral_gap
from sketchfed.rounds.network import Network
from sketchfed.runs.problem import ProblemScorer

FARTHEST = ("farthest_loss", "farthest_accuracy")
"""The columns about the node whose model is farthest from the mean."""


def farthest(network: Network, scorer: ProblemScorer, *, scored: bool) -> dict[str, float | None]:
    """The loss and the accuracy of the node whose model is farthest from the mean. Both are None unless the round is `scored`.

    The mean of the models can be good while some nodes lag behind.
    """
    if not scored:
        return dict.fromkeys(FARTHEST)
    found = scorer.score(Replica(round=network.round, weights=network.group.weights(network.farthest)))
    return dict(zip(FARTHEST, map(_finite, (found.loss, found.accuracy)), strict=True))


def _finite(value: float | None) -> float | None:
    return value if value is not None and abs(value) < float("inf") else None


def described(network: Network, settings: GraphSettings) -> dict[str, Any]:
    """The graph, and for each link its two nodes and the bytes that each of them sent over it since the start.

    The diameter and the spectral gap are those of the first round, without failures. If the graph is drawn anew, links are
    those of the first round and all others that carried bytes.
    """
    topology, traffic = network.group.topology, network.traffic
    graph = topology.graph(0)
    used = {(min(pair), max(pair)) for pair in traffic}
    links = [[a, b, traffic.get((a, b), 0), traffic.get((b, a), 0)] for a, b in sorted(used.union(graph.edges))]
    return {
        "name": settings.name,
        "nodes": graph.nodes,
        "round": network.round,
        "diameter": graph.diameter,
        "spectral_gap": spectral_gap(topology.weights(0)),
        "redraw": settings.redraw,
        "links": links,
    }
