"""Nodes that say differences, against a few lines of torch, and what they hold when messages fail."""

import pytest
import torch
from graphs_of_tiny import FAILING, network, tables
from torch import Tensor

from sketchfed import run
from sketchfed.algorithms import RoundContext
from sketchfed.algorithms.gossip_tracking import TRACKED
from sketchfed.graphs import GraphSettings, metropolis
from sketchfed.rounds.network import Network
from sketchfed.rounds.peers import GossipPeer, TrackingPeer

GOSSIPS = ["dense", "sketched", "few bits", "top-k", "tracking"]


def models(server: Network) -> Tensor:
    return torch.stack([server.group.weights(node) for node in range(server.group.clients)])


def trained(server: Network, node: int, weights: Tensor, index: int) -> Tensor:
    """The change by local work, from a trainer that nobody else uses."""
    peer = server.group.peers[node]
    algorithm, context = server.algorithm, RoundContext(round=index, seed=server.seed, client=node)
    from sketchfed.training import Turn

    turn = Turn(seed=context.own, round=index, client=node)
    after = peer.participant.trainer.train(weights, server.group._examples(node), algorithm.work, turn)
    return after - weights


def test_dense_gossip_is_dpsgd():
    """Lian et al. 2017, in the order of training and then mixing."""
    server = network("dense", {"name": "small_world", "degree": 2, "rewiring": 0.5})
    mixing = torch.from_numpy(metropolis(server.group.topology.graph(0))).float()
    expected = models(server)
    for index in range(4):
        steps = [trained(server, node, row, index) for node, row in enumerate(expected)]
        expected = mixing @ (expected + torch.stack(steps))
        server.advance()
    torch.testing.assert_close(models(server), expected, rtol=1e-4, atol=1e-6)


def test_sketched_gossip_is_choco():
    """Koloskova et al. 2019, Alg. 2, with the sketch as the projection (size/dim)·RᵀR."""
    server = network("sketched")
    algorithm, count = server.algorithm, server.group.clients
    mixing = torch.from_numpy(metropolis(server.group.topology.graph(0))).float()
    x = models(server)
    estimates = x.clone()
    for index in range(4):
        seed = RoundContext(round=index, seed=server.seed, client=0).shared
        codec = algorithm._codec(x.shape[1])
        sketch = codec.sketch(seed)
        x = x + torch.stack([trained(server, node, row, index) for node, row in enumerate(x)])
        estimates = estimates + codec.share * sketch.adjoint(sketch.apply(x - estimates))
        x = x + algorithm.mixing_rate * (mixing - torch.eye(count)) @ estimates
        server.advance()
    torch.testing.assert_close(models(server), x, rtol=1e-4, atol=1e-6)


def test_tracking_is_beer():
    """Zhao et al. 2022, Alg. 1, with changes in place of gradients."""
    server = network("tracking", {"name": "path"})
    algorithm, count = server.algorithm, server.group.clients
    mixing = torch.from_numpy(metropolis(server.group.topology.graph(0))).float()
    pull = algorithm.mixing_rate * (mixing - torch.eye(count))
    x = models(server)
    h, u = x.clone(), torch.zeros_like(x)
    g, last = torch.zeros_like(x), torch.zeros_like(x)
    for index in range(4):
        seed = RoundContext(round=index, seed=server.seed, client=0).shared
        codec = algorithm._codec(x.shape[1])
        sketch = codec.sketch(seed)
        x = x + pull @ h + u
        h_next = h + codec.share * sketch.adjoint(sketch.apply(x - h))
        change = torch.stack([trained(server, node, row, index) for node, row in enumerate(x)])
        u = u + pull @ g + change - last
        g = g + codec.share * sketch.adjoint(sketch.apply(u - g))
        h, last = h_next, change
        server.advance()
    found = torch.stack([server.group.peers[node].voice.estimate.weights for node in range(count)])
    tracked = torch.stack([server.group.peers[node].voice.estimate.moments[TRACKED] for node in range(count)])
    torch.testing.assert_close(found, h, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(tracked, g, rtol=1e-4, atol=1e-6)


def test_the_mean_of_what_is_tracked_is_the_mean_change():
    server = network("tracking")
    for _ in range(4):
        server.advance()
    peers = [peer for peer in server.group.peers.values() if isinstance(peer, TrackingPeer)]
    tracked = torch.stack([peer.voice.estimate.moments[TRACKED] + peer.owed_tracked for peer in peers]).mean(0)
    changes = torch.stack([peer._last for peer in peers]).mean(0)
    torch.testing.assert_close(tracked, changes, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["dense", "sketched", "top-k"])
def test_mixing_leaves_the_mean_where_it_is(kind):
    """Without training, whatever fails on both ends of a link or at a node."""
    server = network(kind, {"name": "complete", "node_failures": 0.2, "link_failures": 0.2})
    server.advance()
    before = models(server).mean(0)
    for peer in server.group.peers.values():
        peer.participant.trainer.train = lambda weights, *rest: weights.clone()
    for _ in range(3):
        server.advance()
    torch.testing.assert_close(models(server).mean(0), before, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", GOSSIPS)
def test_whoever_was_heard_is_known_bit_for_bit(kind):
    """Copies equal the estimate that the neighbour itself holds, however many messages were lost or damaged before."""
    server = network(kind, FAILING, nodes=9)
    compared = 0
    for _ in range(12):
        server.advance()
        peers = {node: peer for node, peer in server.group.peers.items() if isinstance(peer, GossipPeer)}
        for node, peer in peers.items():
            for other in peer._fresh if node not in server.group.topology.at(server.round - 1).away else ():
                theirs, copy = peers[other].voice.estimate, peer.copies[other]
                assert copy.digest == theirs.digest
                compared += 1
    assert compared > 100


def test_lost_updates_arrive_with_later_messages():
    """After messages were lost, a round without losses brings every copy up to date one round later."""
    server = network("sketched", {"name": "ring", "losses": 0.4})
    for _ in range(4):
        server.advance()
    assert server._lost > 0
    topology = GraphSettings(name="ring").topology(6, server.seed)
    server.group.topology = topology
    for _ in range(2):
        server.advance()
    for node, peer in server.group.peers.items():
        for other in topology.graph(0).neighbours(node):
            assert peer.copies[other].digest == server.group.peers[other].voice.estimate.digest


def test_a_long_absence_costs_a_whole_estimate_at_most():
    """A neighbour that missed more than a whole estimate's worth of updates is sent the estimate."""
    server = network("sketched", {"name": "edges", "edges": [[0, 1]]}, nodes=2)
    for _ in range(12):
        server.group.peers[0].work(server.round, server.group._examples(0), server.group.topology.at(0))
        server.state.replica.__dict__["round"] = server.round + 1
    whole = len(server.group.peers[0].voice.since(-1))
    assert len(server.group.peers[0].tell(1, 0)) <= whole


def test_a_neighbour_whose_numbers_are_wild_is_not_heard():
    """The norm of what it says is compared with that of one's own words."""
    server = network("sketched")
    server.advance()
    liar = server.group.peers[0]
    liar.owed = liar.owed + 1e9
    server.advance()
    assert server.tally.refused == 2
    for node in (1, 5):
        assert float(server.group.weights(node).norm()) < 1e3


@pytest.mark.parametrize("codec", ["eden", "qsgd", "sign", "rand_k", "wangni", "induced"])
def test_any_codec_carries_what_nodes_say(codec):
    options = {} if codec in ("eden", "sign") else {"bits": 8} if codec == "qsgd" else {"ratio": 0.3}
    made = tables("dense", rounds=3) | {"codec": {"name": codec, **options}}
    result = run(made)
    assert len(result.metrics) == 3
    assert result.metrics[-1]["consensus"] < 10


def test_sketches_take_fewer_bytes_on_every_link():
    dense, sketched = (run(tables(kind)).metrics[-1] for kind in ("dense", "sketched"))
    assert sketched["edge_bytes"] < 0.6 * dense["edge_bytes"]
