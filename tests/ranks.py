"""Starts the ranks of a launch as torchrun does, and ends them in bounded time."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

HERE = Path(__file__).parent
LIMIT = 90.0
"""Seconds after which ranks that should have ended are killed."""


class Ended(NamedTuple):
    """How a rank ended."""

    code: int
    said: str
    """What it printed, errors included."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun tells a process."""
    told = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    found = os.pathsep.join([str(HERE), str(HERE / "runs"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": found, **{name: str(value) for name, value in told.items()}}


class Ranks:
    """The processes of a launch. Each runs `python ARGUMENTS`, or arguments of its own."""

    def __init__(self, size: int, *arguments: object, own: Sequence[Sequence[object]] = (), folder: Path) -> None:
        port = free_port()
        self._logs = [folder / f"rank-{rank}.log" for rank in range(size)]
        self.processes = []
        for rank in range(size):
            given = [str(each) for each in (own[rank] if own else arguments)]
            with self._logs[rank].open("w") as log:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, *given],
                        env=environment(rank, size, port),
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        cwd=folder,
                    )
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def kill(self, rank: int, how: signal.Signals = signal.SIGKILL) -> None:
        self.processes[rank].send_signal(how)

    def ended(self) -> list[Ended]:
        """How all ranks ended."""
        for process in self.processes:
            process.wait(LIMIT)
        return [Ended(process.returncode, log.read_text()) for process, log in zip(self.processes, self._logs, strict=True)]
