"""What a run without a server tells about its nodes and its graph."""

import json

import pytest
import torch
from torch import nn

from rounds.peers.graphs_of_tiny import FAILING, tables
from sketchfed import resume, run
from sketchfed.errors import InputError
from sketchfed.graphs import metropolis, spectral_gap
from sketchfed.graphs.named import ring
from sketchfed.report import read


def graph_of(folder) -> dict:
    return json.loads((folder / "graph.json").read_text())


def test_the_folder_holds_the_graph_with_the_bytes_on_its_edges(tmp_path):
    result = run(tables("sketched"), folder=tmp_path / "run")
    found = graph_of(tmp_path / "run")
    assert {key: value for key, value in found.items() if key not in ("links", "spectral_gap")} == {
        "name": "ring", "nodes": 6, "round": 5, "diameter": 3, "redraw": 0,
    }  # fmt: skip
    assert found["spectral_gap"] == pytest.approx(spectral_gap(metropolis(ring(6))))
    assert [tuple(link[:2]) for link in found["links"]] == list(ring(6).edges)
    assert sum(up + down for _, _, up, down in found["links"]) == result.metrics[-1]["uplink_bytes"]
    assert max(up + down for _, _, up, down in found["links"]) == result.metrics[-1]["edge_bytes"]
    network = read(tmp_path / "run").network
    assert max(network.sent) == result.metrics[-1]["node_bytes"]


@pytest.mark.parametrize("kind", ["sketched", "exact", "models", "blind neighbours"])
def test_a_resumed_run_has_the_graph_of_an_uninterrupted_one(kind, tmp_path):
    made = tables(kind, FAILING, nodes=9) | {"engine": {"checkpoint_seconds": 0}}

    def stop(line):
        if line["round"] == 2:
            raise KeyboardInterrupt

    run(made, folder=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(made, folder=tmp_path / "run", on_round=stop)
    assert graph_of(tmp_path / "run")["round"] == 2
    resume(tmp_path / "run")
    assert graph_of(tmp_path / "run") == graph_of(tmp_path / "whole")


def test_a_graph_that_is_drawn_anew_has_all_links_that_carried_bytes(tmp_path):
    graph = {"name": "erdos_renyi", "probability": 0.3, "redraw": 1}
    result = run(tables("dense", graph, nodes=9), folder=tmp_path / "run")
    found = graph_of(tmp_path / "run")
    assert found["redraw"] == 1
    assert sum(up + down for _, _, up, down in found["links"]) == result.metrics[-1]["uplink_bytes"]


def test_the_farthest_node_is_measured_in_scored_rounds():
    lines = run(tables("dense") | {"engine": {"evaluate_every": 2}}).metrics
    assert [line["farthest_loss"] is not None for line in lines] == [line["loss"] is not None for line in lines]
    assert [line["farthest_accuracy"] is not None for line in lines] == [False, True, False, True, True]
    assert lines[1]["farthest_loss"] != lines[1]["loss"]


def test_nodes_that_are_equal_are_as_good_as_their_mean():
    last = run(tables("exact")).metrics[-1]
    assert last["consensus"] == 0
    assert (last["farthest_loss"], last["farthest_accuracy"]) == (last["loss"], last["accuracy"])


def test_runs_with_a_server_have_neither(tmp_path):
    made = {key: table for key, table in tables("exact", rounds=1).items() if key != "graph"}
    result = run(made, folder=tmp_path / "run")
    assert "farthest_accuracy" not in result.metrics[0]
    assert not (tmp_path / "run" / "graph.json").exists()


def test_a_metric_with_the_name_of_a_column_is_refused():
    def evaluate(model, data, context):
        return {"loss": 1.0, "consensus": 2.0}

    x, y = torch.randn(12, 4), torch.arange(12) % 3
    made = {"algorithm": {"name": "gossip", "rounds": 1}, "graph": {"name": "ring"}}
    with pytest.raises(InputError, match="of a run without a server has a column 'consensus'"):
        run(made, model=nn.Linear(4, 3), clients=[(x, y)] * 3, test=(x, y), evaluate=evaluate)
