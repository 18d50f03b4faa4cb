"""Accuracy at equal ε: whole updates, private iterative sketching, and noise on sketches, trusted or under secure sums."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sketchfed.errors import UnknownNameError
from sketchfed.runs import Case, Row
from sketchfed_lab.experiments import private_accuracy_report
from sketchfed_lab.experiments.arms import best_of, run_arms

Table = dict[str, Any]

METHODS: dict[str, Table] = {
    "dense": {"algorithm": "fedavg", "privacy": {"observer": "public"}},
    "sketch": {"algorithm": "iterative", "privacy": {"observer": "public"}},
    "sketch, secure sums": {"algorithm": "iterative", "privacy": {"name": "discrete_gaussian"}, "secure": True},
    "dense, noise in steps": {"algorithm": "fedavg", "privacy": {"placement": "steps"}},
    "private_iterative": {"algorithm": "private_iterative", "privacy": {"placement": "steps"}},
}
"""What is compared: an algorithm, and where its noise goes."""
SAME_STEPS = {"sketch, secure sums": "sketch"}
"""Methods that take the steps of another one at example level, and so its tuning: they differ in how the sum is made.

At client level they differ in their noise too, since nothing amplifies against a server that knows who took part.
"""
WHERE = ("data", "epsilon", "method", "ratio")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The grid. `ratios` are of sketches; whole updates have ratio 1."""

    methods: list[str]
    data: list[str]
    epsilons: list[float]
    ratios: list[float]
    level: str
    clients: int
    participation: float
    hidden: int
    batch: int
    local_steps: int
    local_rate: float
    momentum: float
    clip: float
    delta: float
    survivors: float
    rates: list[float]
    least_rate: float
    most_rate: float
    rounds: int
    seeds: list[int]
    processes: int

    def __post_init__(self) -> None:
        for method in self.methods:
            if method not in METHODS:
                raise UnknownNameError("method", method, METHODS)


Place = tuple[str, float, str, float]
"""Data set, ε, method, and size/dim."""


def places(settings: Settings) -> list[Place]:
    """Everything that is compared."""
    return [
        (data, epsilon, method, ratio)
        for data in settings.data
        for epsilon in settings.epsilons
        for method in settings.methods
        for ratio in ([1.0] if METHODS[method]["algorithm"] == "fedavg" else settings.ratios)
    ]


def arm(settings: Settings, place: Place, *, rate: float, seed: int, validation: float) -> Case:
    """One run. Its noise comes from a fixed seed, so that it can be repeated: it is an experiment, and protects nobody."""
    data, epsilon, method, ratio = place
    how = METHODS[method]
    privacy: Table = {"unit": settings.level, "epsilon": epsilon, "delta": settings.delta, "clip": settings.clip}
    privacy |= {"insecure_noise_seed": seed, **how["privacy"]}
    if settings.level == "client" and privacy.get("observer") == "public":
        privacy["hidden_cohorts"] = settings.participation < 1
    tables: Table = {
        "seed": seed,
        "data": {"name": data, "clients": settings.clients, "validation": validation},
        "model": {"name": "mlp", "hidden": [settings.hidden]},
        "algorithm": {
            "name": how["algorithm"],
            "rounds": settings.rounds,
            "participation": settings.participation,
            "batch": settings.batch,
            "local_steps": settings.local_steps,
            "local_rate": settings.local_rate,
            "global_rate": rate,
            "global_momentum": settings.momentum,
        },
        "privacy": privacy,
        "engine": {"evaluate_every": max(1, settings.rounds // 20)},
    }
    if ratio < 1:
        tables["sketch"] = {"name": "srht", "ratio": ratio}
    if how.get("secure"):
        tables["secure"] = {"survivors": settings.survivors}
    key = dict(zip(WHERE, place, strict=True)) | {"rate": rate, "seed": seed, "validation": validation}
    return Case(key=key | {"level": settings.level, "rounds": settings.rounds}, tables=tables)


def run(settings: Settings, folder: Path) -> None:
    """Tune the rate of every method by one rule on a validation split, run it with all seeds, and write it up."""
    compared = places(settings)
    same = SAME_STEPS if settings.level == "example" else {}
    own = [place for place in compared if same.get(place[2]) not in settings.methods]
    rates = tuned(settings, own, folder / "tuning.jsonl")

    def rate_of(place: Place) -> float:
        data, epsilon, method, ratio = place
        return rates[place] if place in rates else rates[data, epsilon, same[method], ratio]

    final = [  # seed by seed, so that what is there at any time is balanced
        arm(settings, place, rate=rate_of(place), seed=seed, validation=0.0) for seed in settings.seeds for place in compared
    ]
    results = run_arms(final, folder / "results.jsonl", processes=settings.processes, title="runs")
    private_accuracy_report.write(results, folder)


def tuned(settings: Settings, own: list[Place], path: Path) -> Mapping[Place, float]:
    """The best rate in each place; where that is the smallest or largest that was tried, one beyond is tried too."""
    wanted = [(place, rate) for place in own for rate in settings.rates]
    rows: list[Row] = []
    while wanted:
        arms = [arm(settings, place, rate=rate, seed=100, validation=0.1) for place, rate in wanted]
        rows += run_arms(arms, path, processes=settings.processes, title="tuning")
        best = {_place(row): row["key"]["rate"] for row in best_of(rows, WHERE, quality).values()}
        wanted = []
        for place, rate in best.items():
            tried = [row["key"]["rate"] for row in rows if _place(row) == place]
            wanted += [(place, 2 * rate)] if rate == max(tried) and 2 * rate <= settings.most_rate else []
            wanted += [(place, rate / 2)] if rate == min(tried) and rate / 2 >= settings.least_rate else []
    return best


def _place(row: Row) -> Place:
    data, epsilon, method, ratio = (row["key"][name] for name in WHERE)
    return data, epsilon, method, ratio


def quality(row: Row) -> float:
    """What tuning maximises: the mean of the last three accuracies on the validation split."""
    last = [point[2] for point in row["curve"][-3:]]
    return sum(last) / len(last) if last and not row["diverged"] else 0.0
