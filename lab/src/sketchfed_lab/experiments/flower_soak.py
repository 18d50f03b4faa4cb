"""Hundreds of rounds on a real Flower federation while clients, SuperNodes, the SuperLink and the server fail at random."""

import contextlib
import json
import logging
import os
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sketchfed.errors import SketchfedError
from sketchfed.runs import read_rows
from sketchfed_lab.experiments.flower_soak_report import report

if TYPE_CHECKING:
    from sketchfed.flower import Loopback


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What fails, and how often."""

    arms: list[str]
    """'open', and 'secure' with secure sums."""
    nodes: int
    rounds: int
    secure_rounds: int
    faults: float
    """The share of messages to a client that end in a fault, of all kinds that `sketchfed_lab.faults.chaos` has."""
    secure_faults: float
    """The same in secure sums, where a round takes five messages to each client."""
    node_kills: float
    """The share of rounds in which a SuperNode is killed, and started again within seconds."""
    link_kills: int
    """How often the SuperLink is killed and started again."""
    server_kills: int
    """How often the server itself stops, and resumes from its folder."""
    deadline: float
    sleep: float
    """How long a slow client takes: longer than the deadline."""
    seed: int


class StoppedError(Exception):
    """The server was told to die here."""


def run(settings: Settings, folder: Path) -> None:
    """Soak each arm that is not there yet (results.jsonl), then write table.md and figure.svg."""
    path = folder / "results.jsonl"
    done = {row["arm"] for row in read_rows(path) if row.get("finished")}
    rows = [row for row in read_rows(path) if row["arm"] in done]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))  # an arm that was cut off begins anew
    for arm in settings.arms:
        if arm not in done:
            with path.open("a") as file, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
                rows += _soaked(arm, settings, Path(work), partial(_told, file))
    report(rows, folder)


def _told(file: Any, row: dict[str, Any]) -> None:
    file.write(json.dumps(row) + "\n")
    file.flush()
    if "round" in row:
        done = f"{row['arm']} {row['round']:4d}  {row['seconds']:6.1f} s  {row['participants']} clients"
        Console().print(done, row["refused"] or "", row["killed"] or "")


def tables(arm: str, settings: Settings) -> dict[str, Any]:
    """The configuration of an arm, without its engine."""
    rounds = settings.rounds if arm == "open" else settings.secure_rounds
    made: dict[str, Any] = {
        "seed": settings.seed,
        "data": {"name": "digits", "clients": settings.nodes},
        "algorithm": {"name": "iterative", "rounds": rounds, "local_steps": 5, "local_rate": 0.5},
    }
    return made if arm == "open" else made | {"secure": {"clip": 50.0, "survivors": 0.6, "attempts": 5}}


def _soaked(arm: str, settings: Settings, work: Path, tell: Callable[[dict[str, Any]], None]) -> list[dict[str, Any]]:
    """The rows of an arm: one a round, and what it came to."""
    from sketchfed import run as trained

    plain = trained(tables(arm, settings))
    soak = Soak(arm, settings, work, tell)
    soak.go()
    whole = {"local_accuracy": plain.accuracy, "local_loss": plain.loss, **soak.summary()}
    tell({"arm": arm, "finished": True, **whole})
    return [*soak.rows, {"arm": arm, "finished": True, **whole}]


class Soak:
    """One run among failures, measured after every round."""

    def __init__(self, arm: str, settings: Settings, work: Path, tell: Callable[[dict[str, Any]], None]) -> None:
        from sketchfed.flower import Loopback
        from sketchfed_lab.faults.chaos import FAULTS

        self.rows: list[dict[str, Any]] = []
        self._arm, self._settings, self._work, self._tell = arm, settings, work, tell
        self._script = work / "script.json"
        share = settings.faults if arm == "open" else settings.secure_faults
        # One fault is left out: a SuperNode whose client dies while it sends waits for the rest until it is started anew.
        faults = [fault for fault in FAULTS if fault != "half"]
        rule = {"share": share, "seed": settings.seed, "seconds": settings.sleep, "fault": faults}
        self._script.write_text(json.dumps([rule]))
        (work / "tmp").mkdir()
        self._federation = Loopback(
            work / "federation",
            nodes=settings.nodes,
            node_config=lambda index: {"partition-id": index, "chaos": str(self._script)},
            environment={"TMPDIR": str(work / "tmp")},
        )
        self._kills = Kills(self._federation)
        self._plan = random.Random(f"{settings.seed} {arm}")
        rounds = range(2, settings.rounds if arm == "open" else settings.secure_rounds)
        self._link_dies, self._server_dies = (
            set(self._plan.sample(rounds, min(count, len(rounds)))) for count in (settings.link_kills, settings.server_kills)
        )
        self._resumed: Counter[str] = Counter()
        self._log = Said()
        self._started = time.monotonic()
        self._descriptors = 0
        self._accuracy: float | None = None

    def go(self) -> None:
        """All rounds; what stops the server is resumed, as its message advises."""
        from sketchfed import resume
        from sketchfed import run as trained
        from sketchfed_lab.faults.chaos import rehearsing

        where = {"address": self._federation.address, "root_certificates": str(self._federation.root_certificates)}
        engine = {"name": "flower", "deadline": self._settings.deadline, **where}
        config, folder = tables(self._arm, self._settings) | {"engine": engine}, self._work / "run"
        with self._log.listening(), rehearsing(self._work / "app"), self._kills, self._federation:
            self._descriptors = _descriptors(os.getpid())
            self._started = time.monotonic()
            last = -1
            while True:
                try:
                    begun = (folder / "config.toml").exists()
                    result = (
                        resume(folder, on_round=self._watch) if begun else trained(config, folder=folder, on_round=self._watch)
                    )
                    break
                except (SketchfedError, StoppedError) as error:
                    self._resumed[type(error).__name__] += 1
                    self._log.note(f"resumed after {type(error).__name__}: {error}")
                    if len(self.rows) == last and not isinstance(error, StoppedError) and self._resumed.total() > 40:
                        raise
                    last = len(self.rows)
            self._accuracy = result.accuracy
            self._kills.settle()

    def _watch(self, line: dict[str, Any]) -> None:
        """Measure after a round, and plan what fails in the next."""
        now = time.monotonic()
        with self._kills.lock:
            measured = _measured(self._federation, self._work)
        row = {
            "arm": self._arm,
            "round": line["round"],
            "seconds": round(now - self._started, 2),
            "participants": line["participants"],
            "loss": line["loss"],
            "accuracy": line["accuracy"],
            **self._log.taken(),
            "killed": self._kills.taken(),
            **measured,
        }
        self._started = now
        self.rows.append(row)
        self._tell(row)
        if self._plan.random() < self._settings.node_kills:
            self._kills.node(self._plan.randrange(self._settings.nodes), *(self._plan.uniform(0, 4) for _ in range(2)))
        if line["round"] in self._link_dies:
            self._kills.link(*(self._plan.uniform(0, 4) for _ in range(2)))
        if line["round"] in self._server_dies:
            self._server_dies.remove(line["round"])
            raise StoppedError(f"after round {line['round']}")

    def summary(self) -> dict[str, Any]:
        """What it came to, when everything has ended."""
        served = [json.loads(line) for path in self._work.glob("script.*.jsonl") for line in path.read_text().splitlines()]
        written = [json.loads(line) for line in (self._work / "run" / "metrics.jsonl").read_text().splitlines()]
        happened = Counter(line["fault"] for line in served if line["fault"])
        return {
            "accuracy": self._accuracy,
            "messages": sum(line["stage"] != "hello" for line in served),
            "faults": dict(happened.most_common()),
            "resumed": dict(self._resumed),
            "rounds_counted_once": [line["round"] for line in written] == list(range(1, len(written) + 1)),
            "rounds": len(written),
            "processes_left": len(self._federation.pids()),
            "descriptors_left": _descriptors(os.getpid()) - self._descriptors,
            "files_left_in_tmp": sum(path.is_file() for path in (self._work / "tmp").rglob("*")),
        }


class Kills:
    """Kills SuperNodes and the SuperLink, and starts them again, one after the other in a thread of its own.

    The kernel ends what a thread started when that thread ends, so there is one thread for all of it. `lock` is held while
    processes come and go.
    """

    def __init__(self, federation: "Loopback") -> None:
        self.lock = Lock()
        self._federation = federation
        self._done: list[str] = []
        self._begun: list[Future[None]] = []
        self._thread = ThreadPoolExecutor(1, "kills")

    def __enter__(self) -> None:
        self._thread.submit(int).result()

    def __exit__(self, *_exception: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def node(self, index: int, before: float, between: float) -> None:
        """Kill a SuperNode `before` seconds from now, and start it again `between` seconds later."""
        kill, start = partial(self._federation.kill_node, index), partial(self._federation.start_node, index)
        self._begun.append(self._thread.submit(self._restart, "node", kill, start, before, between))

    def link(self, before: float, between: float) -> None:
        kill, start = self._federation.kill_link, self._federation.start_link
        self._begun.append(self._thread.submit(self._restart, "link", kill, start, before, between))

    def taken(self) -> dict[str, int]:
        """What was killed since the last call."""
        done, self._done = self._done, []
        return dict(Counter(done))

    def settle(self) -> None:
        """Wait for what is under way; raises what went wrong."""
        for begun in self._begun:
            begun.result()

    def _restart(self, name: str, kill: Callable[[], None], start: Callable[[], None], before: float, between: float) -> None:
        time.sleep(before)
        with self.lock:
            kill()
        self._done.append(name)
        time.sleep(between)
        with self.lock:
            start()


REASONS = {
    r"its ClientApp raised": "raised",
    r"its ClientApp died": "died",
    r"no reply came": "silent",
    r"not connected|node is away": "node away",
    r"is truncated": "truncated",
    r"is for round|another session, round or terms": "other round or sum",
    r"should carry an array": "other shape",
    r"NaN or infinity": "not finite",
    r"answers for client": "other client",
    r"holds a record": "not ours",
    r"lost what it held of it": "lost its part of a sum",
    r"reply was lost|could not be asked": "lost",
}


class Said(logging.Handler):
    """What the server says of clients that it leaves out."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._refused: Counter[str] = Counter()
        self._other: list[str] = []

    @contextmanager
    def listening(self) -> Iterator[None]:
        log = logging.getLogger("sketchfed")
        log.addHandler(self)
        try:
            yield
        finally:
            log.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        found = re.match(r"round \d+ goes on without client ([\d, ]+): (.*)", text, re.DOTALL)
        name = next((name for pattern, name in REASONS.items() if found and re.search(pattern, found[2])), None)
        if found and name:
            self._refused[name] += len(found[1].split(","))
        else:
            self.note(text)

    def note(self, text: str) -> None:
        self._other.append(text[:300])

    def taken(self) -> dict[str, Any]:
        """Since the last call: how many clients were left out for which reason, and what else was said."""
        refused, other = dict(self._refused), self._other
        self._refused, self._other = Counter(), []
        return {"refused": refused, "said": other}


ROLES = {"superlink": b"flower-superlink", "supernodes": b"flower-supernode", "workers": b"sketchfed.flower.worker"}


def _measured(federation: "Loopback", work: Path) -> dict[str, Any]:
    """Memory by role in MiB, descriptors of those that live long, processes, and files."""
    memory, descriptors = {"server": _memory(os.getpid())}, {"server": _descriptors(os.getpid())}
    pids = federation.pids()
    for role, mark in ROLES.items():
        own = [pid for pid in pids if mark in _command(pid)]
        memory[role] = sum(map(_memory, own))
        descriptors[role] = sum(map(_descriptors, own))
    return {
        "memory": {role: round(size / 2**20, 2) for role, size in memory.items()},
        "descriptors": descriptors,
        "processes": len(pids),
        "files": sum(path.is_file() for path in work.rglob("*")),
        "tmp": sum(path.is_file() for path in (work / "tmp").rglob("*")),
    }


def _memory(pid: int) -> int:
    """Bytes of its own in memory: no files, so that other programs make no difference, and of what forks share their part."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss_Anon:"):
                return int(line.split()[1]) * 1024
    return 0


def _descriptors(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return 0


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
