"""Sums along a tree, which equal a server's to the last bit."""

import pytest
import torch
from graphs_of_tiny import FAILING, network, tables

from sketchfed import run
from sketchfed.config import load_config
from sketchfed.rounds.peers import ExactPeer
from sketchfed.runs.starting import prepare

GRAPHS = {
    "path": {"name": "path"},
    "ring": {"name": "ring"},
    "star": {"name": "star"},
    "complete": {"name": "complete"},
    "small world": {"name": "small_world", "degree": 2},
    "tree": {"name": "edges", "edges": [[0, 1], [0, 2], [1, 3], [1, 4], [2, 5]]},
}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("kind", ["exact", "exact, some"])
def test_every_graph_gives_the_model_of_a_server_bit_for_bit(graph, kind):
    made = tables(kind, GRAPHS[graph])
    alone = {key: table for key, table in made.items() if key != "graph"}
    assert torch.equal(run(made).weights, run(alone).weights)


def test_few_bits_down_and_momentum_keep_the_equality():
    made = tables("exact", {"name": "path"})
    made["sketch"] |= {"bits_down": 4}
    made["algorithm"] |= {"global_momentum": 0.5}
    alone = {key: table for key, table in made.items() if key != "graph"}
    assert torch.equal(run(made).weights, run(alone).weights)


def test_the_server_version_is_iterative_sketching_up_to_rounding():
    exact = tables("exact")
    del exact["graph"]
    plain = exact | {"algorithm": {**exact["algorithm"], "name": "iterative"}}
    torch.testing.assert_close(run(exact).weights, run(plain).weights, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_round_takes_two_diameters_at_most_and_few_numbers_an_edge(graph):
    """Each edge of the tree carries one sum up and one update down, of `size` numbers each."""
    server = network("exact", GRAPHS[graph])
    server.advance()
    diameter = server.group.topology.graph(0).diameter
    assert 0 < server._steps <= 2 * diameter
    size = server.algorithm.sketch.codec(len(server.state.replica.weights)).size
    assert len(server.traffic) == 2 * (server.group.clients - 1)
    assert all(sent <= 8 * size + 120 for sent in server.traffic.values())


def test_all_nodes_end_a_round_with_the_same_replica():
    server = network("exact", {"name": "torus", "rows": 3}, nodes=9)
    for _ in range(3):
        server.advance()
        assert len({peer.replica.digest for peer in server.group.peers.values() if isinstance(peer, ExactPeer)}) == 1


def test_nodes_that_miss_updates_catch_up():
    """However much fails, a node is at some round of the same history, and two rounds without failures unite all."""
    server = network("exact", FAILING, nodes=9)
    seen: dict[int, bytes] = {}
    for _ in range(15):
        server.advance()
        for peer in server.group.peers.values():
            assert isinstance(peer, ExactPeer)
            assert seen.setdefault(peer.replica.round, peer.replica.digest) == peer.replica.digest
    assert len(seen) > 3
    server.group.topology = network("exact", {"name": "torus", "rows": 3}, nodes=9).group.topology
    for _ in range(3):
        server.advance()
    assert len({peer.replica.digest for peer in server.group.peers.values()}) == 1


def test_a_sum_that_claims_too_many_nodes_is_refused():
    server = network("exact", {"name": "path"})
    liar = server.group.peers[0]
    tell = liar.tell
    liar.tell = lambda receiver, step: _boasting(tell(receiver, step))
    server.advance()
    assert server.tally.refused == 1


def _boasting(message):
    from dataclasses import replace

    from sketchfed.wire import pack, unpack

    return None if message is None else pack(replace(unpack(message), clients=1_000))


@pytest.mark.parametrize("failing", range(5))
def test_a_node_whose_data_raises_still_adds_up_what_others_say(failing):
    """On a path, each node but the ends is the only way to some others. The sum is the server's over those that trained."""
    server = network("exact", {"name": "path"}, nodes=5)
    examples = server.group._examples
    server.group._examples = lambda node: 1 / 0 if node == failing else examples(node)
    for _ in range(2):
        server.advance()
    assert server.tally.replies == 8
    made = tables("exact", nodes=5, rounds=2)
    loop = prepare(load_config({key: table for key, table in made.items() if key != "graph"}))
    served, local = loop._server, loop._engine._examples
    loop._engine._examples = lambda client: 1 / 0 if client == failing else local(client)
    for _ in range(2):
        served.advance()
    assert torch.equal(served.state.replica.weights, server.state.replica.weights)
