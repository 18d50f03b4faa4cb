"""Fixtures that the tests of sketchfed and of its lab share. A `conftest.py` imports those that it needs."""

import logging
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is there: workers share the cores already

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread_a_worker():
    """Test workers share the cores already; threads of torch on top of that only fight."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def warnings_are_heard():
    """An example of the docs silences warnings for all that comes after it in the same process."""
    logging.getLogger("sketchfed").setLevel(logging.NOTSET)


@pytest.fixture
def in_a_run(tmp_path, monkeypatch):
    """Messages made here belong to a run, as in a ServerApp, and what nodes of this process keep goes to the test's folder."""
    from flwr.supercore.task_identity import TaskIdentity

    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
