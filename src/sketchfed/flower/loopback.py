"""A whole Flower federation on this machine's loopback, for rehearsals, tests and benchmarks.

Nothing is simulated: there are a SuperLink and SuperNodes in their own processes, TLS, authenticated nodes and a database.
Crashes are real too: `kill_node` and `kill_link` send SIGKILL. It works on Linux only, because it finds its processes in /proc.
"""

import contextlib
import json
import os
import random
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Self

import httpx
import tomli_w
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from sketchfed.errors import InputError, LoopbackError
from sketchfed.flower.certificates import HOST, public_pem, write_certificates, write_key, write_secret
from sketchfed.flower.worker import READY

# Below the ports that the kernel hands out: who keeps calling a dead SuperLink on one of those may end up connected to himself.
_PORTS = range(20_000, 32_000)
_MARK = "SKETCHFED_LOOPBACK"
_POLICY = "policy.toml"
_PATIENCE = 4.0
# A federation does not outlive the thread that started it, however that ends: the kernel then kills it (PR_SET_PDEATHSIG).
_DIE_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); os.execvp(sys.argv[1], sys.argv[1:])"
# `flower-supernode`, except that it asks for messages more often while some come. Flower asks every 3 s and has no setting for
# that. Where Flower sleeps for less than a second it waits for a reply, so a message has come.
_EAGER_NODE = """
import sys, time
from types import SimpleNamespace
from flwr.supernode import start_client_internal
from flwr.supernode.cli import flower_supernode

busy = time.monotonic()

def sleep(seconds):
    global busy
    if seconds < 1:
        busy = time.monotonic()
    time.sleep(min(seconds, max(0.3, (time.monotonic() - busy) / 4)))

start_client_internal.time = SimpleNamespace(**vars(time) | {"sleep": sleep})
sys.argv[0] = "flower-supernode"
sys.exit(flower_supernode())
"""


class Loopback:
    """A SuperLink and `nodes` SuperNodes, which live as long as the context.

    The SuperLink leaves ServerApps to others (`--isolation process`): this process can be one, or `start_executor` runs those
    of `flwr run`. `warm` nodes fork for each message (`sketchfed.flower.worker`). Others start a `flwr-clientapp`, as Flower
    does by default. `eager` nodes ask for messages three times a second while some arrive. Others ask every 3 s, as Flower's
    do. `node_config` returns the settings of node i, by default its partition. `policy` is the text of the nodes' policy. The
    default policy allows built-in parts only. With `via`, nodes connect to the port that it returns for the SuperLink's port,
    which is the place for a proxy. Everything is written below `folder`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int,
        node_config: Callable[[int], Mapping[str, str | int | float | bool]] | None = None,
        warm: bool = True,
        eager: bool = True,
        database: bool = True,
        via: Callable[[int], int] | None = None,
        environment: Mapping[str, str] | None = None,
        policy: str = "",
    ) -> None:
        if nodes < 1:
            raise InputError(f"a federation of {nodes} nodes was asked for, which leaves nobody to train. Ask for one or more.")
        if not Path("/proc/self/stat").exists():
            raise InputError("a federation on the loopback finds its processes in /proc, which this system lacks. Use Linux.")
        self.folder, self.nodes = folder.resolve(), nodes
        self.node_ids: list[int] = []
        self._warm, self._database = warm, database
        self._supernode = (sys.executable, "-c", _EAGER_NODE) if eager else ("flower-supernode",)
        self._policy = policy
        self._node_config = node_config or (lambda index: {"partition-id": index, "num-partitions": nodes})
        self._port, *self._node_ports = _free_ports(1 + nodes)
        self._entrance = via(self._port) if via else self._port
        self.address = f"{HOST}:{self._port}"
        self.root_certificates = self.folder / "ca.pem"
        self._keys = [ec.generate_private_key(ec.SECP384R1()) for _ in range(nodes)]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._seen: dict[int, str] = {}
        self._mark = secrets.token_hex(8)
        self._environment = {
            **os.environ,
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "PYTHONUNBUFFERED": "1",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            **(environment or {}),
        }

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def start(self) -> Self:
        """Start everything. Returns when all nodes are online and their workers have imported what they need."""
        try:
            self._write_files()
            if self._warm:
                self._spawn("workers", sys.executable, "-m", "sketchfed.flower.worker", "--nursery", stdin=subprocess.PIPE)
            self.start_link()
            for index in range(self.nodes):
                self.start_node(index)
            self.wait_online(self.nodes)
            logs = [self._log(f"worker-{index}") for index in range(self.nodes if self._warm else 0)]
            self._wait(lambda: all(READY in log.read_text() for log in logs), 120, "workers did not become ready")
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End all processes that were started, and their descendants: politely for a few seconds, then by force."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline and self.pids():
            time.sleep(0.05)
        self._kill()

    def start_link(self) -> None:
        """Start the SuperLink, or start it again on the same port and database. Registers nodes that it does not know."""
        certificate, key = self.folder / "server.pem", self.folder / "server.key"
        self._spawn(
            "link",
            *("flower-superlink", "--host", HOST, "--port", self._port, "--isolation", "process", "--enable-supernode-auth"),
            *("--ssl-ca-certfile", self.root_certificates, "--ssl-certfile", certificate, "--ssl-keyfile", key),
            "--disable-runtime-dependency-installation",
            *(("--database", self.folder / "link.db") if self._database else ()),
        )
        self._wait(lambda: self.online() >= 0, 60, f"the SuperLink does not answer at {self.address}")
        known = {node.public_key: node.node_id for node in self._listed()}
        with self._control() as control:
            for pem in map(public_pem, self._keys):
                known[pem] = known.get(pem) or control.RegisterNode(RegisterNodeRequest(public_key=pem)).node_id
        self.node_ids = [known[public_pem(key)] for key in self._keys]

    def start_node(self, index: int) -> None:
        """Start node `index`, for the first time or after `kill_node`. Returns before it is online.

        It keeps its id, but loses its memory and the message that it had. If the server asks while the node is away, it gets an
        error. Otherwise it hears nothing until the message expires.
        """
        name, port = f"node-{index}", self._node_ports[index]
        if name in self._processes:
            if self._processes[name].poll() is None:
                raise InputError(f"node {index} is running already. Kill it first.")
            self._sign_off(index)
        process = self._spawn(
            name,
            *self._supernode,
            *("--superlink", f"{HOST}:{self._entrance}", "--root-certificates", self.root_certificates),
            *("--auth-supernode-private-key", self.folder / f"{name}.key", "--node-config", self.folder / f"{name}.toml"),
            *("--host", HOST, "--port", port),
            *(("--isolation", "process", "--superexec-auth-secret-file", self.folder / f"{name}.secret") if self._warm else ()),
        )
        if self._warm:
            self._log(f"worker-{index}").write_bytes(b"")  # a worker says its pid there when it is ready, and must say so anew
            self._nurse(
                *("--address", f"{HOST}:{port}", "--insecure", "--auth-secret", self.folder / f"{name}.secret"),
                *("--parent", process.pid, "--home", self._home(name), "--log", self._log(f"worker-{index}")),
            )

    def kill_node(self, index: int) -> None:
        """Send SIGKILL to the SuperNode and its processes. The SuperLink shows it as online for 40 to 60 s more."""
        self._kill(f"node-{index}")

    def kill_link(self) -> None:
        """Send SIGKILL to the SuperLink. Nodes keep calling, every 20 s at least.

        When it is started again on its database, it knows its nodes and runs. A ServerApp that waited goes on, and replies that
        were made meanwhile arrive.
        """
        self._kill("link")

    def start_executor(self) -> None:
        """Start a `flower-superexec`, which runs the ServerApps of those who submit with `flwr run`."""
        link = ("--root-certificates", self.root_certificates, "--runtime-api-address", self.address)
        self._spawn("executor", "flower-superexec", *link, "--parent-pid", os.getpid())

    def cli(self, *arguments: str, timeout: float = 120) -> str:
        """Run `flwr` with these arguments and return its output. Its default connection is this federation, 'loopback'."""
        command = ["flwr", *arguments]
        done = subprocess.run(command, env=self._env("cli"), cwd=self.folder, capture_output=True, text=True, timeout=timeout)
        if done.returncode:
            raise LoopbackError(f"`flwr {' '.join(arguments)}` failed: {done.stdout}{done.stderr}")
        return done.stdout

    def online(self) -> int:
        """The number of SuperNodes that the SuperLink shows as online."""
        return sum(node.status == "online" for node in self._listed())

    def wait_online(self, count: int, timeout: float = 60) -> None:
        """Return when at least `count` SuperNodes are online."""
        self._wait(lambda: self.online() >= count, timeout, f"fewer than {count} SuperNodes came online")

    def pids(self) -> list[int]:
        """All living processes that were started here, and their descendants."""
        return sorted(self._living())

    def logs(self) -> dict[str, str]:
        """What each process has written: 'link', 'executor', 'node-0', 'worker-0' and so on."""
        return {path.stem: path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log"))}

    def _write_files(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_certificates(self.folder)
        for index, key in enumerate(self._keys):
            name = f"node-{index}"
            write_key(self.folder / f"{name}.key", key, serialization.PrivateFormat.OpenSSH)
            write_secret(self.folder / f"{name}.secret", secrets.token_bytes(32))
            # A file spares us the quoting of a command line that Flower splits by a regular expression.
            settings = dict(self._node_config(index))
            if self._policy:
                (self.folder / _POLICY).write_text(self._policy)
                settings.setdefault("policy", str(self.folder / _POLICY))
            (self.folder / f"{name}.toml").write_text(tomli_w.dumps(settings))
        link = {"address": self.address, "root-certificates": str(self.root_certificates)}
        (self._home("cli") / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": "loopback", "loopback": link}}))

    def _nurse(self, *options: object) -> None:
        """Have a worker forked with these options."""
        nursery = self._processes["workers"]
        if nursery.stdin is None or nursery.poll() is not None:
            raise LoopbackError("the process that forks workers has ended. Look at 'workers' in logs(), and start anew.")
        nursery.stdin.write(json.dumps([str(option) for option in options]).encode() + b"\n")
        nursery.stdin.flush()

    def _spawn(self, name: str, *command: object, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        program, env = [sys.executable, "-c", _DIE_WITH_PARENT, *map(str, command)], self._env(name)
        with self._log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                program, stdin=stdin, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder, env=env, start_new_session=True
            )
        return self._processes[name]

    def _env(self, name: str) -> dict[str, str]:
        """The environment of a process and its descendants. It marks them, so that they can be found again."""
        return {**self._environment, "FLWR_HOME": str(self._home(name)), _MARK: f"{self._mark}/{name}"}

    def _home(self, name: str) -> Path:
        """A FLWR_HOME for each node. Apps are unpacked there, and another node could load a half-unpacked one."""
        home = self.folder / "home" / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _control(self) -> ControlHttpClient:
        certificates, version = self.root_certificates.read_bytes(), RuntimeVersionHttpInterceptor("flwr CLI")
        return ControlHttpClient.from_server_address(self.address, False, certificates, [version])

    def _listed(self) -> list[NodeInfo]:
        with self._control() as control:
            return list(control.ListNodes(ListNodesRequest()).nodes_info)

    def _sign_off(self, index: int) -> None:
        """Tell the SuperLink that a killed node is gone.

        As long as it takes the node for online, it refuses to activate the same key again, and the new SuperNode would end
        itself.
        """
        key, certificates = self._keys[index], self.root_certificates.read_bytes()
        version, proof = RuntimeVersionHttpInterceptor("SuperNode"), NodeAuthHttpInterceptor(key, key.public_key())
        fleet = FleetHttpClient.from_server_address(self.address, False, certificates, [version, proof])
        with fleet, contextlib.suppress(httpx.HTTPStatusError):  # it may have noticed by itself
            fleet.DeactivateNode(DeactivateNodeRequest(node_id=self.node_ids[index]))

    def _wait(self, condition: Callable[[], bool], timeout: float, complaint: str) -> None:
        """Wait until a condition holds. If a process ends meanwhile, raise an error, because the condition never will."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError, OSError):
                if condition():
                    return
            for name, status in self._poll().items():
                if status > 0:
                    said = self.logs()[name][-3000:]
                    raise LoopbackError(f"{complaint}: '{name}' ended with status {status}. It said:\n{said}")
            time.sleep(0.05)
        raise LoopbackError(f"{complaint} within {timeout:g} s. Look at the logs in {self.folder}.")

    def _poll(self) -> dict[str, int]:
        """Reap ended processes, and return the exit status of each. It is negative for a signal."""
        return {name: status for name, process in self._processes.items() if (status := process.poll()) is not None}

    def _kill(self, name: str = "") -> None:
        """Send SIGKILL to all processes whose environment has this name until none is left. They may fork meanwhile."""
        deadline = time.monotonic() + _PATIENCE
        while (living := self._living(name)) and time.monotonic() < deadline:
            for pid in living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._poll()
            time.sleep(0.02)
        for known, process in self._processes.items():
            if name in ("", known):
                process.wait(_PATIENCE)
                if process.stdin:
                    process.stdin.close()

    def _living(self, name: str = "") -> set[int]:
        """Find processes by their mark and by descent: some hide their environment, and some have lost their parent."""
        table = _table()
        mark = f"{_MARK}={self._mark}/{name}".encode()
        roots = {pid for pid in table if _marked(pid, mark, exactly=bool(name))}
        if name.startswith("node-") and self._warm:
            # A forked worker has the mark of all workers; it has said itself whose it is.
            said = re.findall(rf"pid (\d+) is {READY}", self._log(name.replace("node", "worker")).read_text())
            roots |= {int(pid) for pid in said} & _with_descendants({self._processes["workers"].pid}, table)
        if not name:
            roots |= {pid for pid, birth in self._seen.items() if pid in table and table[pid][1] == birth}
        family = _with_descendants(roots, table)
        self._seen |= {pid: table[pid][1] for pid in family}
        return family


def _table() -> dict[int, tuple[int, str]]:
    """The parent and start time of every living process. The start time tells a pid from the same number used again."""
    table = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if fields[0] not in "ZX":
                table[int(path.parent.name)] = int(fields[1]), fields[19]
    return table


def _with_descendants(roots: Iterable[int], table: Mapping[int, tuple[int, str]]) -> set[int]:
    family = set(roots)
    while found := {pid for pid, (parent, _) in table.items() if parent in family} - family:
        family |= found
    return family


def _marked(pid: int, mark: bytes, *, exactly: bool) -> bool:
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return mark in entries if exactly else any(entry.startswith(mark) for entry in entries)


def _free_ports(count: int) -> list[int]:
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((HOST, port))
            found.append(port)
        if len(found) == count:
            return found
    raise LoopbackError(
        f"there are no {count} free ports from {_PORTS.start} to {_PORTS.stop}. End some servers on this machine."
    )
