"""Recorded runs of a few clients on handwritten digits, and what views make of them beside the truth."""

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from sketchfed.attacks import Update
from sketchfed.audits.recorded import Recorded, record, repeatable
from sketchfed.config import load_config
from sketchfed.workload import from_config

COMMON = {"rounds": 3, "local_steps": 1, "batch": 4, "local_rate": 0.1}


def recorded(tables: dict | None = None, /, **algorithm: object) -> Recorded:
    """Five clients with 8 hidden units, three rounds of one step on four examples, unless something else is said.

    None takes a setting out. All that is drawn follows from seeds.
    """
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


@cache
def single(codec: str = "dense", rounds: int = 1, hidden: int = 32) -> Recorded:
    """FedAvg, one step of one example a client."""
    tables = {"codec": {"name": codec}, "model": {"hidden": [hidden]}}
    return recorded(tables | ({"sketch": {"ratio": 0.1}} if codec == "sketched" else {}), batch=1, rounds=rounds)


def compared(run: Recorded, role: str) -> Iterator[tuple[Update, Tensor, Tensor]]:
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


def decibels(guess: Tensor, truth: Tensor) -> float:
    return float(-10 * torch.log10((guess - truth).square().mean()))
