"""Each node chooses its device. Clients on different ones hold the same replicas, bit for bit."""

import json

import pytest
import torch
from fake_grid import NODES, FakeGrid, run_on, tables

from sketchfed import run, sketches
from sketchfed.errors import InputError
from sketchfed.flower import source
from sketchfed.flower.source import NodeSource
from sketchfed.runs import workload
from sketchfed.testing.devices import pretended

pytestmark = pytest.mark.usefixtures("in_a_run")
DEVICE = pretended()
NOISE = {"name": "discrete_gaussian", "noise_multiplier": 1.0, "delta": 1e-3, "insecure_noise_seed": 7}
KINDS = {
    "sketches both ways": tables({"name": "iterative"}, sketch={"ratio": 0.5}),
    "sketches of few bits": tables({"name": "iterative", "form": "projection"}, sketch={"ratio": 0.5, "bits": 8}),
    "secure sums": tables({"name": "iterative", "local_steps": 1}, sketch={"ratio": 0.5}, privacy=NOISE, secure={}),
    "whole models": tables({"name": "fedavg"}, codec={"name": "qsgd"}),
}


def on(*devices: str) -> FakeGrid:
    chosen = {
        node: {"partition-id": index, "device": device} for index, (node, device) in enumerate(zip(NODES, devices, strict=True))
    }
    return FakeGrid(settings=chosen)


@pytest.mark.parametrize("kind", KINDS)
def test_nodes_on_different_devices_work_together(kind, monkeypatch):
    """In secure sums, masks cancel only between clients whose replicas have the same digest."""
    places = []
    adjoint = sketches.Sketch.adjoint
    monkeypatch.setattr(sketches.Sketch, "adjoint", lambda self, y: (places.append(y.device.type), adjoint(self, y))[1])
    mixed = run_on(on("pretend", "cpu", "auto"), KINDS[kind])
    assert {"pretend", "cpu"} <= set(places) or kind == "whole models"
    joint = {"joint": mixed.config.joint} if mixed.config.joint else {}
    alike = run({**KINDS[kind], **joint})
    assert torch.allclose(mixed.weights, alike.weights, atol=0.05 if "secure" in kind or "bits" in kind else 1e-4)
    assert [line["participants"] for line in mixed.metrics] == [3, 3, 3]


@pytest.mark.parametrize(
    ("device", "reason"), [("cuda:9", "is not there"), ("gpu", "must be 'auto', 'cpu', 'cuda'"), (1, "got 1")]
)
def test_a_device_that_a_node_does_not_have_is_refused_before_the_run(device, reason):
    node = NodeSource({"partition-id": 0, "device": device})
    with pytest.raises(InputError, match=f"the node's setting device .*{reason}"):
        node.hello(json.dumps(tables()).encode())


def test_a_server_scores_on_its_own_device_and_nodes_train_on_theirs(monkeypatch):
    places = {"nodes": [], "server": []}

    def seen(who, make):
        return lambda module, loss, recipe, device: places[who].append(str(device)) or make(module, loss, recipe, device)

    monkeypatch.setattr(source, "make_trainer", seen("nodes", source.make_trainer))
    monkeypatch.setattr(workload, "make_trainer", seen("server", workload.make_trainer))
    run_on(on("cpu", "cpu", "cpu"), tables(rounds=1), engine={"device": "pretend"})
    assert (set(places["nodes"]), set(places["server"])) == ({"cpu"}, {"pretend:0"})
