"""`sketchfed audit` as people run it."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from functools import partial

import pytest
from typer.testing import CliRunner

from sketchfed.audits import defence
from sketchfed.cli import app
from sketchfed.errors import InputError
from sketchfed.runs import run

CONFIG = """
[data]
clients = 3
[model]
hidden = [8]
[algorithm]
name = "iterative"
rounds = 4
local_steps = 1
batch = 1
[sketch]
ratio = 0.3
[engine]
workers = 1
"""
QUICK = ["--victims", "1", "--iterations", "1", "--canaries", "8", "--processes", "1"]


def invoke(*arguments):
    return CliRunner().invoke(app, ["audit", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture(autouse=True, scope="module")
def _attacks_do_not_try_hard():
    """Beside the options of the command line there are some that only Python has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(defence, "Effort", partial(defence.Effort, judged=2, member_rounds=2, shadows=20))
        yield


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("configs") / "mine.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def audit(config, _attacks_do_not_try_hard, tmp_path_factory):
    """The folder of an audit with all attacks, and what was printed."""
    folder = tmp_path_factory.mktemp("audits") / "audit"
    result = invoke(config, "--out", folder, *QUICK)
    assert result.exit_code == 0
    return folder, result.output


def test_a_configuration_is_audited_beside_the_undefended_way(audit):
    folder, printed = audit
    assert "undefended" in printed
    record = json.loads((folder / "audit.json").read_text())
    assert [defence["name"] for defence in record["defences"]] == ["undefended", "mine"]
    page = (folder / "audit.html").read_text()
    assert "<script" not in page
    assert "data:image/png;base64" in page


def test_a_recorded_run_is_audited_as_it_was_sent(tmp_path):
    trained = run({**_tables(), "engine": {"record": True, "workers": 1}}, folder=tmp_path / "kept")
    result = invoke(tmp_path / "kept", "--out", tmp_path / "audit", *QUICK)
    assert result.exit_code == 0
    record = json.loads((tmp_path / "audit" / "audit.json").read_text())
    kept = record["defences"][1]
    assert kept["name"] == "kept"
    assert kept["accuracy"] == trained.accuracy
    assert kept["uplink_bytes"] == trained.metrics[-1]["uplink_bytes"]
    steps = [finding for finding in kept["findings"] if finding["attack"] == "as sent"]
    assert all("were not kept" in finding["reason"] for finding in steps)


def test_a_run_that_was_not_recorded_is_trained_again(tmp_path):
    run(_tables(), folder=tmp_path / "kept")
    assert invoke(tmp_path / "kept", "--out", tmp_path / "audit", "--attack", "first layer", *QUICK).exit_code == 0
    record = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert [defence["name"] for defence in record["defences"]] == ["undefended", "kept"]


def test_an_audit_that_is_there_is_not_overwritten_unless_it_goes_on(config, audit):
    folder, _ = audit
    before = (folder / "audit.json").read_text()
    with pytest.raises(InputError, match="holds an audit already"):
        invoke(config, "--out", folder, *QUICK)
    assert invoke(config, "--out", folder, "--resume", *QUICK).exit_code == 0
    assert (folder / "audit.json").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--resume"], "Name that folder"),
        (["--set", "algorithm.rounds=3"], "none was named"),
        (["--image", "8x8"], "such as 1,8,8"),
        (["--image", "2,8,8"], "1 or 3 channels"),
    ],
)
def test_wrong_options_are_explained(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=said):
        invoke(*arguments)


def test_settings_do_not_change_a_run(tmp_path):
    run(_tables(), folder=tmp_path / "kept")
    with pytest.raises(InputError, match="a RUN is audited as it was"):
        invoke(tmp_path / "kept", "--set", "algorithm.rounds=3")


def test_an_interrupt_ends_all_processes_and_leaves_what_is_finished(config, tmp_path):
    """Of three ways to train two are soon done; the third would take hours, so the interrupt always comes in time."""
    out, long = tmp_path / "audit", tmp_path / "long.toml"
    long.write_text(CONFIG.replace("rounds = 4", "rounds = 10_000_000"))
    command = [sys.executable, "-m", "sketchfed.cli", "audit", config, long, "--attack", "first layer", "--out", out]
    command += [*QUICK[:-1], "2"]
    heard = partial(signal.signal, signal.SIGINT, signal.default_int_handler)  # who is started in the background ignores it
    with subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=heard
    ) as process:
        try:
            while not (out / "audit.json").exists():
                assert process.poll() is None, process.stdout.read().decode()
                time.sleep(0.1)
            os.killpg(process.pid, signal.SIGINT)
            said = process.communicate(timeout=60)[0].decode()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, said
    assert "--resume --out" in said
    assert "Traceback" not in said
    assert "interrupted" in (out / "audit.html").read_text()
    assert _ended(process.pid)


def _ended(group):
    """Whether all processes of a group come to their end in time."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def _tables():
    return tomllib.loads(CONFIG)
