import re
import signal
import subprocess
import threading
import time

import pytest

pytest.importorskip("flwr")

from sketchfed.errors import InputError
from sketchfed.flower.loopback import Loopback
from sketchfed.flower.worker import READY, alive, work

NOBODY = "127.0.0.1:1"
NODES = 2


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    loopback = Loopback(tmp_path_factory.mktemp("loopback"), nodes=NODES)
    with loopback:
        yield loopback
    assert loopback.pids() == []


def announced(federation, index):
    """The ids under which a node came up, oldest first."""
    return re.findall(r"SuperNode ID: (\d+)", federation.logs()[f"node-{index}"])


def test_all_nodes_are_online_and_their_workers_ready(federation):
    assert federation.online() == NODES
    assert [announced(federation, index) for index in range(NODES)] == [[str(node_id)] for node_id in federation.node_ids]
    assert all(READY in federation.logs()[f"worker-{index}"] for index in range(NODES))


def test_the_command_line_of_flower_finds_the_federation(federation):
    assert str(federation.node_ids[0]) in federation.cli("supernode", "list", "--format", "json")


def test_a_killed_node_comes_back_at_once_under_the_same_id(federation):
    before = set(federation.pids())
    federation.kill_node(1)
    lost = before - set(federation.pids())
    assert len(lost) >= 2, "the SuperNode and its worker"
    federation.start_node(1)
    end = time.monotonic() + 60
    while len(announced(federation, 1)) < 2 and time.monotonic() < end:  # the SuperLink may not know yet that it was gone
        time.sleep(0.1)
    federation.wait_online(NODES, timeout=60)
    assert announced(federation, 1) == [str(federation.node_ids[1])] * 2


def test_a_killed_link_comes_back_and_still_knows_its_nodes(federation):
    known = list(federation.node_ids)
    federation.kill_link()
    federation.start_link()
    assert federation.node_ids == known


def test_a_running_node_is_not_started_twice(federation):
    with pytest.raises(InputError, match="running already"):
        federation.start_node(0)


@pytest.mark.slow
def test_closing_leaves_no_process_of_cold_nodes(tmp_path):
    """The fixture asserts the same of warm ones."""
    loopback = Loopback(tmp_path, nodes=1, warm=False).start()
    pids = loopback.pids()
    assert len(pids) >= 3, "the SuperLink, the SuperNode and its own executor"
    loopback.close()
    assert loopback.pids() == []
    assert not any(alive(pid) for pid in pids)


def test_a_federation_needs_nodes(tmp_path):
    with pytest.raises(InputError, match="one or more"):
        Loopback(tmp_path, nodes=0)


def test_a_worker_waits_for_its_node_and_ends_on_a_signal(caplog):
    handler = signal.getsignal(signal.SIGTERM)

    def stop():
        while signal.getsignal(signal.SIGTERM) is handler or not caplog.records:
            time.sleep(0.01)
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=stop).start()
    work(NOBODY, insecure=True, preload=())
    assert READY in caplog.text
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_worker_ends_with_its_parent():
    with subprocess.Popen(["true"]) as parent:
        work(NOBODY, insecure=True, preload=(), parent=parent.pid)


def test_a_worker_is_told_of_contradicting_options(tmp_path):
    with pytest.raises(InputError, match="Leave out one"):
        work(NOBODY, insecure=True, root_certificates=tmp_path)
