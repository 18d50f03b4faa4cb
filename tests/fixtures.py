"""Fixtures that the tests of sketchfed and of its lab share. A `conftest.py` imports those that it needs."""

import logging

import pytest


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
