"""`sketchfed flower`: what people type."""

import json
import tomllib
from pathlib import Path

import pytest
from own_data import CLIENTS
from typer.testing import CliRunner

from sketchfed import run
from sketchfed.cli import app
from sketchfed.errors import InputError
from sketchfed.flower import loopback
from sketchfed.runs.folder import METRICS
from sketchfed.secure import Identity

CONFIG = """
[algorithm]
name = "iterative"
rounds = 1
"""


def invoked(*arguments):
    return CliRunner().invoke(app, ["flower", *map(str, arguments)], catch_exceptions=False)


def test_the_app_that_it_names_is_one_that_flower_can_run():
    named = tomllib.loads((Path(invoked("app").stdout.strip()) / "pyproject.toml").read_text())
    assert named["tool"]["flwr"]["app"]["components"]["clientapp"] == "sketchfed.flower.client_app:app"


def test_an_identity_is_made_once_and_read_by_its_owner_only(tmp_path):
    path = tmp_path / "node" / "identity"
    first, second = (invoked("identity", path).stdout.strip() for _ in range(2))
    assert first == second == Identity(bytes.fromhex(path.read_text())).public.hex()
    assert path.stat().st_mode & 0o777 == 0o600


def test_one_node_is_no_federation(tmp_path):
    (tmp_path / "run.toml").write_text(CONFIG)
    with pytest.raises(InputError, match="at least 2 nodes"):
        invoked("rehearse", tmp_path / "run.toml", "--nodes", 1)


def rehearsed(folder, nodes):
    """Rehearse, and compare what was written with a run of the local engine."""
    (folder / "run.toml").write_text(CONFIG)
    said = invoked("rehearse", folder / "run.toml", "--nodes", nodes, "--out", folder, "--set", "seed=3")
    assert said.exit_code == 0, said.output
    assert (folder / "run" / "report.html").exists()
    local = run({**tomllib.loads(CONFIG), "seed": 3, "data": {"clients": nodes}})
    last = json.loads((folder / "run" / METRICS).read_text().splitlines()[-1])
    assert (last["loss"], last["uplink_bytes"]) == (local.metrics[-1]["loss"], local.metrics[-1]["uplink_bytes"])


@pytest.mark.timeout(280)
def test_a_rehearsal_is_a_run_with_a_report_and_the_bits_of_the_local_engine(federation, tmp_path, monkeypatch):
    """On the federation of all these tests in place of one of its own, which would take half a minute of CPU to start."""
    asked = []

    class Shared:
        def __init__(self, folder, *, nodes, policy):
            asked.append(("made", nodes, tomllib.loads(policy)))
            self.address, self.root_certificates = federation.address, federation.root_certificates

        def start(self):
            asked.append("started")

        def close(self):
            asked.append("closed")

    monkeypatch.setattr(loopback, "Loopback", Shared)
    rehearsed(tmp_path, nodes=CLIENTS)
    assert asked == [("made", CLIENTS, {"allow": {}}), "started", "closed"], "nothing but built-in parts is named"


@pytest.mark.slow
def test_a_rehearsal_starts_a_federation_of_its_own(tmp_path):
    rehearsed(tmp_path, nodes=2)
