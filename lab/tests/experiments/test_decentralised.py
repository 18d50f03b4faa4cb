"""Arms are what they are called, D-PSGD in torch agrees with ours, and the experiment runs from search to figures."""

import math
from dataclasses import replace

import pytest

from sketchfed.config import load_config
from sketchfed.errors import InputError, UnknownNameError
from sketchfed_lab.experiments import decentralised as experiment
from sketchfed_lab.experiments import decentralised_gossipy, make_settings, recorded_settings
from sketchfed_lab.experiments import decentralised_peer as peer
from sketchfed_lab.experiments import decentralised_report as report
from sketchfed_lab.experiments.climbing import values
from sketchfed_lab.experiments.decentralised import ARMS, GRAPHS, SKETCHED, TUNED_ON, case, everything, tuned_at

SETTINGS = make_settings(experiment, recorded_settings("decentralised"))
SMALL = replace(SETTINGS, data="digits", hidden=8, tuning_nodes=5, seeds={"5": [0, 1]}, rounds=4, scores=4, tested=100)


def made(name, *, graph="ring", inverse=1, spread="iid", settings=SMALL, nodes=5, **changed):
    arm = ARMS["dense" if name == "torch" else name]
    tuned = values(arm.start[inverse], arm.axes) | changed
    return case(settings, (spread, graph, name, inverse), nodes, tuned, seed=0, validation=0.1)


@pytest.mark.parametrize("graph", GRAPHS)
def test_every_arm_on_every_graph_is_a_run_that_is_not_refused(graph):
    for name, arm in ARMS.items():
        for inverse in arm.start:
            where = {"server": experiment.SERVED, "alone": experiment.NOBODY}.get(name, graph)
            config = load_config(made(name, graph=where, inverse=inverse, settings=SETTINGS, nodes=16).tables)
            assert config.completed(dim=25_450, sizes=[100] * 16).algorithm.name == arm.algorithm
            assert (config.graph is None) == (name == "server")


def test_arms_share_their_data_model_and_local_work():
    tables = [made(name, inverse=min(arm.start)).tables for name, arm in ARMS.items() if name != "server"]
    own = {"name", "mixing", "global_rate", "local_rate"}
    work = [{key: value for key, value in each["algorithm"].items() if key not in own} for each in tables]
    assert all(each == work[0] for each in work)
    assert all(each["data"] == tables[0]["data"] and each["model"] == tables[0]["model"] for each in tables)


def test_more_nodes_take_what_was_found_with_few_on_a_graph_of_their_kind():
    found = everything(SETTINGS)
    assert tuned_at(("iid", experiment.NOBODY, "alone", 1)) == ("iid", experiment.NOBODY, "alone", 1)
    assert {tuned_at(place) for place in found[64]} <= {tuned_at(place) for place in found[16]}
    assert tuned_at(("iid", "star", "models", 10)) == ("iid", "ring", "models", 10)
    assert tuned_at(("iid", "star", "sums", 10)) == ("iid", experiment.SERVED, "sums", 10)
    assert tuned_at(("iid", "torus", "torch", 1)) == ("iid", "random_regular", "dense", 1)
    assert {place[3] for place in found[64]} == {1, 10}
    assert {place[2] for place in found[16]} == {*ARMS, "torch"}
    assert set(TUNED_ON.values()) == {place[1] for place in found[16] if place[2] == "torch"}


def test_our_gossip_and_that_in_torch_learn_equally_well_and_send_equally_much():
    """They draw other batches, so only large differences are noticed. The experiment measures small ones."""
    long = replace(SMALL, rounds=20, scores=4, tested=170)
    ours, theirs = (experiment.measured(made(name, settings=long))["curve"][-1] for name in ("dense", "torch"))
    assert ours[report.ACCURACY] == pytest.approx(theirs[report.ACCURACY], abs=0.12)
    assert math.log(ours[report.CONSENSUS] / theirs[report.CONSENSUS]) == pytest.approx(0, abs=0.5)
    for at in (report.TOTAL, report.NODE, report.EDGE):
        assert ours[at] == pytest.approx(theirs[at], rel=0.1), "envelopes are a large part of messages of a small model"
    assert ours[report.STEPS] == theirs[report.STEPS] == 20


def test_torch_needs_a_graph():
    with pytest.raises(InputError, match=r"Add \[graph\]"):
        peer.graph_of(made("server", graph=experiment.SERVED).tables, 5)


def test_what_passes_with_a_server_is_counted_as_on_a_star_and_nodes_that_are_alone_send_nothing():
    line = {"consensus": None, "uplink_bytes": 10, "downlink_bytes": 30, "round": 2}
    found = experiment.counted(line, 5, "server")
    assert (found["uplink_bytes"], found["node_bytes"], found["edge_bytes"], found["steps"]) == (40, 30, 8, 4)
    alone = experiment.counted({**line, "consensus": 0.5}, 5, "alone")
    assert (alone["consensus"], alone["uplink_bytes"], alone["node_bytes"], alone["steps"]) == (0.5, 0, 0, 0)
    assert experiment.counted({"consensus": 0.5, "uplink_bytes": 10}, 5, "dense") == {"consensus": 0.5, "uplink_bytes": 10}


def test_nodes_that_are_alone_learn_from_their_own_data_only():
    alone, dense = (experiment.measured(made(name, graph=graph))["curve"][-1] for name, graph in WHERE)
    assert alone[report.CONSENSUS] > dense[report.CONSENSUS]
    assert alone[report.TOTAL] == 0 < dense[report.TOTAL]


WHERE = (("alone", experiment.NOBODY), ("dense", "ring"))


def test_a_run_that_diverges_scores_nothing():
    found = experiment.measured(made("dense", local_rate=1e30))
    assert found["diverged"]
    assert report.own(found) == 0


def test_the_experiment_runs_from_search_to_figures(tmp_path):
    short = replace(SMALL, graphs=["ring"], spreads=["iid"], inverse_ratios={"iid": [10]}, rounds=2, scores=2)
    experiment.run(replace(short, seeds={"5": [0], "6": [0]}), tmp_path)
    table = [line.strip("| ").split(" | ") for line in (tmp_path / "table.md").read_text().splitlines()[2:]]
    arms = [line[3] for line in table if line[0] == "5" and line[2] == "ring"]
    assert sorted(arms) == sorted(["dense", *SKETCHED, "torch"])
    assert "Our D-PSGD minus that in torch" in (tmp_path / "findings.md").read_text()
    assert (tmp_path / "graphs.md").read_text().splitlines()[2] == "| 5 | ring | 5 | 2 | 2 | 0.4607 |"
    for name in ("figure", "accuracy-5", "consensus-5", "accuracy-6", "consensus-6"):
        assert "</svg>" in (tmp_path / f"{name}.svg").read_text()


def test_the_dense_arm_is_read_where_it_had_sent_no_more():
    row = {"curve": [[1, 0, 0.3, 0, 0, 0, 100], [2, 0, 0.5, 0, 0, 0, 200]]}
    assert [report.affordable(row, budget) for budget in (50, 100, 199, 1000)] == [None, 30, 30, 50]


def test_gossipy_gets_our_data_and_steps_and_is_compared_when_we_had_sent_as_much():
    made = decentralised_gossipy.cases(SMALL)
    assert len(made) == 2 * 2 * 2 * 2
    assert made[0].tables["data"] == case(SMALL, ("iid", "ring", "dense", 1), 5, {}, seed=0, validation=0.0).tables["data"]
    key = {"nodes": 5, "spread": "iid", "graph": "ring", "inverse_ratio": 10, "seed": 0}
    rows = [{"key": key | {"local_rate": rate}, "accuracy": rate, "numbers": 30} for rate in (0.1, 0.3)]
    ours = {"curve": [[1, 0, 0.3, 0, 0, 0, 100], [2, 0, 0.5, 0, 0, 0, 200]]}
    text = report.peers(rows, {(5, "iid", "ring", "dense", 1): {0: ours}})
    assert text.splitlines()[-1] == "| 5 | iid | 1/10 | 0.3 | 30.0 | 120 B | 30.0 |  |  |  |"
    assert report.peers([], {}) == ""


def test_unknown_names_are_refused():
    with pytest.raises(UnknownNameError, match="no graph named 'x'"):
        replace(SETTINGS, graphs=["x"])
    with pytest.raises(UnknownNameError, match="no spread named 'x'"):
        replace(SETTINGS, spreads=["x"])
