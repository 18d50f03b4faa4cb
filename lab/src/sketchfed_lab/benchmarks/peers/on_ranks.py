"""sketchfed on the ranks of a launch: this process is rank 0, and it starts the others."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sketchfed_lab.benchmarks.peers import ours
from sketchfed_lab.benchmarks.peers.laps import Laps
from sketchfed_lab.benchmarks.peers.memory import peak_bytes
from sketchfed_lab.benchmarks.peers.work import Work

_ENGINE = {"name": "ranks", "checkpoint_seconds": 1e9}


def measure(work: Work, *, ranks: int, cores: int, sketched: bool) -> Laps:
    """Do all rounds on that many ranks, which divide the cores."""
    options = {"cores": max(1, cores // ranks), "sketched": sketched}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    told = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in told.items()}
    given = [json.dumps(asdict(work)), json.dumps(options)]
    with tempfile.TemporaryDirectory() as home:
        others = [
            subprocess.Popen(
                [sys.executable, "-m", __name__, *given],
                env={**os.environ, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(1, ranks)
        ]
        try:
            os.environ["RANK"] = "0"
            laps = ours.measure(work, **options, engine=_ENGINE, folder=Path(home) / "run")  # type: ignore[arg-type]
            moved: dict[str, Any] = json.loads((Path(home) / "run" / "summary.json").read_text())["ranks"]
            rounds = 1 + work.warmup + work.rounds
            peaks = [json.loads(other.communicate(timeout=60)[0].splitlines()[-1]) for other in others]
        finally:
            for other in others:
                other.kill()
    laps.facts = {"ranks": ranks, "peaks": peaks, **{key: moved[key] / rounds for key in ("sent", "received")}}
    return laps


def _follow(work: str, options: str) -> None:
    """Serve clients as another rank, and say how much memory that took."""
    ours.measure(Work(**json.loads(work)), **json.loads(options), engine=_ENGINE)
    print(json.dumps(peak_bytes()), flush=True)
    os._exit(0)  # rank 0 waits for this, and would wait for its own goodbye


if __name__ == "__main__":
    _follow(*sys.argv[1:])
