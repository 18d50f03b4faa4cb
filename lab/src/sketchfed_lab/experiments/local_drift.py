"""FedAdam, FedProx and SCAFFOLD against FedAvg where clients have unlike data, dense and sketched."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sketchfed.errors import UnknownNameError
from sketchfed.runs import Case, trained
from sketchfed_lab.experiments import local_drift_report
from sketchfed_lab.experiments.arms import run_arms
from sketchfed_lab.experiments.climbing import DOUBLES, HALF_DECADES, Axis, Point, Tuning, decades, values


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every arm is tuned at every size by the same rule. `inverse_ratios` are dim/size; 1 stands for whole updates."""

    data: str
    clients: int
    concentration: float
    hidden: int
    participation: float
    batch: int
    local_epochs: int
    arms: list[str]
    inverse_ratios: list[int]
    tuning_seeds: list[int]
    seeds: list[int]
    rounds: int
    scores: int
    processes: int

    def __post_init__(self) -> None:
        for name in self.arms:
            if name not in ARMS:
                raise UnknownNameError("arm", name, ARMS)


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What distinguishes an arm, what is tuned, and the point at which the search of whole updates starts."""

    algorithm: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, Axis]
    start: Point


RATES = {"local_rate": HALF_DECADES, "global_rate": DOUBLES}
ARMS = {
    "FedAvg": Arm(axes=RATES, start=(-2, 0)),
    "FedAdam": Arm(
        algorithm={"server": "adam"}, axes={"local_rate": HALF_DECADES, "global_rate": HALF_DECADES}, start=(-2, -3)
    ),
    "FedProx": Arm(axes={**RATES, "proximal": decades(-3)}, start=(-2, 0, -2)),
    "SCAFFOLD": Arm(algorithm={"scaffold": True}, axes=RATES, start=(-2, 0)),
}
"""Each starts at a local rate of 0.1 and the library's default global rate, FedProx at μ = 0.01.

FedProx with μ = 0.001 is nearly FedAvg, so that is the smallest μ.
"""


def case(settings: Settings, name: str, inverse: int, tuned: Mapping[str, float], *, seed: int, validation: float) -> Case:
    """One run."""
    rates = {key: value for key, value in tuned.items() if key != "proximal"}
    tables: dict[str, Any] = {
        "seed": seed,
        "data": {
            **{"name": settings.data, "clients": settings.clients, "validation": validation},
            **{"partition": "dirichlet", "concentration": settings.concentration},
        },
        "model": {"name": "mlp", "hidden": [settings.hidden]},
        "algorithm": {
            "name": "fedavg" if inverse == 1 else "iterative",
            "rounds": settings.rounds,
            "participation": settings.participation,
            "batch": settings.batch,
            "local_epochs": settings.local_epochs,
            **ARMS[name].algorithm,
            **rates,
        },
        "engine": {"evaluate_every": max(1, settings.rounds // settings.scores)},
    }
    if inverse > 1:
        tables["sketch"] = {"name": "srht", "ratio": 1 / inverse}
    if "proximal" in tuned:
        tables["training"] = {"proximal": tuned["proximal"]}
    key = {"arm": name, "inverse_ratio": inverse, **tuned, "seed": seed, "validation": validation}
    return Case(key=key, tables=tables)


def run(settings: Settings, folder: Path) -> None:
    """Tune every arm at every size on held-out examples, run it with all seeds, and write the tables and the figure."""
    chosen = tuned(settings, folder)
    final = [
        case(settings, name, inverse, values(point, ARMS[name].axes), seed=seed, validation=0.0)
        for seed in settings.seeds
        for (inverse, name), point in chosen.items()
    ]
    rows = run_arms(final, folder / "results.jsonl", processes=settings.processes, title="runs")
    local_drift_report.write(rows, folder)


def tuned(settings: Settings, folder: Path) -> dict[tuple[int, str], Point]:
    """The point that is chosen for each size and arm. The search of a sketch starts at the point of the next larger size."""
    tuning = Tuning(
        path=folder / "tuning.jsonl",
        seeds=settings.tuning_seeds,
        last=local_drift_report.LAST,
        processes=settings.processes,
        compute=trained,
    )
    starts, chosen = {name: ARMS[name].start for name in settings.arms}, {}
    for inverse in sorted(settings.inverse_ratios):
        for name in settings.arms:

            def held_out(tried: Mapping[str, float], seed: int, name: str = name, inverse: int = inverse) -> Case:
                return case(settings, name, inverse, tried, seed=seed, validation=0.1)

            chosen[inverse, name] = starts[name] = tuning.best(starts[name], ARMS[name].axes, held_out)
    return chosen
