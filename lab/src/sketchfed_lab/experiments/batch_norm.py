"""A ResNet on CIFAR-10 with three ways of handling BatchNorm: averaged statistics, statistics of one's own, and GroupNorm."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sketchfed import run as train_all
from sketchfed.errors import DivergedError, UnknownNameError
from sketchfed.runs import Case, Row
from sketchfed.training import ClientContext
from sketchfed_lab.experiments import batch_norm_report
from sketchfed_lab.experiments.arms import run_arms
from sketchfed_lab.experiments.batch_norm_task import SKEWS, Images, clients_of, resnet
from sketchfed_lab.experiments.searching import halves_and_doubles, searched

SKETCHED: dict[str, Any] = {"algorithm": {"name": "iterative"}, "sketch": {"name": "srht", "ratio": 0.1}}
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "averaged": ("batch", {"model": {"buffers": "average"}}),
    "local": ("batch", {"model": {"buffers": "local"}}),
    "GroupNorm": ("group", {}),
    "averaged, sketch 1/10": ("batch", {"model": {"buffers": "average"}, **SKETCHED}),
}
"""The norm of each arm, and its tables."""
_CHUNK = 250  # images scored at a time


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All clients take part in every round. Each has so many `images`, and so many of its own kind that are `held` out.

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
    """One run. In the round after the last one, clients only evaluate."""
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
    loop = {
        **{"lr": rate, "momentum": settings.momentum, "steps": settings.local_steps, "batch": settings.batch},
        "every": settings.evaluate_every if part == "test" else rounds,
    }
    tables: dict[str, Any] = {"seed": seed, "training": loop | {"rounds": rounds}, "engine": {"workers": 1}, **described}
    tables["algorithm"] = {"name": "fedavg", **described.get("algorithm", {}), "rounds": rounds + 1}
    tables["engine"] |= {"evaluate_every": rounds + 1}
    key = {"skew": skew, "arm": name, "local_rate": rate, "seed": seed, "rounds": rounds, "part": part}
    return Case(key=key, tables={"task": task, "net": {"width": settings.width, "norm": norm}, "run": tables})


class Loop:
    """Trains clients by SGD, and evaluates each before: with the round's weights and the statistics that the client has."""

    def __init__(self) -> None:
        self.scores: dict[int, dict[int, tuple[float, float]]] = {}
        """The loss and the accuracy of each client on its own held-out images, after so many rounds."""

    def train(self, model: nn.Module, data: Images, context: ClientContext) -> None:
        own, done = context.settings, context.round - 1
        if done and (done % own["every"] == 0 or done == own["rounds"]):
            self.scores.setdefault(done, {})[int(context.client or 0)] = scored(model, data.x_held, data.y_held)
        if done == own["rounds"]:
            return
        optimizer = torch.optim.SGD(model.train().parameters(), lr=own["lr"], momentum=own["momentum"])
        order = torch.randperm(len(data.x), generator=context.generator)
        for rows in torch.split(order[: own["steps"] * own["batch"]], own["batch"]):
            optimizer.zero_grad()
            functional.cross_entropy(model(data.x[rows]), data.y[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def scored(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """The mean loss and the accuracy. BatchNorm uses its running statistics."""
    model.eval()
    with torch.no_grad():
        outputs = torch.cat([model(chunk) for chunk in torch.split(x, _CHUNK)])
    return float(functional.cross_entropy(outputs, y)), float((outputs.argmax(1) == y).double().mean())


def evaluate(model: nn.Module, data: Sequence[Images], context: ClientContext) -> dict[str, float]:
    """How the server's own model does on everybody's held-out images, with the statistics that the server has."""
    scores = [scored(model, each.x_held, each.y_held) for each in data]
    return {"loss": mean(loss for loss, _ in scores), "accuracy": mean(accuracy for _, accuracy in scores)}


def measured(case: Case) -> Row:
    """Train, and keep what the clients measured and the bytes of each round."""
    clients, loop = clients_of(**case.tables["task"]), Loop()
    net = resnet(**case.tables["net"], seed=case.tables["run"]["seed"])
    rounds = case.tables["run"]["training"]["rounds"]
    lines: list[dict[str, Any]] = []
    try:
        train_all(
            case.tables["run"],
            model=net,
            clients=clients,
            test=clients,
            train=loop.train,
            evaluate=evaluate,
            on_round=lines.append,
        )
    except DivergedError:
        return {"diverged": True, "curve": [], "seconds": lines[-1]["seconds"] if lines else 0.0}
    curve = []
    for done, own in loop.scores.items():
        losses, accuracies = ([pair[column] for pair in own.values()] for column in (0, 1))
        sent = lines[done - 1]["uplink_bytes"]
        curve.append([done, round(mean(losses), 5), round(mean(accuracies), 5), sent, round(min(accuracies), 5)])
    return {
        "diverged": False,
        "curve": curve,
        "server": round(lines[rounds]["accuracy"], 5),
        "seconds": lines[-1]["seconds"],
    }


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
