"""A warm executor for a SuperNode: imports everything once and forks a child for each message.

A SuperNode left to itself starts a new `flwr-clientapp` for every message, and each of them imports torch, numba and flwr anew:
seconds of CPU for milliseconds of work. Started with `--isolation process` it waits for somebody to ask its Runtime API for
work instead, and that is this:

    flower-supernode --isolation process --host 127.0.0.1 --port 9094 …
    python -m sketchfed.flower.worker --address 127.0.0.1:9094 --insecure

A message still gets a process of its own, so that nothing of it leaks into the next one: the child is a copy of a parent that
has imported modules and done nothing else. That is also what makes fork safe here. The parent runs no threads but those of
OpenBLAS, which know about forks: it computes nothing, and the thread pools of torch and numba begin with the first computation.
Its connection to the SuperNode is closed before it forks.
"""

import argparse
import contextlib
import ctypes
import gc
import importlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from sketchfed.errors import InputError

if TYPE_CHECKING:
    from flwr.supercore.runtime import RuntimeHttpClient

log = logging.getLogger(__name__)

PRELOAD = (
    "sketchfed.runs.workload",
    "sketchfed.rounds.participant",
    "sketchfed.protection",
    "sketchfed.flower.client_app",
)
READY = "waiting for messages"
_SLOWEST = 10
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>


def work(
    address: str,
    *,
    insecure: bool,
    root_certificates: Path | None = None,
    preload: Sequence[str] = PRELOAD,
    poll: float = 0.1,
    parent: int | None = None,
    auth_secret: bytes | None = None,
) -> None:
    """Serve the SuperNode whose Runtime API is at `address`, until a signal comes or the process `parent` is gone.

    It asks every `poll` seconds while messages come, and up to ten times less often if none has come for long, because asking
    is not free if many nodes share a machine. If the SuperNode is away, the worker waits for it.
    """
    if insecure and root_certificates is not None:
        raise InputError("a worker was given root certificates and told to do without TLS. Leave out one of the two.")
    certificates = root_certificates.read_bytes() if root_certificates is not None else None
    _import(preload)
    stopping = _Flag()
    previous = {name: signal.signal(name, stopping.set) for name in (signal.SIGTERM, signal.SIGINT)}
    counter = _Counter(address, insecure=insecure, certificates=certificates, auth_secret=auth_secret)
    children: set[int] = set()
    busy = time.monotonic()
    log.warning("pid %d is %s from %s", os.getpid(), READY, address)
    try:
        while not stopping and (parent is None or alive(parent)):
            _reap(children)
            token = counter.next_token()
            if token is None:
                time.sleep(min(max(poll, (time.monotonic() - busy) / _SLOWEST), _SLOWEST * poll))
                continue
            busy = time.monotonic()
            counter.close()
            children.add(_fork(partial(_serve, address, token, insecure, certificates)))
    finally:
        counter.close()
        _end(children)
        for name, handler in previous.items():
            signal.signal(name, handler)


def nursery(lines: Iterable[str]) -> None:
    """Fork a worker for each line, a JSON list of arguments as on the command line. End all workers after the last line.

    Nodes on one machine share the imported modules in this way. It saves seconds of CPU and hundreds of megabytes for each
    node.
    """
    _import((*PRELOAD, "sklearn.datasets"))  # nodes on one machine often play clients of the digits
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers
    for line in lines:
        _fork(partial(main, json.loads(line)))


def alive(pid: int) -> bool:
    """Whether a process runs. A process that has ended and was not reaped does not run."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return True


class _Flag:
    """Set by a signal. The loop checks it between two steps, so that no step is cut short."""

    def __init__(self) -> None:
        self._raised = False

    def set(self, _signal: int, _frame: FrameType | None) -> None:
        self._raised = True

    def __bool__(self) -> bool:
        return self._raised


class _Counter:
    """The connection through which a SuperNode hands out its work."""

    def __init__(self, address: str, *, insecure: bool, certificates: bytes | None, auth_secret: bytes | None) -> None:
        self._address = address
        self._insecure = insecure
        self._certificates = certificates
        self._auth_secret = auth_secret
        self._client: RuntimeHttpClient | None = None
        self._away = False

    def next_token(self) -> str | None:
        """The right to one message. None if there is no message, or no SuperNode."""
        import httpx
        from flwr.proto.runtime_pb2 import AcquireTaskRequest
        from flwr.supercore.constant import TaskType

        self._client = self._client or self._connected()
        try:
            reply = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.UNAUTHORIZED:
                raise InputError(
                    f"the SuperNode at {self._address} does not accept this worker. "
                    "Give both the same file, with --superexec-auth-secret-file there and --auth-secret here."
                ) from error
            self._miss(error)
            return None
        except (httpx.HTTPError, ValueError) as error:
            self._miss(error)
            return None
        self._away = False
        return str(reply.token) if reply.HasField("task") and reply.token else None

    def close(self) -> None:
        """Close the connection, because a forked child must not inherit a connection that its parent uses."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _miss(self, error: Exception) -> None:
        self.close()
        if not self._away:
            log.warning("the SuperNode at %s does not answer (%s); waiting for it", self._address, error)
        self._away = True

    def _connected(self) -> "RuntimeHttpClient":
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
        from flwr.supercore.protobuf.client import ProtobufClientInterceptor
        from flwr.supercore.runtime import RuntimeHttpClient

        interceptors: list[ProtobufClientInterceptor] = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
        if self._auth_secret:
            methods = ("/flwr.proto.Runtime/AcquireTask",)
            interceptors.append(SuperExecAuthHttpInterceptor(master_secret=self._auth_secret, protected_methods=methods))
        return RuntimeHttpClient.from_server_address(self._address, self._insecure, self._certificates, interceptors)


def _import(modules: Sequence[str]) -> None:
    """Import what a child would import. Then freeze the garbage collector, so that it does not touch and copy those pages."""
    for name in ("torch", "flwr.supernode.runtime.run_clientapp", *modules):
        try:
            importlib.import_module(name)
        except ImportError as error:
            # Not fatal: the child may never need it, and if it does it says so to the server.
            log.warning("could not import %s beforehand: %s", name, error)
    with contextlib.suppress(ImportError, AttributeError):  # what numba would read with the first kernel, half a second long
        from numba.core.registry import cpu_target

        cpu_target.typing_context.refresh()
        cpu_target.target_context.refresh()
    gc.collect()
    gc.freeze()


def _serve(address: str, token: str, insecure: bool, certificates: bytes | None) -> None:
    """Answer one message, as `flwr-clientapp` does. Ends with SystemExit."""
    import numpy as np
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    np.random.seed()  # noqa: NPY002 - the children's copies of the global generator would all draw the same numbers
    run_clientapp(runtime_api_address=address, token=token, insecure=insecure, certificates=certificates)


def _fork(task: Callable[[], None]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _be_child(task, parent)
    with contextlib.suppress(OSError):  # the child does it too; whoever comes first
        os.setpgid(pid, pid)
    return pid


def _be_child(task: Callable[[], None], parent: int) -> NoReturn:
    """Run the task and leave by os._exit in any case. No handler or `finally` of the parent may run twice."""
    status = 1
    try:
        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(name, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        _die_with(parent)
        task()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        log.exception("a message could not be served")
    finally:
        with contextlib.suppress(Exception):
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies.

    This is hard on purpose. A `flwr-clientapp` that is asked to stop reports its task as finished without a reply, and its
    SuperNode then waits forever for that reply. If it falls silent instead, it is given up after a minute, and the SuperNode
    answers for it.
    """
    with contextlib.suppress(OSError, AttributeError):  # Linux has it; elsewhere the child finishes its message
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _reap(children: set[int]) -> None:
    for pid in list(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            children.discard(pid)
            if os.WIFSIGNALED(status):
                log.warning("pid %d, which served a message, was ended by signal %d", pid, os.WTERMSIG(status))


def _end(children: set[int]) -> None:
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    children.clear()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m sketchfed.flower.worker", description="A warm executor for a SuperNode.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--nursery", action="store_true", help="fork a worker for each line of standard input, a JSON list of options"
    )
    where.add_argument("--address", help="host:port of the SuperNode's Runtime API")
    parser.add_argument("--insecure", action="store_true", help="do without TLS, as on the loopback")
    parser.add_argument("--root-certificates", type=Path, help="PEM file with the CA of the SuperNode's Runtime API")
    parser.add_argument("--auth-secret", type=Path, help="the file given to the SuperNode as --superexec-auth-secret-file")
    parser.add_argument("--preload", action="append", default=[], help="a further module to import once; may be repeated")
    parser.add_argument("--poll", type=float, default=0.1, help="seconds between two questions for work")
    parser.add_argument("--parent", type=int, help="end when this process is gone")
    parser.add_argument(
        "--home", help="FLWR_HOME for the messages: nodes that share one load apps that another has half unpacked"
    )
    parser.add_argument("--log", type=Path, help="write to the end of this file instead of the terminal")
    given = parser.parse_args(arguments)
    if given.log:
        with given.log.open("ab") as file:
            os.dup2(file.fileno(), sys.stdout.fileno())
            os.dup2(file.fileno(), sys.stderr.fileno())
    if given.home:
        os.environ["FLWR_HOME"] = given.home
    if given.nursery:
        nursery(sys.stdin)
        return
    work(
        given.address,
        insecure=given.insecure,
        root_certificates=given.root_certificates,
        preload=(*PRELOAD, *given.preload),
        poll=given.poll,
        parent=given.parent,
        auth_secret=given.auth_secret.read_bytes() if given.auth_secret else None,
    )


if __name__ == "__main__":
    printed = logging.StreamHandler()
    printed.setFormatter(logging.Formatter("%(asctime)s worker: %(message)s"))
    log.addHandler(printed)  # not to the root logger: Flower's messages pass there too, and print themselves
    main()
