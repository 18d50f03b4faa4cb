"""Runs with [asynchronous]: what they report, how they resume, and what is refused before round 1."""

import json
import math

import pytest
import torch
from torch import nn

import sketchfed
from sketchfed.config import load_config
from sketchfed.errors import InputError, StorageError
from sketchfed.runs.starting import prepare

ROUNDS = 8
TABLES = {
    "algorithm": {"rounds": ROUNDS, "local_steps": 2},
    "data": {"clients": 12},
    "asynchronous": {"buffer": 3, "concurrency": 7, "spread": 1.5},
    "engine": {"checkpoint_seconds": 0},
}
WAYS = {
    "dense": {},
    "error feedback": {"algorithm": {"error_feedback": True}, "codec": {"name": "top_k", "ratio": 0.1}},
    "few bits": {"codec": {"name": "sketched"}, "sketch": {"ratio": 0.2, "bits": 4}},
    "adam on both sides": {
        "algorithm": {"server": "adam"},
        "training": {"optimiser": "adam", "optimiser_state": "kept"},
    },
    "waiting": {"asynchronous": {"starts": "step", "buffer": 4, "concurrency": 4}},
}


def tables(way: str) -> dict:
    return {table: TABLES.get(table, {}) | WAYS[way].get(table, {}) for table in TABLES.keys() | WAYS[way].keys()}


def told(run) -> list[dict]:
    """All that a run measured, but for how long it took here."""
    return [{key: value for key, value in line.items() if key != "seconds"} for line in run.metrics]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stop", [1, 4])
def test_it_resumes_to_the_same_bits_with_clients_under_way(way, stop, tmp_path):
    whole = sketchfed.run(tables(way))

    def interrupt(line):
        if line["round"] == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sketchfed.run(tables(way), folder=tmp_path / "run", on_round=interrupt)
    again = sketchfed.resume(tmp_path / "run")
    assert torch.equal(whole.weights, again.weights)
    assert told(whole) == told(again)


def test_its_metrics_have_the_time_and_the_staleness(tmp_path):
    run = sketchfed.run(tables("dense"), folder=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    times = [line["time"] for line in lines]
    assert times == sorted(times)
    assert times[0] > 0
    assert lines[0]["staleness"] == 0
    assert max(line["staleness"] for line in lines) > 0
    assert {line["participants"] for line in lines} == {3}
    assert run.label == "fedavg asynchronous 3/7"
    assert "time" not in sketchfed.run({"algorithm": {"rounds": 1}}).metrics[0]


def test_a_damaged_checkpoint_is_refused(tmp_path):
    """One that was made again with its digest, so that only its content is wrong."""
    from sketchfed.runs import checkpoint

    path = tmp_path / "run" / checkpoint.FILE
    with pytest.raises(KeyboardInterrupt):
        sketchfed.run(tables("dense"), folder=tmp_path / "run", on_round=_interrupted)
    tensors, about = checkpoint._unpacked(path)
    tensors["way.flights"][0, 0] = 4_000
    path.write_bytes(checkpoint._packed(tensors, about))
    with pytest.raises(StorageError, match="client 4000 cannot arrive"):
        sketchfed.resume(tmp_path / "run")


def _interrupted(line):
    if line["round"] == 2:
        raise KeyboardInterrupt


@pytest.mark.parametrize(("delay", "times_less"), [("lognormal", 5), ("half_normal", 2)])
def test_a_buffer_needs_less_time_to_a_loss_than_rounds_that_wait(delay, times_less):
    """The paper's main claim, with as many clients at a time. The longer the tail of delays, the more it saves."""
    work = {"local_epochs": 2, "batch": 10, "local_rate": 0.2}
    delays = {"delay": delay, "spread": 1.5, "concurrency": 20}
    ways = {"buffered": (60, {"buffer": 5}), "waiting": (30, {"buffer": 20, "starts": "step"})}
    times = {}
    for name, (rounds, way) in ways.items():
        run = sketchfed.run({"algorithm": work | {"rounds": rounds}, "data": {"clients": 60}, "asynchronous": delays | way})
        times[name] = next((line["time"] for line in run.metrics if line["loss"] < 0.5), math.inf)
    assert times["waiting"] < math.inf, "rounds that wait arrive at this loss too"
    assert times["buffered"] < times["waiting"] / times_less


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"secure": {"clip": 1.0}}, "masks of a secure sum cancel only between clients of one round"),
        ({"privacy": {"noise_multiplier": 1.0, "delta": 1e-3, "clip": 1.0}}, "Everybody draws them before round 1"),
        ({"engine": {"record": True}}, "recorded exchanges"),
        ({"algorithm": {"name": "iterative", "rounds": 2}}, "each round has a sketch of its own"),
        ({"algorithm": {"name": "dbcl", "rounds": 2}}, "may mean nothing to a server that has moved on"),
        ({"algorithm": {"scaffold": True}}, "algorithm.scaffold = true: what clients and the server keep"),
        ({"algorithm": {"feddyn": 0.1}}, r"algorithm.feddyn = 0.1: what clients and the server keep"),
        ({"algorithm": {"combine": "median"}}, "only older than others"),
        ({"algorithm": {"participation": 0.5}}, "set concurrency"),
        ({"algorithm": {"prediction": True}}, "Remove prediction"),
        ({"codec": {"name": "rand_k_spatial", "ratio": 0.1}}, "decodes the packets of one round together"),
        ({"data": {"clients": 2}}, "but the run has 2 clients"),
        ({"asynchronous": {"buffers": 2}}, "no key in .asynchronous. named"),
        ({"asynchronous": {"buffer": 2.5}}, "asynchronous.buffer must be an integer"),
    ],
)
def test_what_does_not_go_with_it_is_refused_before_round_1(changes, why):
    with pytest.raises(InputError, match=why):
        prepare(load_config({"asynchronous": {"buffer": 4}} | changes))


def test_averaged_buffers_and_observers_are_refused():
    draw = torch.Generator().manual_seed(1)
    clients = [(torch.randn(6, 4, generator=draw), torch.arange(6) % 2) for _ in range(4)]
    config = {"asynchronous": {"buffer": 2}, "model": {"buffers": "average"}}
    with pytest.raises(InputError, match="it could become negative"):
        sketchfed.run(config, model=Normed(), clients=clients, test=clients[0])
    config["model"] = {"buffers": "local"}
    with pytest.raises(InputError, match=r"Remove engine\.record and on_exchange"):
        sketchfed.run(config, model=Normed(), clients=clients, test=clients[0], on_exchange=print)
    assert sketchfed.run(config | {"algorithm": {"rounds": 3}}, model=Normed(), clients=clients, test=clients[0]).metrics


def test_a_metric_of_the_same_name_is_refused():
    def time(outputs, targets):
        return 0.0

    draw = torch.Generator().manual_seed(1)
    clients = [(torch.randn(6, 4, generator=draw), torch.arange(6) % 2) for _ in range(4)]
    with pytest.raises(InputError, match="has a column 'time'"):
        sketchfed.run({"asynchronous": {"buffer": 2}}, model=nn.Linear(4, 2), clients=clients, test=clients[0], metric=time)


def test_it_is_written_to_the_configuration_with_its_defaults(tmp_path):
    sketchfed.run({"asynchronous": {"buffer": 3}, "algorithm": {"rounds": 1}}, folder=tmp_path / "run")
    kept = load_config(tmp_path / "run" / "config.toml").asynchronous
    assert (kept.buffer, kept.concurrency, kept.delay) == (3, 9, "lognormal")
