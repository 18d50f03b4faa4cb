"""Clients weighted by their number of examples against equal weights, where some clients hold much more than others."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sketchfed import run as train
from sketchfed.config import load_config
from sketchfed.errors import DivergedError, UnknownNameError
from sketchfed.runs import CURVE, Case, Row, Workload
from sketchfed.vectors import flatten
from sketchfed_lab.experiments import quantity_skew_report
from sketchfed_lab.experiments.arms import run_arms
from sketchfed_lab.experiments.climbing import DOUBLES, HALF_DECADES, Point, Tuning, values

SPREADS: dict[str, dict[str, Any]] = {
    "quantity": {"partition": "quantity", "concentration": 0.5},
    "dirichlet": {"partition": "dirichlet", "concentration": 0.3},
}
"""Sizes differ and labels do not, or labels differ and sizes with them."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every arm is tuned by the same rule. `inverse_ratios` are dim/size; 1 stands for whole updates."""

    data: str
    clients: int
    hidden: int
    participation: float
    batch: int
    local_epochs: int
    spreads: list[str]
    weightings: list[str]
    most_examples: int
    inverse_ratios: list[int]
    tuning_seeds: list[int]
    seeds: list[int]
    rounds: int
    scores: int
    processes: int

    def __post_init__(self) -> None:
        for kind, names, known in (("spread", self.spreads, SPREADS), ("weighting", self.weightings, WEIGHTINGS)):
            for name in names:
                if name not in known:
                    raise UnknownNameError(kind, name, known)


WEIGHTINGS = ("equal", "examples", "bounded")
"""`bounded` weights by examples, and clients with more than `most_examples` count as if they had that many."""
AXES = {"local_rate": HALF_DECADES, "global_rate": DOUBLES}
START = (-2, 0)
"""A local rate of 0.1 and a global rate of 1."""

Place = tuple[str, int, str]
"""What is tuned by itself: spread, dim/size, and weighting."""


def case(settings: Settings, place: Place, tuned: Mapping[str, float], *, seed: int, validation: float) -> Case:
    """One run."""
    spread, inverse, weighting = place
    weights: dict[str, Any] = {"weighting": "equal" if weighting == "equal" else "examples"}
    if weighting == "bounded":
        weights["most_examples"] = settings.most_examples
    tables: dict[str, Any] = {
        "seed": seed,
        "data": {"name": settings.data, "clients": settings.clients, "validation": validation, **SPREADS[spread]},
        "model": {"name": "mlp", "hidden": [settings.hidden]},
        "algorithm": {
            "name": "fedavg" if inverse == 1 else "iterative",
            "rounds": settings.rounds,
            "participation": settings.participation,
            "batch": settings.batch,
            "local_epochs": settings.local_epochs,
            **weights,
            **tuned,
        },
        "engine": {"evaluate_every": max(1, settings.rounds // settings.scores), "workers": 1},
    }
    if inverse > 1:
        tables["sketch"] = {"name": "srht", "ratio": 1 / inverse}
    key = {"spread": spread, "inverse_ratio": inverse, "weighting": weighting, **tuned}
    return Case(key=key | {"seed": seed, "validation": validation}, tables=tables)


def run(settings: Settings, folder: Path) -> None:
    """Tune every arm on held-out examples, run it with all seeds, and write the tables and the figure."""
    chosen = tuned(settings, folder)
    final = [
        case(settings, place, values(point, AXES), seed=seed, validation=0.0)
        for seed in settings.seeds
        for place, point in chosen.items()
    ]
    rows = run_arms(final, folder / "results.jsonl", processes=settings.processes, title="runs", compute=measured)
    quantity_skew_report.write(rows, folder)


def tuned(settings: Settings, folder: Path) -> dict[Place, Point]:
    """The point that is chosen for each place. The search of a sketch starts at the point of the next larger size."""
    tuning = Tuning(
        path=folder / "tuning.jsonl",
        seeds=settings.tuning_seeds,
        last=quantity_skew_report.LAST,
        processes=settings.processes,
        compute=measured,
    )
    chosen: dict[Place, Point] = {}
    for spread in settings.spreads:
        starts: dict[str, Point] = dict.fromkeys(settings.weightings, START)
        for inverse in sorted(settings.inverse_ratios):
            for name in settings.weightings:
                place = (spread, inverse, name)

                def held_out(tried: Mapping[str, float], seed: int, place: Place = place) -> Case:
                    return case(settings, place, tried, seed=seed, validation=0.1)

                chosen[place] = starts[name] = tuning.best(starts[name], AXES, held_out)
    return chosen


def measured(case: Case) -> Row:
    """Train with the case's configuration, and see how well the last model does on what the clients themselves hold.

    The row holds `curve`, `diverged` and `seconds` as `sketchfed.runs.trained` does, `small`, the accuracy on the examples of
    the quarter of clients with the fewest, `clients`, the mean over all clients of the accuracy on their own examples, and
    `sizes`, the fewest, the median and the most examples of a client.
    """
    lines: list[dict[str, Any]] = []
    try:
        module = train(dict(case.tables), on_round=lines.append).module
    except DivergedError:
        module = None
    curve = [[round(line[name], 5) for name in CURVE] for line in lines if line["loss"] is not None]
    row: Row = {"curve": curve, "diverged": module is None, "seconds": lines[-1]["seconds"] if lines else 0.0}
    if module is None:
        return row
    workload = Workload.from_config(load_config(case.tables))
    trainer, weights = workload.trainer(), flatten(module)
    sizes = [len(part) for part in workload.parts]
    right = [trainer.score(weights, workload.examples(client))[1] for client in range(len(sizes))]
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    small = order[: max(1, len(order) // 4)]
    return row | {
        "small": round(sum(right[client] for client in small) / sum(sizes[client] for client in small), 4),
        "clients": round(sum(count / size for count, size in zip(right, sizes, strict=True)) / len(sizes), 4),
        "sizes": [sizes[order[0]], sizes[order[len(order) // 2]], sizes[order[-1]]],
    }
