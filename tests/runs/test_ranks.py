"""Runs on the ranks of a launch: the bits of the local engine, and clear ends when a rank is gone or differs."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import tomli_w
from on_ranks import KINDS, lines
from safetensors.torch import load_file
from tiny import tables

import sketchfed
from ranks import Ranks
from sketchfed.config import load_config
from sketchfed.errors import InputError
from sketchfed.runs.folder import is_finished

ROUNDS = 300


def run_file(folder, **engine):
    chosen = tables("error feedback", rounds=ROUNDS, name="ranks", checkpoint_seconds=0, workers=1, **engine)
    chosen["algorithm"]["local_steps"] = 100
    (folder / "run.toml").write_text(tomli_w.dumps({**chosen, "name": "run"}))
    return folder / "run.toml"


def until_round(number, folder, ranks):
    """Wait until a run has come to a round."""
    end = time.monotonic() + 60
    while time.monotonic() < end and all(process.poll() is None for process in ranks.processes):
        try:
            if (folder / "metrics.jsonl").read_bytes().count(b"\n") >= number:
                return
        except FileNotFoundError:
            pass
        time.sleep(0.02)
    raise AssertionError([log.read_text() for log in ranks._logs])


def test_results_are_the_bits_of_the_local_engine_for_every_kind_of_run(tmp_path):
    with Ranks(3, Path(__file__).with_name("on_ranks.py"), folder=tmp_path) as ranks:
        ended = ranks.ended()
    for code, said in ended:
        assert code == 0, said
        assert [line for line in said.splitlines() if ": same" in line] == [f"{name}: same" for name in (*KINDS, "own loop")]


def test_a_run_whose_ranks_are_killed_is_resumed_on_fewer_ranks_and_on_none(tmp_path):
    config, folder = run_file(tmp_path), tmp_path / "runs" / "run"
    with Ranks(3, "-m", "sketchfed", "run", config, "--set", "engine.deadline=20", folder=tmp_path) as ranks:
        until_round(20, folder, ranks)
        ranks.kill(2)
        start = time.monotonic()
        zero, one, two = ranks.ended()
        assert time.monotonic() - start < 10
    assert (zero.code, one.code, two.code) == (2, 2, -signal.SIGKILL)
    assert "sketchfed: rank 2 on " in zero.said
    assert "is gone: its connection was lost" in zero.said
    assert "continue with --resume, on any number of ranks" in " ".join(zero.said.split())
    assert one.said.startswith("sketchfed: rank 0 on ")
    assert "ended the run: rank 2 on " in one.said
    assert two.said == ""  # ranks other than 0 print nothing but errors

    with Ranks(2, "-m", "sketchfed", "run", "--resume", folder, folder=tmp_path) as ranks:
        until_round(60, folder, ranks)
        ranks.kill(0)
        zero, one = ranks.ended()
    assert (zero.code, one.code) == (-signal.SIGKILL, 2)
    assert "rank 0 on " in one.said
    assert "is gone" in one.said

    moved = [json.loads(line) for line in (folder / "ranks.jsonl").read_text().splitlines()]
    assert {len(line["clients"]) for line in moved} == {2, 3}
    assert all(line["sent"] > 0 and line["received"] > 0 for line in moved if sum(line["clients"][1:]))
    assert not is_finished(folder)
    made = sketchfed.resume(folder, engine="local")
    alone = sketchfed.run({**load_config(config).to_tables(), "engine": {"name": "local"}}, folder=tmp_path / "alone")
    assert lines(made) == lines(alone)
    mine, others = kept(folder), kept(tmp_path / "alone")
    assert mine.keys() == others.keys()
    assert len([name for name in mine if name.startswith("memories")]) == 4
    assert all(mine[name].equal(others[name]) for name in mine)


def kept(folder):
    """The checkpoint and the clients' memories, but not when each of them was saved."""
    tensors = load_file(folder / "checkpoint.safetensors")
    del tensors["saved"]
    for file in sorted((folder / "memories").glob("*")):
        tensors[f"memories of {file.name.partition('-')[0]}"] = load_file(file)["memory"]
    return tensors


def test_a_rank_that_hangs_ends_the_run_within_the_deadline(tmp_path):
    config, folder = run_file(tmp_path, deadline=2.0), tmp_path / "runs" / "run"
    with Ranks(2, "-m", "sketchfed", "run", config, folder=tmp_path) as ranks:
        until_round(5, folder, ranks)
        ranks.kill(1, signal.SIGSTOP)
        start = time.monotonic()
        assert ranks.processes[0].wait(30) == 2
        assert time.monotonic() - start < 15
        ranks.kill(1)
        zero, _ = ranks.ended()
    assert "rank 1 on " in zero.said
    assert "seconds, and engine.deadline = 2" in zero.said


OTHER_DATA = "import sys, tiny; real = tiny.points; "
OTHER_DATA += "tiny.points = lambda count, first=0: real(count, first=7); "
OTHER_DATA += "from sketchfed.cli import main; sys.argv = ['sketchfed', 'run', 'run.toml']; main()"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (["-m", "sketchfed", "run", "run.toml", "--set", "algorithm.batch=4"], "algorithm.batch is 4, and 5 at rank 0"),
        (["-c", OTHER_DATA], "was started with other data: client 0, 1, 2, 3 holds other examples"),
    ],
    ids=["another configuration", "other data"],
)
def test_a_rank_with_something_else_is_refused_before_round_1(tmp_path, other, said):
    run_file(tmp_path)
    usual = ["-m", "sketchfed", "run", "run.toml"]
    with Ranks(2, own=[usual, other], folder=tmp_path) as ranks:
        zero, one = ranks.ended()
    assert (zero.code, one.code) == (2, 2)
    assert f"rank 1 on {os.uname().nodename}" in zero.said
    assert said in " ".join(zero.said.split())
    assert said in " ".join(one.said.split())
    assert not (tmp_path / "runs" / "run" / "metrics.jsonl").exists()


def test_a_run_on_ranks_needs_a_launch_and_the_error_says_how(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(InputError, match="torchrun --nproc-per-node 2 -m sketchfed run CONFIG"):
        sketchfed.run({"engine": {"name": "ranks"}})


def test_flower_and_ranks_do_not_take_over_from_each_other(tmp_path):
    sketchfed.run({"algorithm": {"rounds": 1, "local_steps": 1}, "data": {"clients": 2}}, folder=tmp_path / "run")
    with pytest.raises(InputError, match="Only 'local' and 'ranks' take over from each other"):
        sketchfed.resume(tmp_path / "run", engine="flower")
