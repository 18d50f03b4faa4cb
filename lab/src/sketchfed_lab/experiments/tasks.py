"""What the experiments on the three tasks of Jiang et al. 2023, Sec. 5, share: which codecs, which runs, what is kept."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from sketchfed import PublicSeed
from sketchfed.codecs import CODECS, Channel, Codec, fit, make_codec, measure, packet_bytes
from sketchfed.errors import DivergedError, InputError
from sketchfed.runs import Case, Row
from sketchfed.tasks import History, MeanEstimator
from sketchfed.wire import pack
from sketchfed_lab.experiments import tasks_report
from sketchfed_lab.experiments.arms import run_arms
from sketchfed_lab.experiments.tasks_methods import AT_EQUAL_BYTES, METHODS, PAPER, Method
from sketchfed_lab.experiments.tasks_problems import Problem, problem

VARYING = ("wangni",)
"""Codecs whose packets are longer for some vectors than for the normal one that `fit` measures."""
LAST = 10
"""The number of last iterations over which an error is averaged. The paper draws the last error, which is less steady."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The grid. A cell is a number of clients and how many numbers each sends, such as "10 x 102"."""

    cells: list[str]
    """At equal size: where the paper's codecs run."""
    every_codec_at: list[str]
    """At equal size: where all codecs run."""
    main_cells: list[str]
    """Where all codecs run at equal bytes as well, those of `rand_k` there, and are timed."""
    splits: list[str]
    iterations: int
    runs: int
    """Of the paper's codecs at equal size."""
    other_runs: int
    """Of all else."""
    seed: int
    processes: int


def run_task(task: str, settings: Settings, folder: Path, *, rate: float | None = None) -> None:
    """All runs (results.jsonl), table.md and the figures."""
    made = arms(task, settings, rate)
    rows = run_arms(made, folder / "results.jsonl", processes=settings.processes, title=task, compute=compute)
    timed = timings(task, settings, rate)  # one after the other, so that they do not disturb each other's clock
    rows += run_arms(timed, folder / "results.jsonl", processes=1, title="times", compute=compute)
    tasks_report.write(task, rows, asdict(settings), folder)


def arms(task: str, settings: Settings, rate: float | None = None) -> list[Case]:
    """Equal size, then equal bytes; codecs that send all coordinates run once for a number of clients."""
    keys = []
    for split in settings.splits:
        for cell in settings.cells:
            clients, size = parse(cell)
            for name in METHODS if cell in settings.every_codec_at else PAPER:
                sized = METHODS[name].codec in _sized()
                keys.append(
                    {"compare": "size", "split": split, "clients": clients, "size": size if sized else 0, "method": name}
                )
    for split in settings.splits:
        for clients, size in map(parse, settings.main_cells):
            keys += [
                {"compare": "bytes", "split": split, "clients": clients, "size": size, "method": name}
                for name in AT_EQUAL_BYTES
            ]
    unique = {str(key): key for key in keys}.values()
    heavy_first = sorted(unique, key=lambda key: -int(key["clients"]))  # type: ignore[call-overload]
    return [_arm(task, settings, key, rate) for key in heavy_first]


def timings(task: str, settings: Settings, rate: float | None) -> list[Case]:
    return [
        _arm(task, settings, {"compare": "time", "split": settings.splits[0], "clients": n, "size": k, "method": name}, rate)
        for n, k in map(parse, settings.main_cells)
        for name, method in METHODS.items()
        if not (method.feedback or method.prediction)
    ]


def _arm(task: str, settings: Settings, key: Mapping[str, Any], rate: float | None) -> Case:
    runs = settings.runs if key["compare"] == "size" and key["method"] in PAPER else settings.other_runs
    common = {"task": task, "iterations": settings.iterations, "runs": runs, "seed": settings.seed}
    return Case(key={**common, **({} if rate is None else {"rate": rate}), **key}, tables={})


def parse(cell: str) -> tuple[int, int]:
    """Clients and size of a cell."""
    parts = cell.split("x")
    if len(parts) != 2 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise InputError(f"a cell is written clients x size, such as '10 x 102', got {cell!r}.")
    return int(parts[0]), int(parts[1])


@lru_cache(maxsize=1)
def _sized() -> frozenset[str]:
    """Codecs that must be told a size."""
    found = set()
    for name in CODECS.built_in:
        try:
            make_codec(name, dim=8, clients=2)
        except InputError:
            found.add(name)
    return frozenset(found)


def compute(arm: Case) -> Row:
    """All runs of an arm."""
    key = dict(arm.key)
    with threadpool_limits(1):
        solved = problem(key["task"], key.get("rate"))
        method = (AT_EQUAL_BYTES if key["compare"] == "bytes" else METHODS)[key["method"]]
        try:
            codec = _codec(method, key, solved)
        except InputError as refusal:
            return {"key": key, "refused": str(refusal)}
        if key["compare"] == "time":
            return {"key": key, **_times(solved, codec, key)}
        begun = time.perf_counter()
        histories = list(filter(None, (_run(solved, method, codec, key, run) for run in range(key["runs"]))))
    return {
        "key": key,
        "numbers": getattr(codec, "size", None) or codec.dim,
        "bits": getattr(codec, "bits", 1 if codec.name == "sign" else 32),
        "diverged": key["runs"] - len(histories),
        **_summary(histories),
        "seconds": round(time.perf_counter() - begun, 1),
    }


def _codec(method: Method, key: Mapping[str, Any], solved: Problem) -> Codec:
    if key["compare"] == "bytes":
        budget = int(packet_bytes(make_codec("rand_k", dim=solved.dim, size=key["size"])))
        codec = fit(method.codec, dim=solved.dim, budget=budget, clients=key["clients"], **method.options)
        for _ in range(2 if codec.name in VARYING else 0):  # what clients send depends on what was lost before
            heard = _listen(solved, key, method.channel(codec, PublicSeed(key["seed"])))
            some = torch.cat([x.reshape(-1, codec.dim)[i % len(x) :: len(x)] for i, x in enumerate(heard)])
            codec = _fitted_to(codec, budget, some[some.any(1)])
        return codec
    size = key["size"] if method.codec in _sized() else None
    return make_codec(method.codec, dim=solved.dim, size=size, clients=key["clients"], **method.options)


def _fitted_to(codec: Codec, budget: int, examples: Tensor) -> Codec:
    """The codec with the most numbers whose packets of these vectors, not of a normal one, take the budget on average."""
    fits, too_many = 1, codec.dim + 1
    while too_many - fits > 1:
        trial = replace(codec, size=(fits + too_many) // 2)  # type: ignore[call-arg]
        packets = [trial.encode(x, PublicSeed(0).child("example", i)) for i, x in enumerate(examples)]
        if np.mean([len(pack(trial.bare(packet))) for packet in packets]) <= budget:
            fits = (fits + too_many) // 2
        else:
            too_many = (fits + too_many) // 2
    return replace(codec, size=fits)  # type: ignore[call-arg]


def _run(solved: Problem, method: Method, codec: Codec, key: Mapping[str, Any], run: int) -> History | None:
    """One run; None if numbers overflowed. Everything but the codec is the same for all methods."""
    seed = PublicSeed(key["seed"]).child("run", run)
    channel = method.channel(codec, seed.child("channel"))
    try:
        return solved.solve(channel, key["split"], key["clients"], key["iterations"], seed)
    except DivergedError:
        return None


def _summary(histories: Sequence[History]) -> Row:
    """Means over runs and standard deviations, an entry an iteration, and the bytes that a client has sent."""
    if not histories:
        return {}
    curves = {"error": [h.errors for h in histories], "loss": [h.losses for h in histories]}
    row: Row = {"bytes": [_short(value) for value in np.mean([h.client_bytes for h in histories], axis=0)]}
    for name, values in curves.items():
        array = np.array(values)
        row[name] = [_short(value) for value in array.mean(0)]
        row[f"{name}_sd"] = [_short(value, 3) for value in array.std(0, ddof=1)] if len(array) > 1 else [0.0] * array.shape[1]
    ends = np.array([np.mean(h.errors[-LAST:]) for h in histories])
    row["end"] = [_short(ends.mean()), _short(ends.std(ddof=1), 3) if len(ends) > 1 else 0.0]
    return row


def _short(value: Any, digits: int = 5) -> float:
    return float(f"{float(value):.{digits}g}")


class _Listener:
    """Notes what clients send to somebody who estimates means."""

    def __init__(self, estimator: MeanEstimator) -> None:
        self.estimator = estimator
        self.heard: list[Tensor] = []

    def mean(self, vectors: Tensor, present: Tensor | None = None) -> Tensor:
        self.heard.append(vectors)
        return self.estimator.mean(vectors, present)


def _listen(solved: Problem, key: Mapping[str, Any], channel: MeanEstimator, iterations: int | None = None) -> list[Tensor]:
    """The vectors that clients send in each iteration of a task."""
    listener = _Listener(channel)
    solved.solve(
        listener, key["split"], key["clients"], iterations or key["iterations"], PublicSeed(key["seed"]).child("run", 0)
    )
    return listener.heard


def _times(solved: Problem, codec: Codec, key: Mapping[str, Any]) -> Row:
    """Seconds to encode one client's vector and to decode all of them, on vectors of the task's third iteration."""
    seed = PublicSeed(key["seed"])
    heard = _listen(solved, key, Channel(make_codec("dense", dim=codec.dim), seed), iterations=3)[-1]
    trials = measure(codec, heard.reshape(key["clients"], -1, codec.dim)[:, 0].contiguous(), trials=25, seed=seed)
    return {"encode": _short(trials.encode_seconds, 3), "decode": _short(trials.decode_seconds, 3)}
