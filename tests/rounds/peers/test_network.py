"""Whole runs without a server: bytes, failures, noise, resumption, and what is refused."""

import pytest
import torch
from graphs_of_tiny import FAILING, KINDS, network, tables

from sketchfed import resume, run
from sketchfed.config import load_config
from sketchfed.errors import InputError
from sketchfed.runs.starting import prepare
from sketchfed.testing.spoiled import SPOILED
from sketchfed.wire import kind_of, split

NOISE = {"epsilon": 8.0, "delta": 1e-2, "insecure_noise_seed": 1}
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_bytes_are_those_that_passed(kind):
    """What is counted are the recorded messages: per link, per node and in total."""
    said = []
    result = run(tables(kind), on_exchange=said.extend)
    last = result.metrics[-1]
    sizes = [(each.client, len(each.reply)) for each in said]
    assert last["uplink_bytes"] == last["downlink_bytes"] == sum(size for _, size in sizes)
    nodes = [sum(size for sender, size in sizes if sender == node) for node in range(6)]
    assert last["node_bytes"] == max(nodes)
    assert all(kind_of(part) for each in said for part in split(each.reply, most=99))


@every_kind
@pytest.mark.parametrize("graph", [{"name": "ring"}, FAILING], ids=["ring", "failing torus"])
def test_an_interrupted_run_comes_to_the_same_bits(kind, graph, tmp_path):
    made = tables(kind, graph, nodes=9, rounds=8) | {"engine": {"checkpoint_seconds": 0.0}}
    whole = run(made, folder=tmp_path / "whole")

    def stop(line):
        if line["round"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(made, folder=tmp_path / "part", on_round=stop)
    part = resume(tmp_path / "part")
    assert torch.equal(part.weights, whole.weights)
    timeless = [[{**line, "seconds": 0} for line in each.metrics] for each in (part, whole)]
    assert timeless[0] == timeless[1]


@every_kind
def test_threads_do_not_change_a_bit(kind):
    one, many = (run(tables(kind, FAILING, nodes=9) | {"engine": {"workers": workers}}) for workers in (1, 4))
    assert torch.equal(one.weights, many.weights)
    assert one.metrics[-1]["uplink_bytes"] == many.metrics[-1]["uplink_bytes"]


@every_kind
def test_the_others_go_on_whatever_fails_and_the_loss_is_counted(kind):
    last = run(tables(kind, FAILING | {"stragglers": 0.1}, nodes=9, rounds=12)).metrics[-1]
    assert last["lost"] > 0
    assert last["refused"] > 0
    assert last["participants"] > 0
    assert last["loss"] < 5


@every_kind
@pytest.mark.parametrize("way", SPOILED)
def test_a_neighbour_that_says_nonsense_is_not_heard(kind, way):
    """The round goes on, and nobody else notices: nodes that are not its neighbours end it with the bits of an honest run."""
    honest, attacked = (network(kind, {"name": "path"}, nodes=6) for _ in range(2))
    for server in (honest, attacked):
        server.advance()
    liar = attacked.group.peers[0]
    tell = liar.tell
    liar.tell = lambda receiver, step: None if (said := tell(receiver, step)) is None else _spoiled(said, way)
    for server in (honest, attacked):
        server.advance()
    assert torch.isfinite(attacked.state.replica.weights).all()
    if "exact" not in kind:  # where sums go through all nodes, one that is missing changes everybody's model
        for node in (2, 3, 4, 5):
            assert torch.equal(attacked.group.weights(node), honest.group.weights(node))


def _spoiled(message, way):
    """The message with its last packet spoiled, unless this way does not apply to it."""
    *others, last = (bytes(part) for part in split(message, most=9))
    spoiled = SPOILED[way](last)
    return message if spoiled is None else b"".join(others) + spoiled


@pytest.mark.parametrize("kind", ["dense", "models", "tracking", "exact"])
def test_a_node_whose_data_raises_is_left_out_and_the_others_go_on(kind, caplog):
    server = network(kind)
    examples = server.group._examples
    server.group._examples = lambda node: 1 / 0 if node == 2 else examples(node)
    server.advance()
    assert server.tally.replies == 5
    assert "client 2" in caplog.text


PRIVATE = {
    "whole nodes": ("sketched", {"unit": "client"}, {}),
    "whole nodes, exact": ("exact", {"unit": "client"}, {}),
    "examples, exact": ("exact", {"unit": "example"}, {"local_steps": 1}),
    "steps": ("sketched", {"unit": "example", "placement": "steps"}, {"local_steps": 1}),
    "steps, models": ("models", {"unit": "example", "placement": "steps"}, {"local_steps": 1}),
    "steps, tracking": ("tracking", {"unit": "example", "placement": "steps"}, {"local_steps": 1}),
    "steps, blind": ("blind neighbours", {"unit": "example", "placement": "steps"}, {"local_steps": 1}),
}


@pytest.mark.parametrize("case", PRIVATE)
def test_noise_is_charged_for_what_neighbours_see(case, tmp_path):
    """The budget is spent after the planned rounds, and the claim names the neighbours."""
    kind, privacy, work = PRIVATE[case]
    made = tables(kind)
    made["algorithm"] |= work
    result = run(made | {"privacy": NOISE | privacy}, folder=tmp_path / "run")
    assert 7.5 < result.metrics[-1]["epsilon"] <= 8.0
    assert "against the neighbours" in (tmp_path / "run" / "summary.json").read_text()
    epsilons = [line["epsilon"] for line in result.metrics]
    assert epsilons == sorted(epsilons)


def test_a_node_that_is_away_is_not_charged(tmp_path):
    """Each node pays for the rounds in which it says something."""
    made = tables("sketched", {"name": "complete", "node_failures": 0.5}, rounds=6)
    server = prepare(load_config(made | {"privacy": NOISE | {"unit": "client"}}))._server
    for _ in range(6):
        server.advance()
    spoke = [sum(node not in server.group.topology.at(index).away for index in range(6)) for node in range(6)]
    charged = [sum(entry.clients is None or node in entry.clients for entry in _settled(server)) for node in range(6)]
    assert charged == spoke


def _settled(server):
    return [entry for index in range(6) for entry in server.privacy_ledger.of_round(index)]


REFUSED = {
    "a server's algorithm": ({"algorithm": {"name": "fedavg"}}, "needs one"),
    "no graph": ({"graph": None, "algorithm": {"name": "gossip"}}, "Add \\[graph\\]"),
    "nodes that differ from clients": ({"graph": {"name": "edges", "edges": [[0, 9]]}}, "data.clients"),
    "a graph in two parts": ({"graph": {"name": "edges", "edges": [[0, 1], [2, 3], [4, 5]]}}, "not connected"),
    "directed edges": ({"graph": {"name": "edges", "edges": [[0, 1]], "directed": True}}, "both ways"),
    "weights that are not doubly stochastic": ({"graph": {"weights": [[0.5] * 6] * 6}}, "sum"),
    "a trusted server": ({"privacy": NOISE | {"observer": "public"}}, "trusts a server"),
    "asynchronous": ({"asynchronous": {}}, "buffer"),
    "flower": ({"engine": {"name": "flower"}}, "SuperNodes"),
    "participation": ({"algorithm": {"name": "gossip", "participation": 0.5}}, "all nodes"),
    "a server's rate": ({"algorithm": {"name": "gossip", "global_rate": 0.5}}, "mixing"),
    "a server's optimiser": ({"algorithm": {"name": "gossip", "server": "adam"}}, "nobody takes a global step"),
    "control variates": ({"algorithm": {"name": "gossip", "scaffold": True}}, "does not go with"),
    "control variates of sums": ({"algorithm": {"name": "gossip_exact", "scaffold": True}}, "nobody tells a node"),
    "some nodes with noise": (
        {"algorithm": {"name": "gossip_exact", "participation": 0.5}, "privacy": NOISE},
        "more often than planned",
    ),
    "a robust rule": ({"algorithm": {"name": "gossip", "combine": "median"}}, "weights of its links"),
    "mixing beyond 1": ({"algorithm": {"name": "gossip", "mixing": 1.5}}, "at most 1"),
    "few bits of models": ({"algorithm": {"name": "gossip_models"}, "sketch": {"bits": 4}}, "32 bits"),
    "few bits of sums": ({"algorithm": {"name": "gossip_exact"}, "sketch": {"bits": 4}}, "levels of their own"),
    "noise on examples' differences": (
        {"algorithm": {"name": "gossip", "batch": 4}, "privacy": NOISE | {"unit": "example"}},
        "steps",
    ),
    "noise on models": ({"algorithm": {"name": "gossip_models"}, "privacy": NOISE}, "whole model"),
    "noise on tracking": ({"algorithm": {"name": "gossip_tracking"}, "privacy": NOISE}, "where the model"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_with_what_to_change(case):
    changes, words = REFUSED[case]
    made = {**tables("dense"), **changes}
    with pytest.raises(InputError, match=words):
        run({key: table for key, table in made.items() if table is not None})


def test_nodes_are_evaluated_on_their_own_data_with_their_own_models():
    result = run(tables("dense") | {"training": {"evaluate_clients": True}})
    assert result.metrics[-1]["clients_scored"] == 6
    assert 0 <= result.metrics[-1]["clients_accuracy_worst"] <= result.metrics[-1]["clients_accuracy"] <= 1


def test_a_graph_that_is_drawn_anew_mixes_faster_than_one_that_stays():
    """A random matching-like graph of degree 2 in each round spreads what one ring does not."""
    ends = [
        run(tables("dense", {"name": "random_regular", "degree": 2, "redraw": redraw}, nodes=24, rounds=10)).metrics[-1][
            "consensus"
        ]
        for redraw in (0, 1)
    ]
    assert ends[1] < 0.9 * ends[0]
