"""Secure sums within neighbourhoods."""

import pytest
import torch
from graphs_of_tiny import network, tables

from sketchfed import run
from sketchfed.errors import InputError
from sketchfed.rounds.peers import SecurePeer

GRAPH = {"name": "random_regular", "degree": 4}
SECURE = {"secure": {"clip": 30.0}}


def test_sums_of_neighbours_lead_to_the_models_of_a_run_in_the_clear():
    """Up to rounding on 2^-bits of the clip norm, also where the weights of links differ."""
    for graph in (GRAPH, {"name": "small_world", "degree": 6, "rewiring": 0.3}):
        made = tables("models", graph, nodes=9)
        clear, secure = run(made), run(made | SECURE)
        torch.testing.assert_close(secure.weights, clear.weights, rtol=1e-3, atol=1e-5)
        assert abs(secure.metrics[-1]["consensus"] - clear.metrics[-1]["consensus"]) < 1e-4


def test_what_a_neighbour_sends_is_masked_anew_each_time():
    """The same numbers leave a node under other masks in two runs, and both runs come to the same sum."""
    results, masked = [], []
    for _ in range(2):
        said = []
        results.append(run(tables("models", GRAPH, nodes=9, rounds=1) | SECURE, on_exchange=said.extend))
        masked.append({each.reply for each in said if each.stage == "step 5"})
    assert len(masked[0]) == 36
    assert not masked[0] & masked[1]
    torch.testing.assert_close(results[0].weights, results[1].weights, rtol=1e-4, atol=1e-6)


def test_a_node_learns_the_weighted_sum_of_its_neighbours_and_nothing_else():
    server = network("models", GRAPH, nodes=9, **SECURE)
    server.advance()
    peer = server.group.peers[0]
    assert isinstance(peer, SecurePeer)
    assert not peer._told


def test_two_nodes_whose_neighbourhoods_differ_in_one_node_know_its_sketch_together(monkeypatch):
    """What docs/decentralised.md says about overlapping neighbourhoods, shown: masks cannot prevent it."""
    ring = [[2, 3], [3, 4], [4, 5], [5, 2], [2, 4], [3, 5]]
    edges = [*ring, *([0, node] for node in (2, 3, 4, 5)), *([1, node] for node in (2, 3, 4))]
    server = network("models", {"name": "edges", "edges": edges}, nodes=6, **SECURE)
    learnt = {}
    settle = SecurePeer._settle

    def listening(peer):
        settle(peer)
        result = None if peer._server is None else peer._server.result
        if result is not None:
            values = peer.sums.mechanism.recovered(result.total, peer.context(0).shared) * peer._largest(peer.node)
            learnt[peer.node] = values, {each: peer._links.weight(peer.node, each) for each in result.survivors}

    monkeypatch.setattr(SecurePeer, "_settle", listening)
    told, said = {}, type(server.algorithm).said

    def listened(algorithm, weights, context):
        told[context.client] = said(algorithm, weights, context)
        return told[context.client]

    monkeypatch.setattr(type(server.algorithm), "said", listened)
    server.advance()
    (more, shares), (fewer, others) = learnt[0], learnt[1]
    assert set(shares) - set(others) == {5}
    assert len({shares[node] / others[node] for node in others}) == 1
    found = (more - fewer * shares[2] / others[2]) / shares[5]
    torch.testing.assert_close(found, told[5].arrays["values"], rtol=1e-2, atol=1e-3)


def test_a_neighbourhood_that_loses_too_many_does_not_mix_and_the_others_go_on(caplog):
    graph = GRAPH | {"losses": 0.1}
    result = run(tables("models", graph, nodes=9, rounds=4) | SECURE)
    assert "does not mix" in caplog.text
    assert result.metrics[-1]["participants"] == 9
    assert result.metrics[-1]["loss"] < 5


def test_a_model_longer_than_the_clip_is_warned_of(caplog):
    run(tables("models", GRAPH, nodes=9, rounds=1) | {"secure": {"clip": 0.1}})
    assert "secure.clip" in caplog.text


REFUSED = {
    "a ring": (("models", {"name": "ring"}), SECURE, "fewer than 3"),
    "differences": (("sketched", GRAPH), SECURE, "gossip_models"),
    "sums along a tree": (("exact", GRAPH), SECURE, "gossip_models"),
    "differences, and nothing else said": (("sketched", GRAPH), {"secure": {}}, "gossip_models"),
    "no clip": (("models", GRAPH), {"secure": {}}, "secure.clip"),
    "noise on what is sent": (
        ("models", GRAPH),
        {"secure": {}, "privacy": {"name": "discrete_gaussian", "epsilon": 8.0, "delta": 1e-2}},
        "whole model",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_hides_nothing_or_cannot_be_summed_is_refused(case):
    (kind, graph), changes, words = REFUSED[case]
    with pytest.raises(InputError, match=words):
        run(tables(kind, graph, nodes=9) | changes)


def test_noise_in_steps_goes_with_secure_neighbourhoods():
    made = tables("models", GRAPH, nodes=9)
    made["algorithm"] |= {"local_steps": 1}
    noise = {"unit": "example", "placement": "steps", "epsilon": 8.0, "delta": 1e-2, "insecure_noise_seed": 1}
    result = run(made | SECURE | {"privacy": noise})
    assert 7.5 < result.metrics[-1]["epsilon"] <= 8.0
