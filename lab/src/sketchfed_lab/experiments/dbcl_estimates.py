"""Zhang & Wang 2021, Figure 3: how far a client's estimates of the server's steps are from them, as training goes on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sketchfed.algorithms import Dbcl
from sketchfed.attacks import ESTIMATES, Seen, adjoint_error, collision, cosine, relative_error
from sketchfed.config import load_config
from sketchfed.errors import DivergedError, InputError
from sketchfed.nn import ModelSketch
from sketchfed.rounds import LocalEngine, Server
from sketchfed.runs import Case, Row, Workload
from sketchfed.training import Trainer, one_thread
from sketchfed.vectors import flatten
from sketchfed_lab.experiments import dbcl_estimates_report
from sketchfed_lab.experiments.arms import run_arms

ALL = "all sketched layers"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A run for each of the `families`, with the local rate that stands at its place in `rates`."""

    data: str
    hidden: list[int]
    clients: int
    share: float
    batch: int
    local_epochs: int
    families: list[str]
    rates: list[float]
    ratio: float
    rounds: int
    seed: int
    processes: int

    def __post_init__(self) -> None:
        if len(self.families) != len(self.rates):
            raise InputError(f"give a rate for each family: {len(self.rates)} rates, {len(self.families)} families.")


def arms(settings: Settings) -> list[Case]:
    """A run a family; all else is the same."""
    return [_arm(settings, family, rate) for family, rate in zip(settings.families, settings.rates, strict=True)]


def _arm(settings: Settings, family: str, rate: float) -> Case:
    tables: dict[str, Any] = {
        "seed": settings.seed,
        "data": {"name": settings.data, "clients": settings.clients},
        "model": {"name": "mlp", "hidden": settings.hidden},
        "algorithm": {
            "name": "dbcl",
            "rounds": settings.rounds,
            "participation": settings.share,
            "local_epochs": settings.local_epochs,
            "batch": settings.batch,
            "local_rate": rate,
            "public_start": True,  # so that the figures can be repeated; the estimates make no use of it
        },
        "sketch": {"name": family, "ratio": settings.ratio},
    }
    key = {"data": settings.data, "hidden": settings.hidden, "sketch": family, "ratio": settings.ratio, "rate": rate}
    return Case(key=key | {"rounds": settings.rounds, "seed": settings.seed}, tables=tables)


def run(settings: Settings, folder: Path) -> None:
    """Train once with each family, estimate every step, and write it up."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = run_arms(arms(settings), folder / "results.jsonl", processes=settings.processes, title="runs", compute=estimated)
    dbcl_estimates_report.write(rows, folder)


def estimated(arm: Case) -> Row:
    """Train as the arm says, with after each round the quality of what a client makes of the broadcasts before and after it.

    `estimates` has lines of round, layer, option, relative error and cosine; `steps` of round, layer, ‖Δ‖/‖W_old‖ and the
    relative error that Theorem 1 expects of Option I, if it knows the family.
    """
    with one_thread():
        workload, trainer, server, algorithm = _federation(arm)
        estimates: list[list[Any]] = []
        steps: list[list[Any]] = []
        diverged = False
        while server.round < algorithm.rounds and not diverged:
            before, old = server.state.replica.weights.clone(), algorithm.given(server.seed, server.round).sketch
            try:
                server.advance()
            except DivergedError:
                diverged = True
                break
            after, new = server.state.replica.weights, algorithm.given(server.seed, server.round).sketch
            estimates += [[server.round, *line] for line in qualities(before, after, old, new)]
            steps += [[server.round, *line] for line in _sizes(before, after, old, algorithm.sketch.name)]
        scores = [trainer.score(server.state.replica.weights, chunk) for chunk in workload.test_chunks()]
    accuracy = workload.summarise(scores).accuracy
    return {"key": dict(arm.key), "diverged": diverged, "accuracy": accuracy, "estimates": estimates, "steps": steps}


def _federation(arm: Case) -> tuple[Workload, Trainer, Server, Dbcl]:
    config = load_config(dict(arm.tables))
    workload = Workload.from_config(config)
    trainer, sizes = workload.trainer(), [len(part) for part in workload.parts]
    config = config.completed(dim=trainer.dim, sizes=sizes, module=workload.module)
    participant = config.participant(trainer, sizes, workload.module)
    algorithm = participant.algorithm
    assert isinstance(algorithm, Dbcl)
    engine = LocalEngine(participant, workload.examples, clients=len(sizes), start=None, workers=1)
    state = algorithm.begin(flatten(workload.module))
    server = Server(participant.protection, engine, state, participant.seed, shared_start=False)
    return workload, trainer, server, algorithm


def qualities(before: Tensor, after: Tensor, old: ModelSketch, new: ModelSketch) -> list[list[Any]]:
    """Layer, option, relative error and cosine of a step of the weights `(dim,)`, seen through the sketches of two rounds."""
    first, second = old.seen.views(old.apply(before)), new.seen.views(new.apply(after))
    truth = {name: _matrix(old, before, name) - _matrix(new, after, name) for name in old.sketches}
    lines = []
    for option, estimate in ESTIMATES.items():
        found = {
            name: estimate(
                Seen(rows=first[name], sketch=old.sketches[name]), Seen(rows=second[name], sketch=new.sketches[name])
            )
            for name in old.sketches
        }
        pairs = {name: (found[name], truth[name]) for name in truth}
        pairs[ALL] = _joined(found), _joined(truth)
        lines += [[layer, option, _short(relative_error(*pair)), _short(cosine(*pair))] for layer, pair in pairs.items()]
    return lines


def _sizes(before: Tensor, after: Tensor, form: ModelSketch, family: str) -> list[list[Any]]:
    """Layer, ‖Δ‖/‖W_old‖, and the relative error that Theorem 1 expects."""
    lines: list[list[Any]] = []
    missed, moved, length = 0.0, 0.0, 0.0
    for name, sketch in form.sketches.items():
        old, new = _matrix(form, before, name), _matrix(form, after, name)
        step, own = float((old - new).square().sum()), float(old.square().sum())
        known = family in ("count", "balanced")
        error = (
            adjoint_error(old, new, collision=collision(family, dim=sketch.dim, size=sketch.size)) if known else float("nan")
        )
        lines.append([name, _short((step / own) ** 0.5), _short((error / step) ** 0.5) if known else None])
        missed, moved, length = missed + error, moved + step, length + own
    return [*lines, [ALL, _short((moved / length) ** 0.5), _short((missed / moved) ** 0.5) if known else None]]


def _matrix(form: ModelSketch, weights: Tensor, name: str) -> Tensor:
    """A layer's weights, (outputs, inputs)."""
    view = form.layout.views(weights)[name]
    return view.reshape(len(view), -1)


def _joined(layers: dict[str, Tensor]) -> Tensor:
    return torch.cat([layer.reshape(-1) for layer in layers.values()])


def _short(value: float) -> float:
    return float(f"{value:.5g}")
