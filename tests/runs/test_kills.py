"""Runs that are killed at any instant and resumed end, and recorded what passed, as if they had never stopped, bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from killable import Server
from safetensors.torch import load_file

import sketchfed
from sketchfed.config import load_config
from sketchfed.runs.wire_file import WIRE, read_wire

ROUNDS = 14
POLL = 0.004
"""Seconds: a round takes a few times as long."""
COMMON = {"rounds": ROUNDS, "local_steps": 2, "batch": 10, "local_rate": 0.3}
CASES = {
    "fedavg": {"algorithm": {"name": "fedavg", "global_momentum": 0.5}},
    "four-bits": {
        "algorithm": {"name": "iterative", "participation": 0.3, "global_momentum": 0.5},
        "sketch": {"ratio": 0.02, "bits": 4},
    },
    "projection": {"algorithm": {"name": "iterative", "form": "projection", "participation": 0.3}},
    "fetchsgd": {"algorithm": {"name": "fetchsgd", "participation": 0.5}, "sketch": {"ratio": 0.2}},
}
"""With and without history in the checkpoint, memories of clients, and state of the server's own."""


def write_config(path: Path, case: str) -> Path:
    tables = {
        "name": case,
        "data": {"clients": 10},
        "model": {"hidden": [16]},
        "engine": {"checkpoint_seconds": 0, "record": True},
        **CASES[case],
    }
    tables["algorithm"] = COMMON | CASES[case]["algorithm"]
    path.write_text(load_config(tables).to_toml())
    return path


def rounds_in(folder: Path) -> int:
    """How many lines of metrics there are by now."""
    try:
        return (folder / "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def left_behind(folder: Path) -> tuple[dict[str, torch.Tensor], list[dict]]:
    """All numbers that a run has at its end: the checkpoint with the memories of clients, and the metrics but for time."""
    tensors = load_file(folder / "checkpoint.safetensors")
    for file in sorted((folder / "memories").glob("*")):
        tensors[file.name] = load_file(file)["memory"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return tensors, [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def assert_same(folder: Path, whole: Path) -> None:
    (tensors, lines), (wanted, wanted_lines) = left_behind(folder), left_behind(whole)
    assert lines == wanted_lines
    assert [line["round"] for line in lines] == list(range(1, ROUNDS + 1))
    assert tensors.keys() == wanted.keys()
    assert all(tensors[name].numpy().tobytes() == wanted[name].numpy().tobytes() for name in wanted)
    assert read_wire(folder / WIRE) == read_wire(whole / WIRE)
    config = [(of / "config.toml").read_text() for of in (folder, whole)]
    assert config[0] == config[1]
    totals = [(line["uplink_bytes"], line["downlink_bytes"]) for line in lines]
    assert all(before[0] < after[0] and before[1] < after[1] for before, after in pairwise(totals))


def killed(server: Server, folder: Path, log: Path, command: list[str], *, at_round: int, delay: float) -> bool:
    """Start a command and kill it a little after its run came to a round; False if it was faster."""
    pid = server.start(log, *command)
    while rounds_in(folder) < at_round and server.is_running(pid):
        time.sleep(POLL)
    time.sleep(delay)
    if server.is_running(pid):
        os.kill(pid, signal.SIGKILL)
    code = server.wait(pid)
    assert code in (0, -signal.SIGKILL), log.read_text()
    return code != 0


def assert_ends_alike(folder: Path, config: Path, whole: Path) -> None:
    """Let a run that was stopped go on to its end, and compare it with one that never was."""
    sketchfed.resume(folder)
    sketchfed.run(config, folder=whole)
    assert_same(folder, whole)


def run_with_kills(server: Server, tmp_path: Path, case: str, *, kills: int, seed: int) -> int:
    """Kill a run at instants spread over its life, then let it end; the number of kills that met it alive."""
    draw = random.Random(seed)
    config, log = write_config(tmp_path / f"{case}.toml", case), tmp_path / "log"
    folder = tmp_path / "runs" / case
    command = ["run", "--resume", str(config), "--out", str(tmp_path / "runs")]
    instants = [(0, draw.uniform(0, 0.2)), *sorted((draw.randrange(ROUNDS), draw.uniform(0, 0.04)) for _ in range(kills - 1))]
    hits = sum(killed(server, folder, log, command, at_round=at, delay=delay) for at, delay in instants)
    assert_ends_alike(folder, config, tmp_path / "whole")
    return hits


@pytest.mark.parametrize("case", CASES)
def test_a_killed_run_is_resumed_bit_for_bit(server, tmp_path, case):
    """Three kills each: at the start, then spread over the rounds, most of them while a checkpoint is being written."""
    assert run_with_kills(server, tmp_path, case, kills=3, seed=len(case)) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("case", CASES)
def test_a_killed_run_is_resumed_bit_for_bit_many_times(server, tmp_path, case, seed):
    assert run_with_kills(server, tmp_path, case, kills=12, seed=100 + seed) >= 9


def test_an_interrupted_run_is_resumed_bit_for_bit(server, tmp_path):
    """Ctrl-C, and a termination as batch systems send it."""
    config, log = write_config(tmp_path / "four-bits.toml", "four-bits"), tmp_path / "log"
    command = ["run", "--resume", str(config), "--out", str(tmp_path / "runs")]
    folder = tmp_path / "runs" / "four-bits"
    for number, stop in enumerate((signal.SIGINT, signal.SIGTERM), start=1):
        pid = server.start(log, *command)
        while rounds_in(folder) < 4 * number and server.is_running(pid):
            time.sleep(POLL)
        os.kill(pid, stop)
        assert server.wait(pid) not in (0, 2)
    assert "Traceback" not in log.read_text()
    assert_ends_alike(folder, config, tmp_path / "whole")


def test_two_processes_do_not_share_a_folder(server, tmp_path):
    config, log = write_config(tmp_path / "fedavg.toml", "fedavg"), tmp_path / "log"
    command = ["run", "--resume", str(config), "--out", str(tmp_path / "runs")]
    folder = tmp_path / "runs" / "fedavg"
    first = server.start(log, *command)
    while rounds_in(folder) < 1 and server.is_running(first):
        time.sleep(POLL)
    os.kill(first, signal.SIGSTOP)
    try:
        assert server.wait(server.start(tmp_path / "second", *command)) == 2
    finally:
        os.kill(first, signal.SIGKILL)
        server.wait(first)
    said = (tmp_path / "second").read_text()
    assert f"another process is working on {folder}. Wait for it" in said
    assert "Traceback" not in said
    assert_ends_alike(folder, config, tmp_path / "whole")


@pytest.mark.slow
def test_the_installed_command_survives_a_kill(tmp_path):
    """Once without the server: a process that imports for itself is killed at work."""
    config = write_config(tmp_path / "projection.toml", "projection")
    command = [sys.executable, "-m", "sketchfed.cli", "run", str(config), "--out", str(tmp_path / "runs")]
    folder = tmp_path / "runs" / "projection"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while rounds_in(folder) < 5 and process.poll() is None:
        time.sleep(POLL)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert_ends_alike(folder, config, tmp_path / "whole")
