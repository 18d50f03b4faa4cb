"""Nodes evaluate the model on their own data. What they send is not trusted."""

import logging

import pytest
from fake_grid import NODES, FakeGrid, changed, failed, run_on, same, tables

import sketchfed
from sketchfed.errors import InputError
from sketchfed.rounds.survey import packed_metrics

pytestmark = pytest.mark.usefixtures("in_a_run")
ON = {"evaluate_clients": True}
WORK = {"name": "iterative", "rounds": 3, "participation": 0.67}
STEPS = {"local_steps": 2, "local_rate": 0.2}
WAYS = {
    "named metrics": {"training": ON, "model": {"metric": ["top5", "auroc"]}, "algorithm": WORK | STEPS},
    "whole models": {"training": ON, "algorithm": STEPS | {"name": "fedavg", "rounds": 3, "participation": 0.67}},
    "weights and variates": {
        "training": ON,
        "algorithm": STEPS | {"name": "fedavg", "rounds": 3, "scaffold": True},
    },
    "own loop": {
        "training": ON | {"train": "named_loops:train", "evaluate": "named_loops:evaluate", "lr": 0.05},
        "algorithm": WORK,
    },
    "loss of a batch": {
        "training": ON | {"batch_loss": "named_loops:batch_loss", "evaluate": "named_loops:evaluate"},
        "algorithm": WORK | STEPS,
    },
}


def chosen(way, *, validation=True, **model):
    made, own = tables(), WAYS[way]
    data = made["data"] | ({"client_validation": 0.3} if validation else {})
    return {**made, **own, "data": data, "model": made["model"] | own.get("model", {}) | model}


@pytest.mark.parametrize("way", WAYS)
def test_nodes_measure_what_the_local_engine_measures(way):
    """The lines are equal, bytes included; `same` compares all of them."""
    grid = FakeGrid()
    table = chosen(way)
    made, expected = run_on(grid, table), sketchfed.run(table)
    assert same(made, expected)
    assert [line["clients_scored"] for line in made.metrics] == [3, 3, 3]
    assert made.metrics[-1]["clients_bytes"] > made.metrics[0]["clients_bytes"] > 0
    assert set(grid.statuses()) == {"done"}


@pytest.mark.parametrize("way", WAYS)
def test_nodes_with_data_of_their_own_are_evaluated_on_what_they_train_on(way):
    load = "own_data:load" if way in ("named metrics", "whole models", "weights and variates") else "named_loops:load"
    settings = {node: {"partition-id": at, "data": load} for at, node in enumerate(NODES)}
    table = chosen(way, validation=False)
    assert same(run_on(FakeGrid(settings=settings), table), sketchfed.run(table))


def test_what_a_server_cannot_split_is_refused():
    settings = {node: {"partition-id": at, "data": "own_data:load"} for at, node in enumerate(NODES)}
    with pytest.raises(InputError, match="these nodes have data of their own"):
        run_on(FakeGrid(settings=settings), chosen("whole models"))


LIES = {
    "no packet": (b"junk", "it is for|this is not a packet"),
    "nothing": (b"", "packet"),
    "another round": (packed_metrics({"loss": 0.1, "accuracy": 1.0}, 7), "for round 7"),
    "an endless reply": (bytes(10**6), "at most 65,536 are read"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_node_that_sends_nonsense_is_left_out_and_named_and_the_run_goes_on(lie, caplog):
    payload, why = LIES[lie]

    def spoiled(request, reply):
        return changed(reply, payload=payload) if (request.stage, request.client) == ("evaluate", 1) else reply

    table = chosen("whole models")
    with caplog.at_level(logging.WARNING):
        made = run_on(FakeGrid(spoiled), table)
    assert made.weights.equal(sketchfed.run(table).weights)
    assert [line["clients_scored"] for line in made.metrics] == [2, 2, 2]
    said = [record.getMessage() for record in caplog.records if "metrics leave out client 1" in record.getMessage()]
    assert said
    assert any(part in said[0] for part in why.split("|"))


def test_values_that_a_node_invents_are_bounded_and_names_that_it_invents_are_not_columns(caplog):
    def spoiled(request, reply):
        if (request.stage, request.client) != ("evaluate", 1):
            return reply
        index = made_up["round"] = made_up["round"] + 1
        return changed(reply, payload=packed_metrics({"loss": 1e200, "accuracy": 0.5, "invented": 1.0}, index))

    made_up = {"round": 0}
    with caplog.at_level(logging.WARNING):
        made = run_on(FakeGrid(spoiled), chosen("whole models"))
    line = made.metrics[-1]
    assert line["clients_scored"] == 3
    assert line["clients_loss"] < 10
    assert not any("invented" in key for key in line)
    assert "'loss' leaves out client 1" in caplog.text


def test_a_node_that_is_away_is_left_out_and_named(caplog):
    def lost(request, reply):
        return failed(reply, 1) if (request.stage, request.client) == ("evaluate", 2) else reply

    with caplog.at_level(logging.WARNING):
        made = run_on(FakeGrid(lost), chosen("whole models"))
    assert [line["clients_scored"] for line in made.metrics] == [2, 2, 2]
    assert "metrics leave out client 2" in caplog.text


def test_a_node_that_was_started_anew_is_brought_up_to_date_and_evaluated():
    def forgetting(request, reply):
        if (request.stage, request.acknowledged) == ("train", 0) and not forgotten:
            forgotten.append(request.client)
            grid.forget(NODES[request.client])
        return reply

    forgotten: list[int] = []
    grid = FakeGrid(forgetting)
    table = chosen("named metrics")
    made = run_on(grid, table)
    assert forgotten
    assert [line["clients_scored"] for line in made.metrics] == [3, 3, 3]


def test_personal_layers_are_evaluated_where_they_are():
    table = chosen("whole models", personal=["3.*"])
    made, expected = run_on(FakeGrid(), table), sketchfed.run(table)
    assert same(made, expected)
    common = sketchfed.run(chosen("whole models"))
    assert made.metrics[-1]["clients_loss"] != common.metrics[-1]["clients_loss"]
