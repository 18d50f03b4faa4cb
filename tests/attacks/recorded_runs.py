"""Recorded runs of a few clients on handwritten digits, and what views make of them beside the truth."""

import json
from collections.abc import Iterator
from functools import cache

from observed import dense, digits
from torch import Tensor, nn
from torch.nn import functional

from sketchfed.attacks import Update
from sketchfed.audits.evidence import Evidence, record, repeatable
from sketchfed.config import load_config
from sketchfed.runs.workload import from_config, from_objects

COMMON = {"rounds": 3, "local_steps": 1, "batch": 4, "local_rate": 0.1}


def recorded(tables: dict | None = None, /, **algorithm: object) -> Evidence:
    """Five clients with 8 hidden units, three rounds of one step on four examples, unless something else is said.

    None takes a setting out. All that is drawn follows from seeds, so equal runs are made once and shared: do not change them.
    """
    return _recorded(json.dumps([tables, algorithm]))


@cache
def _recorded(asked: str) -> Evidence:
    tables, algorithm = json.loads(asked)
    return recorded_anew(tables, **algorithm)


def recorded_anew(tables: dict | None = None, /, **algorithm: object) -> Evidence:
    """As `recorded`, for a run that a fixture changes: it is shared with nobody."""
    given = tables or {}
    own = COMMON | given.get("algorithm", {}) | algorithm
    config = {
        "data": {"clients": 5},
        "model": {"hidden": [8]},
        "engine": {"workers": 1, "evaluate_every": 1_000},
        **given,
        "algorithm": {key: value for key, value in own.items() if value is not None},
    }
    made = repeatable(load_config(config))
    return record(made, from_config(made))[0]


def few(
    tables: dict | None = None, /, *, each: int = 1, clients: int = 4, model: nn.Module | None = None, **algorithm: object
) -> Evidence:
    """Clients with a few examples each, which they use all in every round of one step, and a model given as an object.

    Equal runs of the model of `dense()` are made once and shared: do not change them.
    """
    if model is None:
        return _few_dense(json.dumps([tables, each, clients, algorithm]))
    return _few(model, tables, each, clients, algorithm)


@cache
def _few_dense(asked: str) -> Evidence:
    return _few(dense(), *json.loads(asked))


def _few(module: nn.Module, tables: dict | None, each: int, clients: int, algorithm: dict) -> Evidence:
    shape = (1, 8, 8) if any(isinstance(layer, nn.Conv2d) for layer in module) else (64,)
    parts = [digits(each, shape=shape, first=each * client) for client in range(clients)]
    workload = from_objects(module, parts, digits(10, shape=shape, first=500), None, "classification")
    given = {"engine": {"workers": 1, "evaluate_every": 1_000}, **(tables or {})}
    made = load_config(given | {"algorithm": {"rounds": 1, "local_steps": 1, "local_rate": 0.1, **algorithm}})
    return record(repeatable(made), workload)[0]


def compared(run: Evidence, role: str) -> Iterator[tuple[Update, Tensor, Tensor]]:
    """Each update of a view, what the true examples would look like, and what was seen.

    All updates are there before the first is looked at: what comes later must not change what came before.
    """
    for update in list(run.view(role).updates()):
        truth = run.behind(update.round, update.clients)
        yield update, update.observation.seen(truth.x, truth.y).detach(), update.observation.values


def distance(seen: Tensor, values: Tensor) -> float:
    """How far apart, relative to what was seen."""
    return float((seen - values).norm() / values.norm().clamp(min=1e-12))


def alignment(seen: Tensor, values: Tensor) -> float:
    return float(functional.cosine_similarity(seen, values, dim=0))
