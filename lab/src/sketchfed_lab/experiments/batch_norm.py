"""A ResNet on CIFAR-10 with three ways of handling BatchNorm: averaged statistics, statistics of one's own, and GroupNorm."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sketchfed import run as train_all
from sketchfed.errors import DivergedError, UnknownNameError
from sketchfed.runs import Case, Row
from sketchfed_lab.experiments import batch_norm_report
from sketchfed_lab.experiments.arms import run_arms
from sketchfed_lab.experiments.batch_norm_task import SKEWS, clients_of, resnet
from sketchfed_lab.experiments.searching import halves_and_doubles, searched

SKETCHED: dict[str, Any] = {"algorithm": {"name": "iterative"}, "sketch": {"name": "srht", "ratio": 0.1}}
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "averaged": ("batch", {"model": {"buffers": "average"}}),
    "local": ("batch", {"model": {"buffers": "local"}}),
    "GroupNorm": ("group", {}),
    "averaged, sketch 1/10": ("batch", {"model": {"buffers": "average"}, **SKETCHED}),
}
"""The norm of each arm, and its tables."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All clients take part in every round. Each trains on `images` images, and `held` more of its own kind are held out.

    Each arm's local rate is searched for from `local_rate` on, by the loss on other held-out images. `tries` is the largest
    number of runs of a search, each of `tuning_rounds`.
    """

    arms: list[str]
    skews: list[str]
    clients: int
    images: int
    held: int
    concentration: float
    width: int
    local_steps: int
    batch: int
    local_rate: float
    momentum: float
    tries: int
    tuning_rounds: int
    rounds: int
    evaluate_every: int
    seeds: list[int]
    processes: int

    def __post_init__(self) -> None:
        for kind, names, known in (("arm", self.arms, list(ARMS)), ("skew", self.skews, list(SKEWS))):
            for name in names:
                if name not in known:
                    raise UnknownNameError(kind, name, known)


Place = tuple[str, str]
"""A skew and an arm."""


def arm(settings: Settings, place: Place, rate: float, *, seed: int, rounds: int, part: str = "test") -> Case:
    """One run. Clients take steps of SGD with momentum, which begins anew each round."""
    skew, name = place
    norm, described = ARMS[name]
    task = {
        "skew": skew,
        "clients": settings.clients,
        "images": settings.images,
        "held": settings.held,
        "concentration": settings.concentration,
        "seed": seed,
        "part": part,
    }
    tables: dict[str, Any] = {
        **{"seed": seed, "training": {"evaluate_clients": True}, **described},
        "engine": {"workers": 1, "evaluate_every": settings.evaluate_every if part == "test" else rounds},
    }
    tables["algorithm"] = described.get("algorithm", {"name": "fedavg"}) | {
        "rounds": rounds,
        "local_steps": settings.local_steps,
        "batch": settings.batch,
        "local_rate": rate,
        "local_momentum": settings.momentum,
    }
    key = {"skew": skew, "arm": name, "local_rate": rate, "seed": seed, "rounds": rounds, "part": part}
    return Case(key=key, tables={"task": task, "net": {"width": settings.width, "norm": norm}, "run": tables})


def measured(case: Case) -> Row:
    """Train, and keep how clients do on their own held-out images, and the bytes of each round."""
    clients = clients_of(**case.tables["task"])
    net = resnet(**case.tables["net"], seed=case.tables["run"]["seed"])
    held = [(each.x_held, each.y_held) for each in clients]
    test = torch.cat([x for x, _ in held]), torch.cat([y for _, y in held])
    lines: list[dict[str, Any]] = []
    try:
        train_all(
            case.tables["run"],
            model=net,
            clients=[(each.x, each.y) for each in clients],
            test=test,
            client_test=held,
            on_round=lines.append,
        )
    except DivergedError:
        return {"diverged": True, "curve": [], "seconds": lines[-1]["seconds"] if lines else 0.0}
    scored = [[_short(line[column]) for column in COLUMNS] for line in lines if line["loss"] is not None]
    return {"diverged": False, "curve": scored, "seconds": lines[-1]["seconds"]}


COLUMNS = ("round", "clients_loss", "clients_accuracy", "uplink_bytes", "clients_accuracy_worst", "accuracy")
"""What a point of a curve holds. The last is the accuracy of the server's own model on all held-out images together."""


def _short(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value


def run(settings: Settings, folder: Path) -> None:
    """Tune the local rate of every arm by the same rule, run it with all seeds, and write it up."""
    places = [(skew, name) for skew in settings.skews for name in settings.arms]
    best = tuned(settings, places, folder / "tuning.jsonl")
    final = [  # seed by seed, so that what is there at any time is balanced
        arm(settings, place, best[place][0], seed=seed, rounds=settings.rounds) for seed in settings.seeds for place in places
    ]
    rows = run_arms(final, folder / "results.jsonl", processes=settings.processes, title="runs", compute=measured)
    batch_norm_report.write(rows, folder, clients=settings.clients)


def tuned(settings: Settings, places: Sequence[Place], path: Path) -> dict[Place, tuple[float, ...]]:
    """The local rate with the lowest loss of clients on their own held-out images. Seeds of tuning and of results differ."""

    def scores(wanted: Sequence[tuple[Place, tuple[float, ...]]]) -> list[float]:
        arms = [
            arm(settings, place, rate, seed=100, rounds=settings.tuning_rounds, part="validation") for place, (rate,) in wanted
        ]
        rows = run_arms(arms, path, processes=settings.processes, title="tuning", compute=measured)
        return [float("-inf") if row["diverged"] else -row["curve"][-1][1] for row in rows]

    starts: dict[Place, tuple[float, ...]] = dict.fromkeys(places, (settings.local_rate,))
    return searched(starts, near=halves_and_doubles, scores=scores, tries=settings.tries)
