"""The contestants of `rounds.py`, a file each, and a way to let one work in a process of its own.

A contestant is a module with `measure(work, ...)`, which does the work and returns its `Laps`.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from sketchfed_lab.benchmarks.peers.work import Work

__all__ = ["ContestantError", "Result", "Work", "ask"]


class ContestantError(RuntimeError):
    """A contestant that ended without a result; the message is the last that it said."""


@dataclass(frozen=True)
class Result:
    """Seconds of each round, the mean CPU seconds of a round, and the most memory that the process held.

    The last two are None where the system does not tell. `facts` is what else a contestant tells of itself.
    """

    seconds: list[float]
    cpu_seconds: float | None
    peak_bytes: int | None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """Seconds of a round."""
        return fmean(self.seconds)


def ask(name: str, work: Work, options: Mapping[str, Any], *, cores: int, limit: float) -> Result:
    """Let a contestant work in a new process on that many cores, for at most `limit` seconds.

    What it leaves behind, be it files or processes, is removed.
    """
    with tempfile.TemporaryDirectory(prefix="sketchfed-", ignore_cleanup_errors=True) as folder:
        log, target = Path(folder) / "log", Path(folder) / "result.json"
        order = [
            sys.executable,
            "-m",
            "sketchfed_lab.benchmarks.peers",
            name,
            json.dumps(asdict(work)),
            json.dumps(dict(options)),
            str(target),
        ]
        with log.open("wb") as file:
            process = subprocess.Popen(
                order, env=_environment(folder), cwd=folder, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                _pin(process.pid, cores)
                process.wait(limit)
            except subprocess.TimeoutExpired:
                raise ContestantError(f"{name} was still at work after {limit:g} s") from None
            finally:
                _end(process)
        if not target.exists():
            said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise ContestantError(f"{name} ended without a result: {said[-1] if said else 'it said nothing'}")
        return Result(**json.loads(target.read_text()))


def _environment(folder: str) -> dict[str, str]:
    """Ours, with this package in reach; Flower and Ray keep their files in the folder and tell nobody of their use."""
    private = {"FLWR_HOME": str(Path(folder) / "flwr"), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    private |= {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0"}
    paths = [str(Path(__file__).parents[3]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    inherited = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return {**inherited, **private, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _pin(pid: int, cores: int) -> None:
    """Keep a process that has only just begun, and all that it will start, on that many cores, where the system can."""
    if sys.platform == "linux":
        with suppress(ProcessLookupError):
            os.sched_setaffinity(pid, sorted(os.sched_getaffinity(0))[:cores])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started and that is still there."""
    if sys.platform == "win32":
        process.kill()
    else:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
