"""A program that is already running becomes the ServerApp of a run on a SuperLink.

`flwr run` has Flower start a ServerApp in a process of its own, away from the terminal that asked for it. Here the caller is
the ServerApp: `joined` starts a run of the packaged app, takes the run's task as a SuperExec would, and holds it by heartbeats
until the block ends. Flower's own ServerApp process waits for a lost SuperLink forever, and sends itself SIGINT when its run is
over; here both are exceptions.
"""

import logging
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import NoReturn

import httpx
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import Status, SubStatus
from flwr.common.serde import run_from_proto
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, StartRunResponse, StopRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest, SendTaskHeartbeatRequest
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from sketchfed.errors import InputError, LinkLostError
from sketchfed.flower.link import SUBMIT, SuperLink, patience, refusal

log = logging.getLogger("sketchfed")

APP = Path(__file__).parent / "app"
"""The Flower app of the package, for `flwr run` as well."""

HEARTBEAT = 3.0
"""Seconds between heartbeats. A SuperLink ends a run 60 s after the last one, so it may be away for slightly less than that."""

AWAY = 90.0
"""Seconds for which calls are repeated while the SuperLink is away. No run survives 60 s. The rest is for a clear answer."""

FAREWELL = 5.0
"""The same for the last call, which matters only for what `flwr list` shows."""

POLL = 0.2

_submitted: ContextVar[Path] = ContextVar("submitted", default=APP)


@dataclass(frozen=True, kw_only=True)
class Connection:
    """What a ServerApp has: the grid that reaches the SuperNodes, and its run.

    SuperNodes keep `context.state` as long as they live, for each series of runs. A run that continues the series of an earlier
    one finds what clients kept then.
    """

    grid: Grid
    run_id: int
    series_id: int


def app_with(client: str, folder: Path) -> Path:
    """Write the packaged Flower app to a folder, with another ClientApp, such as "my_package.my_module:app".

    SuperNodes import that module, so it must be installed where they run. Returns the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in APP.iterdir():
        (folder / path.name).write_text(path.read_text().replace("sketchfed.flower.client_app:app", client))
    return folder


@contextmanager
def submitting(app: Path) -> Iterator[None]:
    """Within the block, runs with the engine `flower` submit the Flower app of this folder instead of the packaged one.

    This is for rehearsals. The server does not notice which ClientApp its clients run.
    """
    token = _submitted.set(app)
    try:
        yield
    finally:
        _submitted.reset(token)


@contextmanager
def joined(link: SuperLink, *, app: Path | None = None, series: int | None = None, wait: float = 40.0) -> Iterator[Connection]:
    """Start a run of an app, the packaged one if none is named, at the SuperLink and be its ServerApp until the block ends.

    One block at a time in a process: messages get their run from a global of Flower's. The run ends as completed, as stopped
    after an interrupt, or as failed, with the reason, after another exception.

    Args:
        link: where the SuperLink is. It must leave the task to us: `--isolation process`, and no SuperExec beside it.
        app: the folder of a Flower app, whose ClientApp the SuperNodes will run. Without it, that of `submitting`.
        series: go on in the series of an earlier run, `Connection.series_id`.
        wait: seconds until all of that must have worked. The claim of a process that died lasts 30.

    Raises:
        InputError: there is no SuperLink, it refuses us, or somebody else took the task.
        LinkLostError: out of the grid's calls, when the run is over or the SuperLink stayed away.
    """
    with ExitStack() as stack:
        stack.enter_context(_quiet())
        control = stack.enter_context(link.client(ControlHttpClient, timeout=wait))
        started = _start(link, control, app or _submitted.get(), series)
        try:
            token = _take(link, control, started.run_id, until=time.monotonic() + wait)
            grid = stack.enter_context(_grid(link, token))
        except BaseException:
            with suppress(httpx.HTTPError, KeyboardInterrupt):
                control.StopRun(StopRunRequest(run_id=started.run_id))
            raise
        connection = Connection(grid=grid, run_id=started.run_id, series_id=started.series_id)
        with _told(link, token, started.run_id), _alive(link, token):
            yield connection


def _start(link: SuperLink, control: ControlHttpClient, folder: Path, series: int | None) -> StartRunResponse:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Flower's, about what it imports
        app = build_fab_from_disk(folder)
    request = StartRunRequest(fab=Fab(content=app), series_id=series)
    try:
        return control.StartRun(request)
    except (httpx.HTTPError, ValueError) as error:
        raise refusal(link, error, series=series) from error


def _take(link: SuperLink, control: ControlHttpClient, run_id: int, *, until: float) -> str:
    """The token of the run's task. SuperLinks hand out the oldest waiting task, so several attempts may be necessary."""
    with link.client(RuntimeHttpClient, *link.signatures()) as runtime:
        try:
            while time.monotonic() < until:
                offer = runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
                if offer.token and offer.task.run_id == run_id:
                    return offer.token
                if offer.token:
                    # Nobody's loss: a task that was claimed but not begun is handed out again 30 s later. To begin it would
                    # be to run a stranger's code here.
                    continue
                runs = control.ListRuns(ListRunsRequest(run_id=run_id)).run_dict
                if runs[run_id].status.status in (Status.RUNNING, Status.FINISHED):
                    break
                time.sleep(POLL)
        except (httpx.HTTPError, ValueError) as error:
            raise refusal(link, error) from error
    raise InputError(
        f"the SuperLink at {link.address} gave the ServerApp of run {run_id} to somebody else, so that this process cannot "
        "drive it; the run was stopped. Start the SuperLink with `--isolation process` and without a SuperExec, or have the "
        f"SuperLink do the work: {SUBMIT}."
    )


class _Grid(HttpGrid):
    """Flower's grid over our own client. It ends when the client ends."""

    def __init__(self, client: RuntimeHttpClient, token: str) -> None:
        super().__init__(token=token)
        self._client = client

    def _connect(self) -> NoReturn:
        raise LinkLostError("the grid was used after its run had ended. Use it inside the `joined` block.")


@contextmanager
def _grid(link: SuperLink, token: str) -> Iterator[Grid]:
    """Make a grid whose run has begun, with the identity that Flower gives to the messages of this process."""
    client = link.client(RuntimeHttpClient, RuntimeTokenHttpInterceptor(token), retries=patience(link, AWAY))
    grid = _Grid(client, token)
    before = TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id
    try:
        given = client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = given.task_id, given.run.run_id, given.context.node_id
        grid.set_run(run_from_proto(given.run))
        yield grid
    finally:
        TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before
        grid.close()


@contextmanager
def _alive(link: SuperLink, token: str) -> Iterator[None]:
    """Send heartbeats. A failed one is ignored: the next call of the grid fails as well, in the thread that can act."""
    over = Event()

    def beat() -> None:
        with link.client(RuntimeHttpClient, RuntimeTokenHttpInterceptor(token), timeout=HEARTBEAT) as client:
            while not over.wait(HEARTBEAT):
                with suppress(httpx.HTTPError, ValueError):
                    client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    thread = Thread(target=beat, name="sketchfed-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _told(link: SuperLink, token: str, run_id: int) -> Iterator[None]:
    """Report to the SuperLink how the block ended."""
    status, details = SubStatus.COMPLETED, ""
    try:
        yield
    except LinkLostError:
        status = ""
        raise
    except BaseException as error:
        status = SubStatus.STOPPED if isinstance(error, KeyboardInterrupt) else SubStatus.FAILED
        details = f"{type(error).__name__}: {error}"
        raise
    finally:
        if status:
            retries = patience(link, FAREWELL)
            with link.client(RuntimeHttpClient, RuntimeTokenHttpInterceptor(token), retries=retries) as client:
                try:
                    client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
                except (LinkLostError, ValueError) as error:
                    log.warning("run %d is over, but the SuperLink does not know: %s", run_id, error)


@contextmanager
def _quiet() -> Iterator[None]:
    """Show Flower's warnings only, because it logs every step. FLWR_LOG_LEVEL can ask for more."""
    flower = logging.getLogger("flwr")
    level = flower.level
    if "FLWR_LOG_LEVEL" not in os.environ:
        flower.setLevel(logging.WARNING)
    try:
        yield
    finally:
        flower.setLevel(level)
