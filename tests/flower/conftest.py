from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("flwr") else ["test_*.py"]


@pytest.fixture
def in_a_run(tmp_path, monkeypatch):
    """Messages made here belong to a run, as in a ServerApp, and what nodes of this process keep goes to the test's folder."""
    from flwr.supercore.task_identity import TaskIdentity

    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A SuperLink and three SuperNodes that are warm; each has a part of the data set that a configuration names."""
    from own_data import CLIENTS, FOUND

    from sketchfed.flower.loopback import Loopback

    with Loopback(tmp_path_factory.mktemp("federation"), nodes=CLIENTS, environment=FOUND) as running:
        yield running


@pytest.fixture
def engine(federation):
    """The table [engine] for a run on it."""
    certificates = str(federation.root_certificates)
    return {"name": "flower", "address": federation.address, "root_certificates": certificates, "wait": 60, "deadline": 60}
