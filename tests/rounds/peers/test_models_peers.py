"""Nodes that exchange sketches of their models."""

import pytest
import torch
from graphs_of_tiny import network
from test_gossip_peers import models, trained

from sketchfed.algorithms import RoundContext
from sketchfed.graphs import metropolis
from sketchfed.rounds.peers.models import link_form, projected


def test_a_shared_sketch_mixes_what_it_sees_as_dpsgd_does():
    """x ← x + Σⱼ wᵢⱼ·P(xⱼ − x) with the projection P of the round, and nothing outside of its span moves."""
    server = network("models")
    mixing = torch.from_numpy(metropolis(server.group.topology.graph(0))).float()
    x = models(server)
    for index in range(3):
        sketch = server.algorithm._codec(x.shape[1]).sketch(RoundContext(round=index, seed=server.seed, client=0).shared)
        trained_models = x + torch.stack([trained(server, node, row, index) for node, row in enumerate(x)])
        seen = sketch.size / sketch.dim * sketch.adjoint(sketch.apply(trained_models))
        x = trained_models - seen + mixing @ seen
        server.advance()
    torch.testing.assert_close(models(server), x, rtol=1e-4, atol=1e-6)


def test_blind_neighbours_project_on_the_sketches_of_their_link():
    """App. D of Zhang & Wang 2021: each link has sketches of its own, which both ends draw."""
    server = network("blind neighbours", {"name": "edges", "edges": [[0, 1], [1, 2]]}, nodes=3)
    mixing = metropolis(server.group.topology.graph(0))
    x = models(server)
    after = x + torch.stack([trained(server, node, row, 0) for node, row in enumerate(x)])
    expected = after.clone()
    for a, b in ((0, 1), (1, 2)):
        sketch = link_form(server.algorithm, server.seed, (a, b), 3, 0).sketch
        step = float(mixing[a, b]) * projected(sketch, sketch.apply(after[b] - after[a]))
        expected[a] += step
        expected[b] -= step
    server.advance()
    torch.testing.assert_close(models(server), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", ["balanced", "count", "srht", "gaussian"])
def test_a_link_projects(family):
    """Exactly where rows are orthogonal, and by (size/dim)·SᵀS otherwise, which repeats itself up to its variance."""
    server = network("blind neighbours", nodes=3, sketch={"name": family, "ratio": 0.5})
    sketch = link_form(server.algorithm, server.seed, (0, 1), 3, 0).sketch
    x = torch.linspace(-1, 1, sketch.dim)
    once = projected(sketch, sketch.apply(x))
    if sketch.loads is not None:
        torch.testing.assert_close(projected(sketch, sketch.apply(once)), once, rtol=1e-4, atol=1e-5)
    assert float(once @ x) > 0


@pytest.mark.parametrize("kind", ["models", "blind neighbours"])
def test_the_mean_stays_where_it_is_without_training(kind):
    server = network(kind, {"name": "complete", "link_failures": 0.3})
    server.advance()
    before, spread = models(server).mean(0), models(server).std(0).norm()
    for peer in server.group.peers.values():
        peer.participant.trainer.train = lambda weights, *rest: weights.clone()
    for _ in range(6):
        server.advance()
    torch.testing.assert_close(models(server).mean(0), before, rtol=1e-4, atol=1e-6)
    assert float(models(server).std(0).norm()) < 0.9 * float(spread)
