"""Runs on a real federation, with TLS and authenticated nodes, end in the bits of the local engine."""

import json
import sys
import time

import pytest
import tomli_w
from fake_grid import same, tables
from own_data import CLIENTS, FOUND
from safetensors.torch import load_file

import sketchfed
from sketchfed.cli import main
from sketchfed.flower.connection import APP
from sketchfed.flower.federation import FILE, TRAFFIC
from sketchfed.flower.loopback import Loopback
from sketchfed.runs import checkpoint
from sketchfed.runs.folder import METRICS, is_finished

NOISE = {"name": "discrete_gaussian", "noise_multiplier": 1.0, "delta": 1e-3, "insecure_noise_seed": 7}
EVALUATED = {"evaluate_clients": True}
KINDS = {
    "clients that were away": tables({"name": "iterative", "participation": 0.67}, rounds=3, seed=5, training=EVALUATED),
    "blind clients": tables({"name": "dbcl", "public_start": True}, rounds=2),
    "a subspace that follows": tables("a subspace that follows", rounds=2),
    "secure sums": tables({"name": "private_iterative", "local_steps": 1}, rounds=2, privacy=NOISE, secure={}),
}


SLOW = ("blind clients", "a subspace that follows")
"""Tried on a grid in memory as well, in `test_flower_engine.py`."""


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind in SLOW else []) for kind in KINDS])
def test_a_run_comes_to_the_bits_of_the_local_engine(kind, engine):
    made = sketchfed.run({**KINDS[kind], "engine": engine})
    joint = {"joint": made.config.joint} if made.config.joint else {}
    assert same(made, sketchfed.run({**KINDS[kind], **joint}))


def test_an_interrupted_run_goes_on_with_what_its_clients_kept(engine, tmp_path):
    chosen = tables({"name": "fedavg", "error_feedback": True}, rounds=2, codec={"name": "top_k", "size": 9})

    def stop(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sketchfed.run({**chosen, "engine": engine}, folder=tmp_path / "run", on_round=stop)
    assert same(sketchfed.resume(tmp_path / "run"), sketchfed.run(chosen))


def test_the_command_line_runs_a_federation(engine, tmp_path, monkeypatch):
    (tmp_path / "run.toml").write_text(tomli_w.dumps({**tables(rounds=1), "name": "run", "engine": engine}))
    monkeypatch.setattr(sys, "argv", ["sketchfed", "run", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    sketchfed.run(tables(rounds=1), folder=tmp_path / "local")
    assert written(tmp_path / "out" / "run") == written(tmp_path / "local")
    assert all((tmp_path / "out" / "run" / name).stat().st_size for name in ("report.html", FILE, TRAFFIC))


@pytest.mark.slow
def test_flower_runs_the_packaged_app_on_nodes_with_data_of_their_own(tmp_path):
    config, folder = tmp_path / "run.toml", tmp_path / "run"
    config.write_text(tomli_w.dumps(tables(rounds=2)))
    own = {"nodes": CLIENTS, "node_config": lambda client: {"partition-id": client, "data": "own_data:load"}}
    with Loopback(tmp_path / "flower", **own, environment=FOUND) as federation:
        federation.start_executor()
        federation.cli("run", str(APP), "--run-config", f'config="{config}" folder="{folder}"')
        until = time.monotonic() + 200
        while not (status := status_of_its_run(federation)).startswith("finished") and time.monotonic() < until:
            time.sleep(0 if is_finished(folder) else 3)
        assert status == "finished:completed", federation.logs()["executor"][-3000:]
    sketchfed.run(tables(rounds=2), folder=tmp_path / "local")
    assert written(folder) == written(tmp_path / "local")
    members = json.loads((folder / FILE).read_text())["members"]
    assert [(member["own"], member["examples"]) for member in members] == [(True, 10), (True, 11), (True, 12)]


def status_of_its_run(federation):
    return json.loads(federation.cli("list", "--format", "json"))["runs"][0]["status"]


def written(folder):
    """What a run's folder says of its rounds and of its end, but not how long it took."""
    lines = [{**json.loads(line), "seconds": 0} for line in (folder / METRICS).read_text().splitlines()]
    return lines, {name: tensor.tolist() for name, tensor in load_file(folder / checkpoint.FILE).items()}
