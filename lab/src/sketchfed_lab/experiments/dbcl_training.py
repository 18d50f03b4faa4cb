"""Zhang & Wang 2021, Table 1 and Figure 1: rounds and bytes of training through sketches, beside plain federated averaging."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sketchfed.runs import Case, Row
from sketchfed_lab.experiments import dbcl_training_report
from sketchfed_lab.experiments.arms import arrival, best_of, run_arms

METHODS = {"plain": "fedavg", "sketched": "dbcl"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`target` is a test accuracy at which runs end, or 0 for none; `rounds` and `sketched_rounds` say after how many they are
    given up, and `seeds` how many there are, for each share of clients.

    Local rates are tuned on a tenth of the training data, with a seed of its own, at the shares `tuned_at`; every other
    share takes what suited the nearest of these below it.
    """

    data: str
    model: str
    hidden: list[int]
    target: float
    shares: list[float]
    seeds: list[int]
    rounds: list[int]
    sketched_rounds: list[int]
    methods: list[str]
    clients: int
    ratio: float
    local_epochs: int
    batch: int
    rates: list[float]
    tuned_at: list[float]
    tuning_rounds: list[int]
    tuning_epochs: int
    evaluate_every: int
    processes: int


def arm(
    settings: Settings, method: str, share: float, rate: float, rounds: int, *, epochs: int, seed: int, tuning: bool
) -> Case:
    """A run that ends where it reaches the target; tuning is scored on held-out training data."""
    tables: dict[str, Any] = {
        "seed": seed,
        "data": {"name": settings.data, "clients": settings.clients, "validation": 0.1 if tuning else 0.0},
        "model": {"name": settings.model} | ({"hidden": settings.hidden} if settings.model == "mlp" else {}),
        "algorithm": {
            "name": METHODS[method],
            "rounds": rounds,
            "participation": share,
            "local_epochs": epochs,
            "batch": settings.batch,
            "local_rate": rate,
        },
        "engine": {"evaluate_every": rounds if tuning and not settings.target else settings.evaluate_every},
    }
    if settings.target:
        tables["engine"]["target_accuracy"] = settings.target
    if method == "sketched":
        tables["sketch"] = {"name": "balanced", "ratio": settings.ratio}
        tables["algorithm"]["public_start"] = True  # so that the figures can be repeated
    key = {"task": f"{settings.data} {settings.model}", "method": method, "share": share, "rate": rate, "rounds": rounds}
    return Case(key=key | {"epochs": epochs, "seed": seed, "target": settings.target, "tuning": tuning}, tables=tables)


def run(settings: Settings, folder: Path) -> None:
    """Tune both methods by the same rule, run what was chosen, and write it up."""
    tuning = [
        arm(settings, method, share, rate, rounds, epochs=settings.tuning_epochs, seed=100, tuning=True)
        for share, rounds in zip(settings.tuned_at, settings.tuning_rounds, strict=True)
        for method in settings.methods
        for rate in settings.rates
    ]
    rows = run_arms(tuning, folder / "tuning.jsonl", processes=settings.processes, title="tuning")
    tuned = best_of(rows, ("method", "share"), quality)
    final = [
        arm(settings, method, share, _rate(settings, tuned, method, share), rounds, epochs=epochs, seed=seed, tuning=False)
        for share, seeds, *most in zip(settings.shares, settings.seeds, settings.rounds, settings.sketched_rounds, strict=True)
        for epochs in [settings.local_epochs]
        for seed in range(seeds)
        for method, rounds in zip(METHODS, most, strict=True)
        if method in settings.methods
    ]
    results = run_arms(final, folder / "results.jsonl", processes=settings.processes, title="runs")
    dbcl_training_report.write(results, folder)


def _rate(settings: Settings, tuned: dict[tuple[Any, ...], Row], method: str, share: float) -> float:
    """The tuned rate of the nearest share of clients that is not larger."""
    near = max((at for at in settings.tuned_at if at <= share), default=min(settings.tuned_at))
    rate: float = tuned[method, near]["key"]["rate"]
    return rate


def quality(row: Row) -> tuple[float, float]:
    """What tuning maximises: reach the target in the fewest rounds; if it is not reached, the best held-out accuracy.

    Without a target it is minus the held-out loss at the end.
    """
    if row["diverged"] or not row["curve"]:
        return 0.0, -math.inf
    if not row["key"]["target"]:
        return 0.0, -row["curve"][-1][1]
    there = arrival(row, row["key"]["target"])
    return (0.0, max(point[2] for point in row["curve"])) if there is None else (1.0, -float(there[0]))
