"""How many bytes a client sends and receives until a model reaches an accuracy: sketches both ways against FedAvg."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sketchfed.runs import Case, Row
from sketchfed_lab.experiments import bytes_to_accuracy_report
from sketchfed_lab.experiments.arms import arrival, best_of, run_arms

TASKS: dict[str, dict[str, Any]] = {
    "mnist": {
        "data": {"name": "mnist", "clients": 100},
        "model": {"name": "mlp", "hidden": [200, 200]},
        "algorithm": {"participation": 0.1, "batch": 10},
    },
    "fashion_mnist": {
        "data": {"name": "fashion_mnist", "clients": 100},
        "model": {"name": "mlp", "hidden": [200, 200]},
        "algorithm": {"participation": 0.1, "batch": 10},
    },
    "cifar10": {
        "data": {"name": "cifar10", "clients": 100},
        "model": {"name": "lenet"},
        "algorithm": {"participation": 0.1, "batch": 50},
        "engine": {"evaluate_every": 2},
    },
}
METHODS = ("fedavg", "sketch")
PROTOTYPE = {"ratio": 0.01, "bits": 4, "global_rate": 0.5}
"""What reached 320 times fewer bytes before this library existed, with plain stochastic rounding and one seed."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Targets are test accuracies; tuning aims `margin` lower, on a tenth of the training data, with a seed of its own.

    A sketch's global rate is `strength`·√(size/dim). Runs have twice the rounds of tuning before they are given up.
    """

    tasks: list[str]
    targets: list[float]
    margin: float
    rounds: list[int]
    seeds: list[int]
    local_rates: list[float]
    local_epochs: list[int]
    ratios: list[float]
    bits: list[int]
    strengths: list[float]
    processes: int


def arm(task: str, rounds: int, target: float, key: dict[str, Any], *, seed: int, validation: float) -> Case:
    """A run that ends where it reaches the target."""
    tables: dict[str, Any] = {part: dict(table) for part, table in TASKS[task].items()}
    tables |= {"seed": seed, "engine": tables.get("engine", {}) | {"target_accuracy": target}}
    tables["data"]["validation"] = validation
    tables["algorithm"] |= {"name": key["algorithm"], "rounds": rounds}
    tables["algorithm"] |= {
        setting: key[setting] for setting in ("local_rate", "local_epochs", "global_rate") if setting in key
    }
    if "ratio" in key:
        tables["sketch"] = {"name": "srht", "ratio": key["ratio"], "bits": key["bits"]}
    return Case(key={"task": task, **key, "target": target, "rounds": rounds, "seed": seed}, tables=tables)


def candidates(settings: Settings) -> list[dict[str, Any]]:
    """What tuning chooses from. Local work is tuned for FedAvg and for the sketch alike."""
    work = [{"local_rate": rate, "local_epochs": epochs} for rate in settings.local_rates for epochs in settings.local_epochs]
    dense = [{"algorithm": "fedavg", "method": "fedavg", **local} for local in work]
    sketched = [
        {"algorithm": "iterative", "method": "sketch", **local, "ratio": ratio, "bits": bits, "global_rate": rate}
        for local in work
        for ratio in settings.ratios
        for bits in settings.bits
        for rate in sorted({round(min(1.0, strength * ratio**0.5), 3) for strength in settings.strengths})
    ]
    return dense + sketched


def run(settings: Settings, folder: Path) -> None:
    """Tune both methods by the same rule, run what was chosen and the prototype's setting with all seeds, and write it up."""
    tuning, final = [], []
    for task, target, rounds in zip(settings.tasks, settings.targets, settings.rounds, strict=True):
        low = round(target - settings.margin, 4)
        tuning += [arm(task, rounds, low, key, seed=100, validation=0.1) for key in candidates(settings)]
    if len(candidates(settings)) == len(METHODS):  # one of each: there is nothing to choose
        rows: list[Row] = [{"key": dict(one.key), "curve": [], "diverged": False} for one in tuning]
    else:
        rows = run_arms(tuning, folder / "tuning.jsonl", processes=settings.processes, title="tuning")
    tuned = best_of(rows, ("task", "method"), _quality)
    short = best_of([row for row in rows if row["key"]["local_epochs"] == 1], ("task", "method"), _quality)
    for task, target, rounds in zip(settings.tasks, settings.targets, settings.rounds, strict=True):
        keys = [_kept(tuned[task, method]) for method in METHODS]
        if task == "mnist":  # the prototype's setting, and what tuning finds with its local work
            keys += [_kept(short[task, method]) | {"method": f"{method}-1"} for method in METHODS]
            keys.append({"algorithm": "iterative", "method": "prototype", "local_rate": 0.1, "local_epochs": 1, **PROTOTYPE})
        final += [arm(task, 2 * rounds, target, key, seed=seed, validation=0.0) for key in keys for seed in settings.seeds]
    results = run_arms(final, folder / "results.jsonl", processes=settings.processes, title="runs")
    bytes_to_accuracy_report.write(results, folder)


def _kept(row: Row) -> dict[str, Any]:
    """What of a tuned arm is run again."""
    kept = ("algorithm", "method", "local_rate", "local_epochs", "ratio", "bits", "global_rate")
    return {name: row["key"][name] for name in kept if name in row["key"]}


def _quality(row: Row) -> tuple[float, float]:
    """What tuning maximises: reach the target, then fewest bytes both ways; if it is not reached, the best accuracy."""
    there = arrival(row, row["key"]["target"])
    if there is None or row["diverged"]:
        return 0.0, max((point[2] for point in row["curve"]), default=0.0)
    return 1.0, -float(there[3] + there[4])
