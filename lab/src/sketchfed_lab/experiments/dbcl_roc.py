"""Zhang & Wang 2021, Figure 2: ROC curves on imbalanced classes, plain and through sketches; cars and trucks for faces."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sketchfed.data import DataSet, load
from sketchfed.runs import Case, Row
from sketchfed_lab.experiments import dbcl_roc_report
from sketchfed_lab.experiments.arms import best_of, run_arms
from sketchfed_lab.experiments.dbcl_training import METHODS
from sketchfed_lab.experiments.roc import area

CAR, TRUCK = 1, 9


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`trucks_in` has how many trucks there are for training and for testing; cars are all there. Beside both methods for
    `rounds`, sketches are trained for `longer` rounds.

    Rates are chosen by the area under the curve on a tenth of the training examples, with a seed of its own.
    """

    data: str
    model: str
    trucks_in: list[int]
    methods: list[str]
    ratio: float
    batch: int
    rates: list[float]
    rounds: int
    longer: int
    tuning_rounds: int
    seeds: list[int]
    processes: int


def cars_and_trucks(*, train: int = 1447, test: int = 290) -> DataSet:
    """CIFAR-10's 5,000 + 1,000 cars (class 0), and its first `train` + `test` trucks (class 1).

    The defaults have the proportion of the paper's faces, 8,957 men and 2,593 women.
    """
    whole = load("cifar10")
    rows = [_rows(whole.y_train, train), _rows(whole.y_test, test)]
    return DataSet(
        name="cars and trucks",
        x_train=whole.x_train[rows[0]],
        y_train=(whole.y_train[rows[0]] == TRUCK).to(torch.int64),
        x_test=whole.x_test[rows[1]],
        y_test=(whole.y_test[rows[1]] == TRUCK).to(torch.int64),
        outputs=2,
        shape=whole.shape,
        prepare=whole.prepare,
    )


def _rows(classes: Tensor, trucks: int) -> Tensor:
    return torch.cat([(classes == CAR).nonzero()[:, 0], (classes == TRUCK).nonzero()[:trucks, 0]]).sort().values


def cnn_faces(*, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The CNN of Sec. 6.2 for two classes, 'same' padding: three convolutions of 3 × 3, three dense layers.

    It ends in two outputs with a softmax; the paper's one with a sigmoid is their difference.
    """
    widths, layers = [shape[0], 64, 64, 128], []
    for i, o in pairwise(widths):
        layers += [nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    body = nn.Sequential(*layers, nn.Flatten())
    with torch.no_grad():
        inputs = body(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*body, nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, outputs))


def arm(settings: Settings, method: str, *, rate: float, rounds: int, seed: int, tuning: bool) -> Case:
    """Distributed SGD of two clients: one local step a round."""
    train, test = settings.trucks_in
    own = {"train": train, "test": test} if settings.data.endswith(":cars_and_trucks") else {}
    algorithm = {"name": METHODS[method], "rounds": rounds, "local_steps": 1, "batch": settings.batch, "local_rate": rate}
    tables: dict[str, Any] = {
        "seed": seed,
        "data": {"name": settings.data, "clients": 2, "validation": 0.1 if tuning else 0.0, **own},
        "model": {"name": settings.model},
        "algorithm": algorithm,
        "engine": {"evaluate_every": max(1, rounds // 20), "workers": 1},
    }
    if method == "sketched":
        tables["sketch"] = {"name": "balanced", "ratio": settings.ratio}
        algorithm["public_start"] = True  # so that both start from the same weights
    key = {"data": settings.data, "method": method, "rate": rate, "rounds": rounds, "seed": seed, "tuning": tuning}
    return Case(key=key | {"ratio": settings.ratio if method == "sketched" else 1.0}, tables=tables)


def run(settings: Settings, folder: Path) -> None:
    """Tune both methods by the same rule, train with what was chosen on all training examples, and write it up."""
    folder.mkdir(parents=True, exist_ok=True)
    how = {"processes": settings.processes, "compute": scored}
    tuning = [
        arm(settings, method, rate=rate, rounds=settings.tuning_rounds, seed=100, tuning=True)
        for method in settings.methods
        for rate in settings.rates
    ]
    found = run_arms(tuning, folder / "tuning.jsonl", title="tuning", **how)  # type: ignore[arg-type]
    tuned = best_of(found, ("method",), quality)
    final = [
        arm(settings, method, rate=tuned[method,]["key"]["rate"], rounds=rounds, seed=seed, tuning=False)
        for seed in settings.seeds
        for method in settings.methods
        for rounds in ([settings.rounds, settings.longer] if method == "sketched" else [settings.rounds])
    ]
    rows = run_arms(final, folder / "results.jsonl", title="runs", **how)  # type: ignore[arg-type]
    dbcl_roc_report.write(rows, folder)


def scored(arm: Case) -> Row:
    """Train as the arm says; then the scores of the test examples, of each class in their order, higher for class 1."""
    from sketchfed.config import load_config
    from sketchfed.errors import DivergedError
    from sketchfed.runs import Workload
    from sketchfed.runs import run as train

    config = load_config(dict(arm.tables))
    lines: list[dict[str, Any]] = []
    row: Row = {"key": dict(arm.key), "diverged": False, "positives": [], "negatives": []}
    try:
        module = train(config, on_round=lines.append).module.eval()
    except DivergedError:
        return row | {"diverged": True}
    chunks = Workload.from_config(config).test_chunks()
    with torch.no_grad():
        outputs = torch.cat([module(chunk.x) for chunk in chunks])
    classes, scores = torch.cat([chunk.y for chunk in chunks]), outputs[:, 1] - outputs[:, 0]
    row |= {
        "positives": [round(score, 5) for score in scores[classes == 1].tolist()],
        "negatives": [round(score, 5) for score in scores[classes == 0].tolist()],
    }
    fields = ("round", "loss", "accuracy", "uplink_bytes", "downlink_bytes")
    curve = [[line[field] for field in fields] for line in lines if line["loss"] is not None]
    return row | {"curve": curve, "seconds": lines[-1]["seconds"]}


def quality(row: Row) -> float:
    """What tuning maximises: the area under the curve of what was held out."""
    return 0.0 if row["diverged"] else area(row["positives"], row["negatives"]).value
