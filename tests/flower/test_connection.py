"""With real SuperLinks on the loopback, and no SuperNodes: those have tests of their own."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import sketchfed
from sketchfed.errors import InputError, LinkLostError

pytest.importorskip("flwr")

from flwr.cli.build import build_fab_from_disk
from flwr.common.config import get_fab_config
from flwr.proto.control_pb2 import ListRunsRequest, StopRunRequest
from flwr.proto.runtime_pb2 import PullTaskInputRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient

from sketchfed.flower import connection
from sketchfed.flower.connection import APP, joined
from sketchfed.flower.link import SuperLink


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Link:
    """A SuperLink that can be killed and started again."""

    def __init__(self, folder: Path, *options: object) -> None:
        self.folder, self.port = folder, free_port()
        self.there = SuperLink(address=f"127.0.0.1:{self.port}", insecure=True)
        command = Path(sys.executable).parent / "flower-superlink"
        self.command = [command, "--insecure", "--host", "127.0.0.1", "--port", self.port, *options]
        self.command += ["--disable-runtime-dependency-installation", "--database", folder / "link.db"]

    def start(self) -> None:
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(self.folder)}
        path = f"{self.command[0].parent}{os.pathsep}{os.environ['PATH']}"  # where it finds the commands it starts
        with (self.folder / "link.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(word) for word in self.command],
                env={**os.environ, **quiet, "PATH": path},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + 30
        while time.monotonic() < until and self.process.poll() is None:
            try:
                return socket.create_connection(("127.0.0.1", self.port), timeout=0.2).close()
            except OSError:
                time.sleep(0.05)
        pytest.fail((self.folder / "link.log").read_text())

    def stop(self, by: int = signal.SIGINT) -> None:
        self.process.send_signal(by)
        try:
            self.process.wait(10)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    def run(self, run_id: int):
        with self.there.client(ControlHttpClient) as control:
            return control.ListRuns(ListRunsRequest(run_id=run_id)).run_dict[run_id]


@contextmanager
def started(folder: Path, *options: object):
    link = Link(folder, *options)
    link.start()
    try:
        yield link
    finally:
        link.stop()


@pytest.fixture(scope="module")
def link(tmp_path_factory):
    secret = tmp_path_factory.mktemp("secret") / "secret"
    secret.write_bytes(b"what only executors know")
    options = ("--isolation", "process", "--superexec-auth-secret-file", secret)
    with started(tmp_path_factory.mktemp("link"), *options) as link:
        link.there = replace(link.there, secret=secret)
        yield link


def test_the_block_is_the_server_app_of_a_run(link):
    threads = threading.active_count()
    with joined(link.there) as connection:
        assert list(connection.grid.get_node_ids()) == []
        assert link.run(connection.run_id).status.status == "running"
    run = link.run(connection.run_id)
    assert (run.status.status, run.status.sub_status) == ("finished", "completed")
    assert (run.fab_id, run.fab_version) == ("sketchfed/sketchfed", sketchfed.__version__)
    assert threading.active_count() == threads
    with pytest.raises(LinkLostError, match="after its run had ended"):
        connection.grid.get_node_ids()


def test_a_run_can_go_on_in_the_series_of_an_earlier_one(link):
    with joined(link.there) as first:
        pass
    with joined(link.there, series=first.series_id) as second:
        assert second.series_id == first.series_id
        assert second.run_id != first.run_id
    with pytest.raises(InputError, match=r"no series 5.*Start without a series"), joined(link.there, series=5):
        pass


@pytest.mark.parametrize(("error", "status"), [(ZeroDivisionError("why"), "failed"), (KeyboardInterrupt(), "stopped")])
def test_the_super_link_is_told_how_a_block_ended(link, error, status):
    with pytest.raises(type(error)), joined(link.there) as connection:
        raise error
    run = link.run(connection.run_id)
    assert run.status.sub_status == status
    assert run.status.details == f"{type(error).__name__}: {error}"


def test_tasks_of_other_runs_are_left_to_others(link):
    with link.there.client(ControlHttpClient) as control:
        other = connection._start(link.there, control, APP, None)
        with joined(link.there) as mine:
            assert mine.run_id != other.run_id
            assert link.run(other.run_id).status.status == "starting"  # and waits again when nobody has begun it in 30 s


def test_a_run_that_somebody_stopped_is_an_error_in_the_block(link):
    with joined(link.there) as mine, link.there.client(ControlHttpClient) as control:
        control.StopRun(StopRunRequest(run_id=mine.run_id))
        with pytest.raises(LinkLostError, match="has ended the run"):
            mine.grid.get_node_ids()


def test_an_address_where_nobody_listens_is_refused_at_once():
    nowhere = SuperLink(address=f"127.0.0.1:{free_port()}", insecure=True)
    before = time.monotonic()
    with pytest.raises(InputError, match=rf"no answer from .* {nowhere.address} .*Check that it runs"), joined(nowhere):
        pass
    assert time.monotonic() - before < 5


def test_tls_against_a_super_link_without_is_refused_with_both_remedies(link):
    with pytest.raises(InputError, match="root_certificates, or set insecure"), joined(SuperLink(address=link.there.address)):
        pass


def test_a_super_link_that_gives_the_task_to_somebody_else_is_refused(link, monkeypatch):
    start = connection._start

    def second(there, control, folder, series):
        response = start(there, control, folder, series)
        token = connection._take(there, control, response.run_id, until=time.monotonic() + 60)
        with there.client(RuntimeHttpClient, RuntimeTokenHttpInterceptor(token)) as other:
            other.PullTaskInput(PullTaskInputRequest())
        return response

    monkeypatch.setattr(connection, "_start", second)
    with pytest.raises(InputError, match=r"somebody else.*--isolation process.*flwr run"), joined(link.there):
        pass


@pytest.mark.slow
def test_a_super_link_that_runs_the_server_app_itself_is_refused(tmp_path, monkeypatch):
    """It looks for tasks once a second and so may come second; here it is given the time to come first."""
    start = connection._start

    def slowly(there, control, folder, series):
        response, until = start(there, control, folder, series), time.monotonic() + 60
        while link.run(response.run_id).status.status == "pending" and time.monotonic() < until:
            time.sleep(0.1)
        return response

    monkeypatch.setattr(connection, "_start", slowly)
    with (
        started(tmp_path, "--isolation", "subprocess") as link,
        pytest.raises(InputError, match=r"somebody else.*--isolation process.*flwr run"),
        joined(link.there, wait=5),
    ):
        pass


def test_a_secret_must_be_that_of_the_super_link(link, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"another secret")
    for secret, why in ((None, "none was given"), (other, "other is not it")):
        with pytest.raises(InputError, match=why), joined(replace(link.there, secret=secret)):
            pass


@pytest.mark.parametrize(
    "address", ["localhost", "localhost:", ":8000", "localhost:0", "localhost:65536", "http://localhost:8000"]
)
def test_an_address_is_host_and_port(address):
    with pytest.raises(InputError, match="host:port"):
        SuperLink(address=address)


def test_files_that_cannot_be_used_are_named(tmp_path):
    there = SuperLink(address="localhost:8000", root_certificates=tmp_path / "ca.crt")
    with pytest.raises(InputError, match=r"ca\.crt cannot be read"), joined(there):
        pass
    (tmp_path / "ca.crt").write_text("no certificate")
    with pytest.raises(InputError, match=r"ca\.crt holds no certificates"), joined(there):
        pass
    with pytest.raises(InputError, match="not both"):
        SuperLink(address="localhost:8000", insecure=True, root_certificates=tmp_path / "ca.crt")


def test_the_packaged_app_carries_the_version_of_the_package():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Flower's, about what it imports
        config = get_fab_config(build_fab_from_disk(APP))
    assert config == tomllib.loads((APP / "pyproject.toml").read_text())
    assert config["project"]["version"] == sketchfed.__version__


def test_a_super_link_that_was_killed_is_waited_for_but_not_forever(link, monkeypatch):
    """The last test of the shared SuperLink, which stays dead."""
    monkeypatch.setattr(connection, "FAREWELL", 0.1)
    with joined(link.there) as mine:
        link.stop(by=signal.SIGKILL)
        back = threading.Timer(0.5, link.start)
        back.start()
        try:
            assert list(mine.grid.get_node_ids()) == []
        finally:
            back.join()
        assert link.run(mine.run_id).status.status == "running"
        link.stop(by=signal.SIGKILL)
        mine.grid._client._retry_invoker.max_time = 1.0
        with pytest.raises(LinkLostError, match=r"did not answer for .* s .*Start it again"):
            mine.grid.get_node_ids()
