"""Accuracy at equal ε and equal bytes: subspaces that follow the gradients, random sketches, and whole updates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any

from sketchfed.errors import UnknownNameError
from sketchfed.runs import Case, Row
from sketchfed_lab.experiments import dome_accuracy_report
from sketchfed_lab.experiments.arms import accuracy, run_arms
from sketchfed_lab.experiments.searching import searched

Table = dict[str, Any]
LAST = 3
"""Scores that an accuracy is the mean of."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """An algorithm and its settings; where a search for the clip norm and the rate of the server's step begins."""

    tables: Table
    rate: float
    clip: float
    """In units of √(size/dim) for orthonormal directions, which shorten gradients about so much."""
    whole: bool = False
    shortens: bool = False
    smooth: bool = False
    placement: str = "sent"
    most: int = 10**9
    """The largest size at which it is tried: the printed update takes size³ operations a round."""


FREQUENCIES = 60
SMOOTH = {"image": [28, 28], "frequencies": FREQUENCIES}


def _dome(name: str, *, clip: float = 1.0, smooth: bool = False, centre: bool = False, **algorithm: Any) -> Method:
    subspace = {"name": name} | (SMOOTH | {"centre": centre} if smooth else {})
    tables = {"algorithm": {"name": "dome", **algorithm}, "subspace": subspace}
    return Method(tables=tables, rate=0.05, clip=clip, whole=name == "whole", shortens=name != "whole", smooth=smooth)


def _sketched(name: str, *, rate: float, placement: str = "sent") -> Method:
    tables = {"algorithm": {"name": name, "global_momentum": 0.9}, "sketch": {"name": "balanced"}}
    return Method(tables=tables, rate=rate, clip=1.0, placement=placement)


METHODS: dict[str, Method] = {
    "DP-FedAvg": Method(tables={"algorithm": {"name": "fedavg", "global_momentum": 0.9}}, rate=0.4, clip=1.0, whole=True),
    "DP-Adam": _dome("whole"),
    "DP-Adam, not de-biased": _dome("whole", debias=False),
    "DP-Adam, smooth": _dome("whole", smooth=True),
    "random sketch": _sketched("iterative", rate=0.4),
    "private_iterative": _sketched("private_iterative", rate=0.1, placement="steps"),
    "fresh": _dome("fresh"),
    "fresh, mean removed": _dome("fresh", remove_mean=True),
    "history_pca": replace(_dome("history_pca"), most=200),
    "as printed": replace(_dome("history_pca", paper=True), most=50),
    "incremental_svd": _dome("incremental_svd", clip=2.0),
    "incremental_svd, smooth": _dome("incremental_svd", clip=2.0, smooth=True),
    "fresh, smooth": _dome("fresh", smooth=True),
    "DP-Adam, centred": _dome("whole", smooth=True, centre=True),
    "incremental_svd, centred": _dome("incremental_svd", clip=2.0, smooth=True, centre=True),
    "fresh, centred": _dome("fresh", smooth=True, centre=True),
}
"""What is compared. `smooth` arms move the first layer along low frequencies only, and have Adam's moments there.

`centred` arms are smooth, ask for the mean image in their first round, and move less along it.
"""
WHERE = ("data", "epsilon", "method", "size")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The grid. `sizes` are numbers a round; whole updates have size 0."""

    methods: list[str]
    data: list[str]
    epsilons: list[float]
    sizes: list[int]
    tuned_at: float
    """The ε at which clip norm and rate are searched for; others take what was best there."""
    tries: int
    """Runs of a search, at most."""
    final_rate: float
    """What is left of the rate in the last round."""
    clients: int
    hidden: int
    batch: int
    delta: float
    rounds: int
    seeds: list[int]
    processes: int

    def __post_init__(self) -> None:
        for method in self.methods:
            if method not in METHODS:
                raise UnknownNameError("method", method, METHODS)


Place = tuple[str, float, str, int]
"""Data set, ε, method, and size."""
Point = tuple[float, float]
"""Clip norm and rate, as multiples of what a method begins with: powers of 2."""


def places(settings: Settings, epsilons: Sequence[float]) -> list[Place]:
    """Everything that is compared at these ε."""
    return [
        (data, epsilon, method, size)
        for data in settings.data
        for epsilon in epsilons
        for method in settings.methods
        for size in ([0] if METHODS[method].whole else settings.sizes)
        if size <= METHODS[method].most
    ]


def arm(settings: Settings, place: Place, point: Point, *, seed: int, validation: float) -> Case:
    """One run. Its noise comes from a fixed seed, so that it can be repeated: it is an experiment, and protects nobody."""
    data, epsilon, name, size = place
    method, dim = METHODS[name], settings.hidden * (784 + 1 + 10) + 10
    dim -= settings.hidden * (784 - FREQUENCIES) if method.smooth else 0
    shortening = sqrt(size / dim) if method.shortens else 1.0
    observer = {"placement": "steps"} if method.placement == "steps" else {"observer": "public"}
    tables: Table = {
        "seed": seed,
        "data": {"name": data, "clients": settings.clients, "validation": validation},
        "model": {"name": "mlp", "hidden": [settings.hidden]},
        "algorithm": method.tables["algorithm"]
        | {
            "rounds": settings.rounds,
            "batch": settings.batch,
            "local_steps": 1,
            "local_rate": 1.0,
            "global_rate": method.rate * point[1],
            "final_rate": settings.final_rate,
        },
        "privacy": {
            "unit": "example",
            "epsilon": epsilon,
            "delta": settings.delta,
            "clip": method.clip * point[0] * shortening,
            "insecure_noise_seed": seed,
            **observer,
        },
        "engine": {"evaluate_every": max(1, settings.rounds // 10), "workers": 1},
    }
    for inner in ("sketch", "subspace"):
        if inner in method.tables:
            tables[inner] = method.tables[inner] | ({} if method.whole else {"size": size})
    key = dict(zip(WHERE, place, strict=True)) | {"clip": point[0], "rate": point[1], "seed": seed, "validation": validation}
    return Case(key=key | {"rounds": settings.rounds, "clients": settings.clients}, tables=tables)


def run(settings: Settings, folder: Path) -> None:
    """Tune clip norm and rate of every method by one rule on a validation split, run it with all seeds, and write it up."""
    best = tuned(settings, folder / "tuning.jsonl")
    final = [  # seed by seed, so that what is there at any time is balanced
        arm(settings, place, best[place[0], settings.tuned_at, place[2], place[3]], seed=seed, validation=0.0)
        for seed in settings.seeds
        for place in places(settings, settings.epsilons)
    ]
    results = run_arms(final, folder / "results.jsonl", processes=settings.processes, title="runs")
    dome_accuracy_report.write(results, folder)


def tuned(settings: Settings, path: Path) -> Mapping[Place, Point]:
    """The best point of each place, from its start on."""

    def scores(wanted: Sequence[tuple[Place, Point]]) -> list[float]:
        arms = [arm(settings, place, point, seed=100, validation=0.1) for place, point in wanted]
        rows = run_arms(arms, path, processes=settings.processes, title="tuning")
        return [accuracy(row, last=LAST) for row in rows]

    starts = dict.fromkeys(places(settings, [settings.tuned_at]), (1.0, 1.0))
    return searched(starts, near=_near, scores=scores, tries=settings.tries)


def _near(point: Point) -> list[Point]:
    """Twice and half the rate and the clip norm."""
    clip, rate = point
    return [(clip, 2 * rate), (clip, rate / 2), (clip / 2, rate), (2 * clip, rate)]


def place_of(row: Row) -> Place:
    data, epsilon, method, size = (row["key"][name] for name in WHERE)
    return data, epsilon, method, size
