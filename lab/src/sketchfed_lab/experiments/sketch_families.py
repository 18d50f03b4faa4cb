"""Every sketch family in training, against FedAvg and FetchSGD: accuracy at equal bytes on MNIST and Fashion-MNIST."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sketchfed.runs import Case, Row
from sketchfed_lab.experiments import sketch_families_report
from sketchfed_lab.experiments.arms import best_of, run_arms

SPREADS: dict[str, dict[str, Any]] = {
    "iid": {"partition": "iid"},
    "dirichlet": {"partition": "dirichlet", "concentration": 0.3},
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The grid. `full` families run at every size, `others` at a tenth, `slow` ones likewise but once and for fewer rounds."""

    data_sets: list[str]
    spreads: list[str]
    full: list[str]
    inverse_ratios: list[int]
    others: list[str]
    slow: list[str]
    slow_rounds: int
    seeds: list[int]
    rounds: int
    tuning_rounds: int
    rates: list[float]
    momenta: list[float]
    hidden: int
    processes: int


Method = tuple[str, str, int]
"""Algorithm, sketch family and dim/size; FedAvg has no sketch."""


def methods(settings: Settings) -> list[Method]:
    """Everything that is compared, but for the slow families."""
    full = [("iterative", family, inverse) for family in settings.full for inverse in settings.inverse_ratios]
    others = [("iterative", family, 10) for family in settings.others]
    fetch = [("fetchsgd", "count", inverse) for inverse in settings.inverse_ratios]
    return [("fedavg", "", 1), *full, *others, *fetch]


def arm(
    settings: Settings, data: str, spread: str, method: Method, *, rate: float, momentum: float, seed: int, **how: Any
) -> Case:
    """One run. `rounds` and `validation` are in `how`; rates are those of the whole step, so momentum divides them."""
    name, family, inverse = method
    algorithm = {"name": name, "participation": 0.1, "batch": 10, "local_rate": 0.1, "rounds": how["rounds"]}
    algorithm |= {"global_rate": round(rate * (1 - momentum), 6), "global_momentum": momentum}
    tables: dict[str, Any] = {
        "seed": seed,
        "data": {"name": data, "clients": 100, "validation": how["validation"], **SPREADS[spread]},
        "model": {"name": "mlp", "hidden": [settings.hidden]},
        "algorithm": algorithm,
        "engine": {"evaluate_every": 5},
    }
    if family:
        tables["sketch"] = {"name": family, "ratio": 1 / inverse}
    key = {"data": data, "spread": spread, "algorithm": name, "sketch": family, "inverse_ratio": inverse}
    return Case(key=key | {"rate": rate, "momentum": momentum, "seed": seed, **how}, tables=tables)


BY = ("data", "algorithm", "sketch", "inverse_ratio")


def run(settings: Settings, folder: Path) -> None:
    """Tune every method by the same rule on a validation split of the IID data, run it with all seeds, and write it up."""
    places = [(data, spread) for data in settings.data_sets for spread in settings.spreads]
    steps = [(rate, momentum) for momentum in settings.momenta for rate in settings.rates]
    tuning = [
        arm(
            settings, data, "iid", method, rate=rate, momentum=momentum, seed=100, rounds=settings.tuning_rounds, validation=0.1
        )
        for data in settings.data_sets
        for method in methods(settings)
        for rate, momentum in steps
    ]
    tuned = best_of(run_arms(tuning, folder / "tuning.jsonl", processes=settings.processes, title="tuning"), BY, _quality)
    final = [  # seed by seed, so that what is there at any time is balanced
        _final(settings, data, spread, method, tuned[(data, *method)]["key"], seed, settings.rounds)
        for seed in settings.seeds
        for data, spread in places
        for method in methods(settings)
    ]
    final += [  # too slow to tune: with what suited SRHT of the same size
        _final(settings, data, "iid", ("iterative", family, 10), tuned[data, "iterative", "srht", 10]["key"], seed, rounds)
        for family in settings.slow
        for data in settings.data_sets
        for seed, rounds in [(settings.seeds[0], settings.slow_rounds)]
    ]
    rows = run_arms(final, folder / "results.jsonl", processes=settings.processes, title="runs")
    sketch_families_report.write(rows, folder)


def _final(settings: Settings, data: str, spread: str, method: Method, chosen: dict[str, Any], seed: int, rounds: int) -> Case:
    step = {"rate": chosen["rate"], "momentum": chosen["momentum"]}
    return arm(settings, data, spread, method, **step, seed=seed, rounds=rounds, validation=0.0)


def _quality(row: Row) -> float:
    """What tuning maximises: minus the held-out loss at the end."""
    return -row["curve"][-1][1] if row["curve"] and not row["diverged"] else float("-inf")
