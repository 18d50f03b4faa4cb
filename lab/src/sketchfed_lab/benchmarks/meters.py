"""What can be read of a federation while it works, for `federation.py`: bytes, CPU time, memory, and when nodes did what."""

import json
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, median_low
from typing import Any, Self
from unittest.mock import patch

from flwr.proto.control_pb2 import ListRunsRequest
from flwr.supercore.control import ControlHttpClient

from sketchfed import run
from sketchfed.flower import TRAFFIC, FlowerEngine, Loopback, SuperLink
from sketchfed_lab.faults.proxy import CountingProxy, Turn

DENSE, SECURE = "dense", "secure"
ROLES = ("link", "node", "app")
"""The SuperLink; the SuperNodes; and what runs the clients: warm workers with what they fork, or what a SuperNode starts."""
STEPS = ("Receiving", "Received", "Sending", "Sent")
"""What a SuperNode writes of each message: it has asked for one; has all of it; has a reply; has delivered that."""
PARTS = ("wait", "download", "app", "upload", "collect")
"""Of an exchange: until the node asks; until it has the message; until it has a reply; until that is delivered; until the
server has those of all."""
SETTLED = 1.5
"""Seconds after which the nodes have hung up on a call that the server has all replies to."""


# Bytes ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Polling:
    """What passes while nothing is to be done: nodes ask for messages, and say now and then that they live."""

    polls: frozenset[tuple[int, int]]
    """Bytes up and down of a question that has no answer. They differ by the length of a signature."""
    typical: tuple[int, int] = (0, 0)
    count: int = 0
    rest_up: float = 0.0
    rest_down: float = 0.0
    """Bytes a second of all nodes together beside polls: signs of life, and the handshakes of their connections."""

    @classmethod
    def of(cls, turns: Sequence[Turn], seconds: float) -> Self:
        """From the turns of some idle seconds: the commonest size of a response is that to a poll.

        Signatures of node authentication are DER, a few bytes shorter at times, and base64 makes steps of four of that. All
        other requests are longer than a poll by more than that, or have longer responses.
        """
        common = max({turn.down for turn in turns}, key=lambda down: sum(turn.down == down for turn in turns))
        sent = [turn.up for turn in turns if turn.down == common]
        typical = int(median_low(sent))
        polls = frozenset((up, common) for up in range(typical - 12, typical + 13))
        rest = [turn for turn in turns if (turn.up, turn.down) not in polls]
        return cls(
            polls=polls,
            typical=(typical, common),
            count=len(turns) - len(rest),
            rest_up=sum(turn.up for turn in rest) / seconds,
            rest_down=sum(turn.down for turn in rest) / seconds,
        )


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Everything at one moment, since the start."""

    time: float
    turns: int
    socket_up: int
    socket_down: int
    polls: int
    poll_up: int
    poll_down: int
    connections: int
    link_up: int
    link_down: int
    """What the SuperLink says that it received from nodes and sent to them: `flwr list` shows it."""
    app_seconds: float
    """What the SuperLink says that clients took, from the message to the reply."""
    cpu: Mapping[str, float]

    def since(self, before: "Reading", polling: Polling) -> dict[str, float]:
        """What passed since then, and of the socket's bytes those that are no polling."""
        whole = {
            name: getattr(self, name) - getattr(before, name)
            for name in ("turns", "polls", "connections", "socket_up", "socket_down", "link_up", "link_down", "app_seconds")
        }
        seconds = self.time - before.time
        for way in ("up", "down"):
            polled = getattr(self, f"poll_{way}") - getattr(before, f"poll_{way}") + seconds * getattr(polling, f"rest_{way}")
            whole[f"net_{way}"] = whole[f"socket_{way}"] - polled
        return whole | {f"cpu_{role}": self.cpu[role] - before.cpu[role] for role in ROLES} | {"elapsed": seconds}


# Processes ------------------------------------------------------------------------------------------------------------


class Processes:
    """The processes of a federation by what they are."""

    def __init__(self, federation: Loopback) -> None:
        said = {pid: _command(pid) for pid in federation.pids()}
        self.links = {pid for pid, command in said.items() if "flower-superlink" in command}
        self.nodes = {pid for pid, command in said.items() if "flower-supernode" in command}
        self.nursery = {pid for pid, command in said.items() if "--nursery" in command}

    def cpu(self) -> dict[str, float]:
        """CPU seconds of each role, with those of children that have ended, waited for or not."""
        table = dict(_stats())
        spent = dict.fromkeys(ROLES, 0.0)
        for pid, fields in table.items():
            if role := self._role(pid, table):
                spent[role] += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        return spent

    def memory(self) -> dict[str, dict[str, int]]:
        """Mean bytes of a process of each kind: resident, the most that was, and its share where pages are shared by forks."""
        table, found = dict(_stats()), {}
        workers = {pid for pid in self.nursery if pid in table and int(table[pid][1]) in self.nursery}
        kinds = {"link": self.links, "node": self.nodes, "worker": workers}
        for kind, pids in kinds.items():
            each = [{**_numbers(pid, "status"), **_numbers(pid, "smaps_rollup")} for pid in pids]
            names = {"rss": "VmRSS", "peak": "VmHWM", "share": "Pss"}
            if each := [numbers for numbers in each if names["rss"] in numbers]:
                found[kind] = {name: sum(numbers.get(line, 0) for numbers in each) // len(each) for name, line in names.items()}
        return found

    def _role(self, pid: int, table: Mapping[int, Sequence[str]]) -> str | None:
        """That of a process itself, or of the one that it descends from."""
        if pid in self.links or pid in self.nodes:
            return "link" if pid in self.links else "node"
        while pid in table:
            if pid in self.nodes or pid in self.nursery:
                return "app"
            pid = int(table[pid][1])
        return None


def _stats() -> Iterator[tuple[int, list[str]]]:
    """The fields of /proc/PID/stat after the name, those of zombies too: their time is not their parent's yet."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            yield int(path.parent.name), path.read_text().rpartition(")")[2].split()


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def _numbers(pid: int, file: str) -> dict[str, int]:
    """Bytes by name, from a file that counts in kB."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/{file}").read_text()
        return {name: 1024 * int(count) for name, count in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
    return {}


class Diary:
    """When each node wrote what: its log has no times, so somebody looks at it often."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.entries: list[tuple[float, int, str]] = []
        self._files = {index: (folder / f"node-{index}.log").open() for index in range(nodes)}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="diary", daemon=True)

    def __enter__(self) -> Self:
        for file in self._files.values():
            file.seek(0, os.SEEK_END)
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._over.set()
        self._thread.join()
        for file in self._files.values():
            file.close()

    @property
    def cpu_seconds(self) -> float:
        return time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident)) if self._thread.ident else 0.0

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            for index, file in self._files.items():
                for line in file.read().splitlines():
                    if step := next((step for step in STEPS if f" {step}" in line), None):
                        self.entries.append((time.monotonic(), index, step))

    def parts(self, began: float, ended: float, until: float) -> dict[str, float]:
        """Mean seconds of each part of the messages of a call; `until` is when the next one began."""
        times: dict[int, dict[str, float]] = defaultdict(dict)
        for at, index, step in list(self.entries):
            if began <= at < until:
                times[index].setdefault(step, at)
        whole = [node for node in times.values() if len(node) == len(STEPS)]
        if not whole:
            return {}
        edges = [[began, *(node[step] for step in STEPS)] for node in whole]
        spans = [sum(edge[at + 1] - edge[at] for edge in edges) / len(edges) for at in range(len(STEPS))]
        last = max(edge[-1] for edge in edges)
        return dict(zip(PARTS, [*spans, max(0.0, ended - last)], strict=True))


# A run ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A run: one local step a round, for training is not what is measured."""

    arm: str
    ratio: float | None = None
    hidden: tuple[int, ...] = ()
    rounds: int = 1

    def tables(self, clients: int) -> dict[str, Any]:
        algorithm = {"name": "iterative" if self.ratio else "fedavg", "rounds": self.rounds, "local_steps": 1}
        tables: dict[str, Any] = {"algorithm": algorithm, "data": {"clients": clients}}
        tables["model"] = {"name": "mlp", "hidden": list(self.hidden)}
        if self.ratio:
            tables["sketch"] = {"ratio": self.ratio}
        if self.arm == SECURE:
            tables["privacy"] = {"name": "discrete_gaussian", "noise_multiplier": 1.0, "delta": 1e-4, "clip": 0.024}
            tables["secure"] = {}
        return tables


@dataclass
class Call:
    """One call of the engine: a message to each node, and its reply."""

    stage: str
    began: float
    before: Reading
    ended: float = 0.0
    server_cpu: float = 0.0
    traffic: dict[str, Any] = field(default_factory=dict)
    passed: dict[str, float] = field(default_factory=dict)
    """Until the next call began."""
    parts: dict[str, float] = field(default_factory=dict)


class Meters:
    """All of the above for one federation."""

    def __init__(self, federation: Loopback, proxy: CountingProxy, diary: Diary) -> None:
        self._federation, self._proxy, self._diary = federation, proxy, diary
        self._link = SuperLink(address=federation.address, root_certificates=federation.root_certificates)
        self.processes = Processes(federation)
        self.polling = Polling(polls=frozenset())

    def read(self) -> Reading:
        turns = self._proxy.turns()
        polls = [turn for turn in turns if (turn.up, turn.down) in self.polling.polls]
        with self._link.client(ControlHttpClient) as control:
            runs = control.ListRuns(ListRunsRequest()).run_dict.values()
        return Reading(
            time=time.monotonic(),
            turns=len(turns),
            socket_up=sum(turn.up for turn in turns),
            socket_down=sum(turn.down for turn in turns),
            polls=len(polls),
            poll_up=sum(turn.up for turn in polls),
            poll_down=sum(turn.down for turn in polls),
            connections=len(self._proxy.connections),
            link_up=sum(run.bytes_recv for run in runs),
            link_down=sum(run.bytes_sent for run in runs),
            app_seconds=sum(run.clientapp_runtime for run in runs),
            cpu=self.processes.cpu(),
        )

    @property
    def handshake(self) -> tuple[float, float]:
        """Bytes up and down of the first turn of a connection; some more come with the next one."""
        first = [connection.turns[0] for connection in self._proxy.connections if connection.turns]
        return median(turn.up for turn in first), median(turn.down for turn in first)

    def idle(self, seconds: float) -> dict[str, float]:
        """Measure for `seconds` what passes while nothing happens. Later figures leave it out."""
        before, start = self.read(), time.monotonic()
        time.sleep(seconds)
        turns = [turn for turn in self._proxy.turns() if start <= turn.began]
        after = self.read()
        self.polling = Polling.of(turns, after.time - start)
        return after.since(before, self.polling) | {"polls": self.polling.count}

    def run(self, tables: Mapping[str, Any], folder: Path) -> tuple[int, list[Call]]:
        """Train on the federation; the model's dim, and every call from the first request to train."""
        where = {"address": self._federation.address, "root_certificates": str(self._federation.root_certificates)}
        engine = {"name": "flower", "deadline": 300.0, "evaluate_every": 1_000, **where}
        calls: list[Call] = []
        with self._watched(calls):
            result = run({**tables, "engine": engine}, folder=folder)
        time.sleep(SETTLED)
        last = self.read()
        lines = [json.loads(line) for line in (folder / TRAFFIC).read_text().splitlines()]
        for call, line, after in zip(calls, lines, [*(call.before for call in calls[1:]), last], strict=True):
            call.traffic = line
            call.passed = after.since(call.before, self.polling)
            call.parts = self._diary.parts(call.began, call.ended, after.time)
        return result.dim, calls

    @contextmanager
    def _watched(self, calls: list[Call]) -> Iterator[None]:
        """Note what each call costs. The server's time is that of this process without those who watch."""
        original = FlowerEngine.ask

        def own_cpu() -> float:
            return time.process_time() - self._proxy.cpu_seconds - self._diary.cpu_seconds

        def ask(engine: FlowerEngine, requests: Mapping[int, bytes], stage: str = "train") -> dict[int, bytes]:
            call = Call(stage=stage, before=self.read(), began=time.monotonic())
            calls.append(call)
            start = own_cpu()
            try:
                return original(engine, requests, stage)
            finally:
                call.ended, call.server_cpu = time.monotonic(), own_cpu() - start

        with patch.object(FlowerEngine, "ask", ask):
            yield
