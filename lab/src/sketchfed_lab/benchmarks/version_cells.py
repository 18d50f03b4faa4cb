"""The work that `versions.py` times, in a process that has one version of sketchfed on its path.

`python version_cells.py PLAN` does one piece of work for each line of its input, and answers with a line of JSON: the cell, and
the CPU seconds of one piece. Both versions run this same file, so it uses only what every version has: `run`, `PublicSeed` and
the sketches, and nothing of the lab.
"""

import gc
import json
import logging
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from sketchfed import PublicSeed, run
from sketchfed.sketches import SKETCHES

DIM, SIZE = 1 << 18, 1 << 12
DENSE = ("ams", "gaussian")
"""Families whose cost grows with dim × size: they get smaller vectors."""

MODEL = {"name": "mlp", "hidden": [200, 200]}
LOCAL = {"local_steps": 5, "batch": 10}
NOISE = {"noise_multiplier": 1.0, "delta": 1e-4, "clip": 0.5}
ROUNDS: dict[str, dict[str, Any]] = {
    "fedavg": {"algorithm": {"name": "fedavg", **LOCAL}},
    "fedavg, eden": {"algorithm": {"name": "fedavg", **LOCAL}, "codec": {"name": "eden"}},
    "iterative 1/10": {"algorithm": {"name": "iterative", **LOCAL}, "sketch": {"ratio": 0.1}},
    "iterative 1/100, 4 bits": {"algorithm": {"name": "iterative", **LOCAL}, "sketch": {"ratio": 0.01, "bits": 4}},
    "fetchsgd": {"algorithm": {"name": "fetchsgd", **LOCAL}, "sketch": {"ratio": 0.1}},
    "dbcl": {"algorithm": {"name": "dbcl", **LOCAL}, "sketch": {"ratio": 0.5}},
    "dome": {"algorithm": {"name": "dome", "local_steps": 1}, "privacy": NOISE},
    "noise for clients": {"algorithm": {"name": "iterative", **LOCAL}, "sketch": {"ratio": 0.1}, "privacy": NOISE},
    "noise for examples": {
        "algorithm": {"name": "iterative", "local_steps": 1, "batch": 10},
        "sketch": {"ratio": 0.1},
        "privacy": NOISE | {"unit": "example"},
    },
    "secure sums": {
        "algorithm": {"name": "iterative", **LOCAL},
        "sketch": {"ratio": 0.1},
        "privacy": NOISE | {"name": "discrete_gaussian"},
        "secure": {"survivors": 0.6},
    },
}
"""Rounds of ten clients on the embedded digits, with 55,000 parameters."""


def cpu_seconds(work: Callable[[], object], times: int) -> float:
    start = time.process_time()
    for _ in range(times):
        work()
    return time.process_time() - start


def step(cell: str, work: Callable[[], float]) -> None:
    """Wait for a line, then say how long the work took."""
    if not sys.stdin.readline():
        sys.exit()
    print(json.dumps([cell, work()]), flush=True)


def time_sketches(*, turn: float, turns: int) -> None:
    """Every family, both ways. A turn repeats a call for about `turn` seconds."""
    for name in sorted(SKETCHES):
        shape = {"dim": DIM // 64, "size": SIZE // 16} if name in DENSE else {"dim": DIM, "size": SIZE}
        sketch = SKETCHES[name](**shape, seed=PublicSeed(7))
        for way, vector in (("apply", torch.randn(shape["dim"])), ("adjoint", torch.randn(shape["size"]))):
            call = partial(getattr(sketch, way), vector)
            call()
            times = 1
            while cpu_seconds(call, times) < turn / 2:
                times *= 2
            for _ in range(turns):
                step(f"sketch: {name}, {way}", lambda call=call, times=times: cpu_seconds(call, times) / times)  # type: ignore[misc]


def time_rounds(*, count: int) -> None:
    """Rounds of each kind, one a line, after two that load and compile what is needed."""
    for name, tables in ROUNDS.items():
        algorithm = tables["algorithm"] | {"rounds": count + 3}
        engine = {"workers": 1, "evaluate_every": count + 3}
        clock = Clock(f"round: {name}", skipped=2, count=count)
        run({"data": {"clients": 10}, "model": MODEL, **tables, "algorithm": algorithm, "engine": engine}, on_round=clock)


class Clock:
    """Called after each round: says how long it took, except for the first ones and the last, and waits for the next line."""

    def __init__(self, cell: str, *, skipped: int, count: int) -> None:
        self.cell, self.skipped, self.count, self.start = cell, skipped, count, 0.0

    def __call__(self, line: dict[str, Any]) -> None:
        taken, done = time.process_time() - self.start, line["round"] - self.skipped
        if 0 < done <= self.count:
            print(json.dumps([self.cell, taken]), flush=True)
        if 0 <= done < self.count and not sys.stdin.readline():
            sys.exit()
        self.start = time.process_time()


def main(plan: dict[str, Any]) -> None:
    logging.getLogger("sketchfed").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    gc.disable()
    time_sketches(turn=plan["turn"], turns=plan["turns"])
    time_rounds(count=plan["rounds"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
