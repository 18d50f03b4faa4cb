import os
from contextlib import ExitStack
from importlib.util import find_spec

import pytest

import plugin
from fixtures import in_a_run  # noqa: F401

collect_ignore_glob = [] if find_spec("flwr") else ["test_*.py"]


@pytest.fixture(scope="session")
def plugin_site(tmp_path_factory):
    """The folder in which the plug-in of the tutorial is installed."""
    return plugin.install(tmp_path_factory.mktemp("plugin"))


running = ExitStack()
"""The federation, once a test has asked for it."""


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """End the federation with the last test of these folders: idle nodes go on asking for messages, which is not free."""
    if nextitem is None or nextitem.path.parent.name != item.path.parent.name:
        running.close()


@pytest.fixture(scope="session")
def federation(plugin_site, tmp_path_factory):
    """A SuperLink and three warm SuperNodes for all files. Each has a part of the data set that a configuration names.

    The nodes find the modules of these tests and the plug-in. The SuperLink keeps its state in memory, which costs half the
    CPU of its database; `test_loopback.py` has one with a database.
    """
    from fake_grid import POLICY
    from own_data import CLIENTS, FOUND

    from sketchfed.flower.loopback import Loopback

    found = {"PYTHONPATH": os.pathsep.join([FOUND["PYTHONPATH"], str(plugin_site)])}
    folder, policy = tmp_path_factory.mktemp("federation"), POLICY.read_text()
    loopback = Loopback(folder, nodes=CLIENTS, environment=found, policy=policy, database=False)
    return running.enter_context(loopback)


@pytest.fixture
def engine(federation):
    """The table [engine] for a run on it."""
    certificates = str(federation.root_certificates)
    return {"name": "flower", "address": federation.address, "root_certificates": certificates, "wait": 60, "deadline": 60}
