"""Runs without a server on several ranks: their bits, and what happens when a rank dies."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from nodes_on_ranks import lines, stop, tables

import sketchfed
from rounds.certified import tls_files
from sketchfed.config import load_config
from sketchfed.errors import InputError
from sketchfed.runs.rank_nodes import layout_of

HERE = Path(__file__).parent
LIMIT = 120.0
"""Seconds after which a launch is ended. On an idle machine it takes about ten."""


class Launched(NamedTuple):
    codes: list[int]
    """How the ranks ended: 0, or the negative number of a signal."""
    logs: list[str]

    @property
    def said(self) -> list[Any]:
        """What rank 0 printed as JSON."""
        return _printed(self.logs[0])


def _printed(log: str) -> list[Any]:
    found = []
    for line in log.splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def launched(trial: str, ranks: int, folder: Path) -> Launched:
    """Run a trial of `nodes_on_ranks.py`. All processes have ended when this returns."""
    paths = os.pathsep.join([str(HERE), *sys.path])
    command = [sys.executable, str(HERE / "nodes_on_ranks.py"), trial, str(ranks)]
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True)
    try:
        process.wait(LIMIT)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return Launched(
        json.loads((folder / "codes.json").read_text()),
        [(folder / f"rank-{rank}.log").read_text() for rank in range(ranks)],
    )


def test_eight_ranks_give_the_bits_of_one_process_and_seven_go_on_when_one_is_killed(tmp_path: Path) -> None:
    made = launched("one_node_on_each_of_eight", 8, tmp_path)
    assert made.codes == [0, 0, 0, 0, 0, -signal.SIGKILL, 0, 0]
    (found,) = made.said
    assert found["same"]
    rows = found["metrics"]
    assert [row["nodes_gone"] for row in rows] == [0, 0, 1, 1, 1, 1]
    assert [row["participants"] for row in rows] == [8, 8, 7, 7, 7, 7]
    # In round 3 one of its two neighbours still heard it, and later none did.
    assert [row["lost"] for row in rows] == [0, 0, 1, 3, 5, 7]
    assert rows[-1]["loss"] < rows[1]["loss"]
    assert all(sum("rank 5 on" in line for line in made.logs[rank].splitlines()) == 1 for rank in (0, 4, 6))


def test_ranks_with_several_nodes_give_the_bits_of_one_process_and_any_number_of_ranks_resumes(tmp_path: Path) -> None:
    tls_files(tmp_path / "tls")
    made = launched("several_nodes_on_each", 2, tmp_path)
    assert 0 not in made.codes
    (found,) = made.said
    assert set(found.values()) == {True}, found
    assert "ended the run" in made.logs[1]
    whole = sketchfed.run(tables("gossip with failures", "local"))
    shutil.copytree(tmp_path / "interrupted", tmp_path / "from-ranks")
    on_one = sketchfed.resume(tmp_path / "interrupted", engine="local")
    assert torch.equal(on_one.weights, whole.weights)
    assert lines(on_one) == lines(whole)
    with pytest.raises(KeyboardInterrupt):
        sketchfed.run(tables("gossip with failures", "local"), folder=tmp_path / "from-local", on_round=stop)
    assert launched("resumed", 3, tmp_path).said == [True, True]
    summary = json.loads((tmp_path / "from-local" / "summary.json").read_text())
    assert summary["ranks"]["count"] == 3
    assert summary["ranks"]["payload_up"] > 0


def test_ranks_finish_the_run_when_rank_0_is_killed(tmp_path: Path) -> None:
    made = launched("rank_0_dies", 3, tmp_path)
    assert made.codes == [-signal.SIGKILL, 0, 0]
    for log in made.logs[1:]:
        assert "rank 0 on" in log
        assert "is gone" in log
        assert _printed(log) == [True]


def test_a_rank_that_was_late_catches_up(tmp_path: Path) -> None:
    made = launched("a_rank_stands_still", 3, tmp_path)
    assert made.codes == [0, 0, 0]
    (rows,) = made.said
    gone = [row["nodes_gone"] for row in rows]
    assert gone[:2] == [0, 0]
    assert gone[2:6] == [1, 1, 1, 1]
    assert gone[-1] == 0
    assert rows[-1]["participants"] == 3
    assert 0 <= rows[-1]["lost"] - 2 * sum(gone) <= 2  # it may miss some of the first round that it is back in


def test_a_rank_that_missed_many_rounds_goes_on_where_the_others_are(tmp_path: Path) -> None:
    made = launched("a_rank_misses_many_rounds", 3, tmp_path)
    assert made.codes == [0, 0, 0]
    (gone,) = made.said
    assert sum(gone) > 20
    assert gone[-1] == 0
    assert "this rank was late" in made.logs[2]
    assert "goes on without rank 2 on" in made.logs[0] + made.logs[1]


def test_a_run_whose_only_root_is_killed_ends_with_the_reason(tmp_path: Path) -> None:
    made = launched("the_root_dies", 3, tmp_path)
    assert made.codes[1] == -signal.SIGKILL
    assert 0 not in made.codes
    for log in (made.logs[0], made.logs[2]):
        assert "takes its steps at node 1, and its home, rank 1 on" in log
        assert "use algorithm 'gossip'" in log


def test_nodes_are_shared_out_by_the_sizes_of_their_data() -> None:
    assert layout_of([5] * 8, 8).homes == tuple(range(8))
    homes = layout_of([100, 10, 10, 80, 10, 10], 2).homes
    loads = [sum(size for size, home in zip([100, 10, 10, 80, 10, 10], homes, strict=True) if home == rank) for rank in (0, 1)]
    assert loads == [110, 110]
    assert layout_of([5, 5], 3).places == [0, 1, 0, 1, 2]  # the last three are the ranks themselves


def test_what_ranks_cannot_do_without_a_server_is_refused() -> None:
    with pytest.raises(InputError, match=r"\[secure\].*engine.name = 'local'"):
        load_config({**tables("models", "ranks"), "training": {}, "secure": {}})
    with pytest.raises(InputError, match=r"engine.record.*engine.name = 'local'"):
        load_config(tables("gossip", "ranks", record=True))


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"name": "ranks", "certificate": "own.pem"}, "engine.key is missing"),
        ({"listen": "127.0.0.1:7000"}, "links between ranks"),
        ({"name": "ranks", "routes": {"one": "127.0.0.1:7001"}}, "by its number"),
    ],
)
def test_settings_of_links_that_contradict_each_other_are_refused(engine: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_config({"graph": {}, "algorithm": {"name": "gossip"}, "engine": engine})


def test_settings_of_links_survive_a_file() -> None:
    engine = {"name": "ranks", "listen": "127.0.0.1:7000", "routes": {"1": "127.0.0.1:7001"}}
    config = load_config({"graph": {}, "algorithm": {"name": "gossip"}, "engine": engine})
    assert load_config(config.to_tables()) == config
