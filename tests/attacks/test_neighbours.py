"""What a node of a graph learns of its neighbours' changes, beside the truth."""

from dataclasses import replace

import pytest
import torch
from recorded_runs import alignment, compared, distance, recorded, recorded_anew

from sketchfed.attacks import AllMessages, cosine
from sketchfed.audits import record
from sketchfed.errors import InputError
from sketchfed.rounds.network import receiver

HALF = {"sketch": {"name": "balanced", "ratio": 0.5}}
DENSE = {"codec": {"name": "dense"}}
SKETCHED = {"codec": {"name": "sketched"}, **HALF}
ALL = {
    "gossip": ("gossip", SKETCHED),
    "dense gossip": ("gossip", DENSE),
    "tracking": ("gossip_tracking", SKETCHED),
    "dbcl": ("dbcl", HALF),
    "models": ("gossip_models", HALF),
    "models, padded": ("gossip_models", {"sketch": {"name": "srht", "ratio": 0.5}}),
    "exact": ("gossip_exact", HALF),
}


def on(graph, name, tables, rounds=3, clients=5):
    return recorded({"graph": {"name": graph}, "data": {"clients": clients}, **tables}, name=name, rounds=rounds)


@pytest.mark.parametrize("algorithm", ALL)
def test_the_first_change_of_a_neighbour_is_seen_through_a_known_map(algorithm):
    """All nodes begin with the same model, so only the map hides the first change."""
    run = on("ring", *ALL[algorithm])
    first = [(seen, values) for update, seen, values in compared(run, "neighbour") if update.round == 0]
    assert first
    for seen, values in first:
        assert distance(seen, values) < 1e-4


@pytest.mark.parametrize("algorithm", ["gossip", "gossip_tracking"])
def test_whoever_hears_all_others_has_dense_changes_of_all_rounds(algorithm):
    run = on("complete", algorithm, DENSE, rounds=4)
    updates = list(compared(run, "neighbour"))
    assert [(update.round, update.clients) for update, _, _ in updates] == [(t, (n,)) for t in range(4) for n in range(1, 5)]
    for _, seen, values in updates:
        assert distance(seen, values) < 1e-3  # of float32, over the rounds


def test_the_only_neighbour_of_a_leaf_has_its_dense_changes():
    run = on("star", "gossip", DENSE)
    for _, seen, values in compared(run, "neighbour"):
        assert distance(seen, values) < 1e-3


def test_unseen_nodes_blur_later_changes_and_not_the_first():
    run = on("ring", "gossip", DENSE, clients=8)
    found = {(update.round, update.clients): distance(seen, values) for update, seen, values in compared(run, "neighbour")}
    assert all((gap < 1e-4) == (index == 0) for (index, _), gap in found.items())


def test_blind_neighbours_that_hear_all_others_have_the_changes_of_single_examples():
    """App. D says that no node can know them. Biases travel in the clear, and say along which units a change went."""
    run = recorded({"graph": {"name": "complete"}, "data": {"clients": 4}, **HALF}, name="dbcl", rounds=6, batch=1)
    changes = AllMessages().changes(run.view("neighbour"))
    assert min(cosine(changes[index, node], run.change(index, node)) for index in range(4) for node in range(1, 4)) > 0.95


@pytest.mark.parametrize("name", ["dbcl", "gossip_models", "gossip"])
def test_all_messages_together_give_most_of_a_change_through_half_a_sketch(name):
    """App. D of Zhang & Wang 2021 says that no node can know it. Half of the numbers alone would give a cosine of about 0.7."""
    run = on("complete", name, SKETCHED if name == "gossip" else HALF, rounds=6)
    view = run.view("neighbour")
    cosines = [cosine(told.change, run.change(told.round, told.nodes[0])) for told in view.told if told.round < 3]
    assert torch.tensor(cosines).median() > 0.7


def test_what_was_not_said_directly_is_estimated_from_other_rounds():
    """An attacker that took each model to be the first one would be wrong by the whole way that it has gone."""
    run = on("ring", "dbcl", HALF, rounds=6)
    for told in run.view("neighbour").told:
        if told.round == 5:
            true = run.nodes[5][told.nodes[0]]
            assert (told.weights - true).norm() < 0.75 * (run.nodes[0][0] - true).norm()


def test_a_parent_in_the_tree_has_the_sketch_of_a_leaf_and_a_leaf_only_sums():
    run = on("path", "gossip_exact", HALF)
    assert {update.clients for update in run.view("neighbour", 3).updates()} == {(4,), (0, 1, 2)}
    assert {update.clients for update in run.view("neighbour", 0).updates()} == {(1, 2, 3, 4)}
    assert {update.clients for update in run.view("neighbour", 2).updates()} == {(0, 1), (3, 4)}
    for node in range(5):
        for update in run.view("neighbour", node).updates():
            truth = run.behind(update.round, update.clients)
            assert distance(update.observation.seen(truth.x, truth.y).detach(), update.observation.values) < 1e-4


@pytest.mark.parametrize("algorithm", ALL)
def test_the_view_holds_nothing_of_others_but_what_they_said_to_the_node(algorithm):
    run = on("path", *ALL[algorithm])
    view = run.view("neighbour", 1)
    assert view.members == (1,)
    assert set(view.own) == {1}
    assert all({each.client, receiver(each)} <= {0, 1, 2} and 1 in (each.client, receiver(each)) for each in view.exchanges)
    assert view.released is None
    assert not any(parameter.any() for parameter in view.public.module.parameters())
    assert view.public.protection.budget is None


def test_data_that_is_far_away_does_not_change_the_view():
    """Node 0 hears of what node 4 did after three rounds, so its view of two rounds must not depend on it."""
    run = on("path", "dbcl", HALF, rounds=2)
    parts = [*run.workload.parts[:4], run.workload.parts[4].flip(0)]
    other, _ = record(run.config, replace(run.workload, parts=parts))
    for one, two in zip(run.view("neighbour", 0).updates(), other.view("neighbour", 0).updates(), strict=True):
        assert torch.equal(one.observation.values, two.observation.values)
    assert not torch.equal(run.nodes[1][4], other.nodes[1][4])


NOISE = {"epsilon": 8.0, "clip": 0.5}


@pytest.mark.parametrize(
    ("name", "tables", "privacy"),
    [
        ("dbcl", HALF, {"unit": "example", "placement": "steps"}),
        ("gossip", SKETCHED, {"unit": "client"}),
        ("gossip_exact", HALF, {"unit": "client"}),
    ],
)
def test_noise_against_neighbours_is_in_what_they_see_and_has_its_epsilon(name, tables, privacy):
    run = on("ring", name, {**tables, "privacy": NOISE | privacy})
    assert "against the neighbours" in run.claim
    assert run.metrics[-1]["epsilon"] <= 8.0
    first = [(update, seen, values) for update, seen, values in compared(run, "neighbour") if update.round == 0]
    for update, seen, values in first:
        assert update.noise > 0
        assert alignment(seen, values) < 0.7  # 650 numbers of noise, far longer than the change


def test_noise_is_as_strong_as_the_update_says():
    """Of 300 numbers, a share of about 1e-6 of runs has a mean square that is off by more than 40 %."""
    run = on("ring", "gossip", {**SKETCHED, "privacy": NOISE | {"unit": "client"}})
    update, seen, values = next(compared(run, "neighbour"))
    noise = values - seen * min(1.0, 0.5 / float(seen.norm()))
    assert 0.6 < float(noise.square().mean()) / update.noise**2 < 1.4


def test_codecs_that_are_not_linear_show_what_they_keep():
    run = on("ring", "gossip", {"codec": {"name": "top_k", "ratio": 0.5}})
    for update, seen, values in compared(run, "neighbour"):
        if update.round == 0:
            assert alignment(seen, values) > 0.9


@pytest.mark.parametrize(
    "given", [{"losses": 0.2}, {"node_failures": 0.2}, {"name": "random_regular", "degree": 2, "redraw": 1}]
)
def test_changing_graphs_are_refused_with_what_to_change(given):
    run = recorded_anew({"graph": {"name": "ring", **given}, **HALF, "data": {"clients": 6}}, name="dbcl")
    with pytest.raises(InputError, match=r"remove redraw, node_failures, link_failures, stragglers, losses"):
        run.view("neighbour").updates()


def test_only_a_node_of_a_graph_is_a_neighbour():
    run = on("ring", "dbcl", HALF)
    assert run.roles == ["neighbour"]
    with pytest.raises(InputError, match="no node 7 looks at this run as a neighbour"):
        run.view("neighbour", 7)
    with pytest.raises(InputError, match="server"):
        run.view("server")
