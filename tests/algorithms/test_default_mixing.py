"""The default step towards the neighbours: nodes agree with it, on every graph."""

import pytest
import torch

from sketchfed.algorithms import Change, Gossip, Replica, RoundContext
from sketchfed.algorithms.settings import CodecSettings, SketchSettings
from sketchfed.graphs import Graph, metropolis
from sketchfed.graphs.named import path, ring, star
from sketchfed.seeds import PublicSeed

DIM = 200


def apart(gossip: Gossip, graph: Graph, rounds: int) -> list[float]:
    """How far nodes are apart after each round in which they only mix, relative to the start."""
    weights = torch.tensor(metropolis(graph), dtype=torch.float32)
    models = torch.randn(graph.nodes, DIM, generator=torch.Generator().manual_seed(0))
    estimates = [Replica(round=0, weights=torch.zeros(DIM))] * graph.nodes
    found = []
    for index in range(rounds):
        for node in range(graph.nodes):
            context = RoundContext(round=index, seed=PublicSeed(1), client=node, population=graph.nodes)
            said, _ = gossip.client(Change(models[node] - estimates[node].weights), None, context)
            estimates[node] = gossip.moved(estimates[node], [said], context)
        told = torch.stack([each.weights for each in estimates])
        models = models + gossip.mixing_rate * (weights @ told - told)
        found.append(float((models - models.mean(0)).norm()))
    return [each / found[0] for each in found]


@pytest.mark.parametrize("graph", [ring(6), path(5), star(5)])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_sketched_gossip_comes_to_agree_on_every_graph(graph, share):
    """With γ = share, which is the limit where the lowest eigenvalue is 0, nodes of these rings grow apart."""
    gossip = Gossip(codec=CodecSettings(name="sketched"), sketch=SketchSettings(name="balanced", ratio=share)).resolved(DIM)
    found = apart(gossip, graph, rounds=int(30 / share))
    assert found[-1] < 0.5 * found[len(found) // 2] < 0.25


def test_a_codec_that_loses_nothing_mixes_with_the_weights_themselves():
    assert Gossip().resolved(DIM).mixing_rate == 1
    whole = Gossip(codec=CodecSettings(name="sketched"), sketch=SketchSettings(name="balanced", ratio=1.0))
    assert whole.resolved(DIM).mixing_rate == 1
