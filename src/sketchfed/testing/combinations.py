"""What works with what. Each answer is found by trying: a tiny run goes through two rounds, or is refused before the first.

`docs/combinations.md` is made of this, and tests compare the page with it.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sketchfed.algorithms import ALGORITHMS
from sketchfed.codecs import CODECS
from sketchfed.combining import COMBINE_RULES
from sketchfed.errors import InputError
from sketchfed.runs import run
from sketchfed.testing.algorithm_cases import CLIENTS, NOISE
from sketchfed.testing.problems import data_of, examples
from sketchfed.vectors import flatten

Tables = Mapping[str, Mapping[str, Any]]

ROUNDS = 2
WORK: Mapping[str, Any] = {"rounds": ROUNDS, "local_steps": 2, "batch": 4, "local_rate": 0.1}
"""The local work of every trial, where nothing else is said."""
_OF_THE_BUILT_IN_LOOP = ("local_steps", "local_epochs", "batch", "local_rate")


@dataclass(frozen=True, kw_only=True)
class Part:
    """One thing that a run may have: settings, and objects that are passed to `run`."""

    tables: Tables = field(default_factory=dict)
    """Tables of the configuration. None removes a key."""
    objects: Callable[[], Mapping[str, Any]] = dict
    own_loop: bool = False
    """Whether a loop of the user's own trains, which takes its settings from elsewhere."""


def _module(*, normed: bool = False) -> nn.Module:
    """A perceptron of 6 inputs, 5 units and 4 outputs, perhaps with BatchNorm."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        middle = {"norm": nn.BatchNorm1d(5)} if normed else {}
        return nn.Sequential(OrderedDict(first=nn.Linear(6, 5), **middle, act=nn.ReLU(), head=nn.Linear(5, 4)))


def own_loop(model: nn.Module, data: tuple[Tensor, Tensor], context: Any) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    functional.cross_entropy(model(data[0]), data[1]).backward()  # type: ignore[no-untyped-call]
    optimiser.step()


def own_evaluation(model: nn.Module, data: tuple[Tensor, Tensor], context: Any) -> dict[str, float]:
    return {"loss": float(functional.cross_entropy(model(data[0]), data[1]))}


def own_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def _private(*, steps: int | None = 2, **settings: Any) -> Part:
    """Noise. Where examples are the unit, a round has `steps` steps, or uses one batch of a pass if it is None."""
    work = {"local_steps": steps} if settings.get("unit") == "example" else {}
    return Part(tables={"privacy": {**NOISE, **settings}, "algorithm": work})


_NORMED = {"model": _module(normed=True)}

FEATURES: Mapping[str, Part] = {
    "server momentum": Part(tables={"algorithm": {"global_momentum": 0.5}}),
    "FedAdam": Part(tables={"algorithm": {"server": "adam"}}),
    "weights by examples": Part(tables={"algorithm": {"weighting": "examples"}}),
    "SCAFFOLD": Part(tables={"algorithm": {"scaffold": True}}),
    "FedDyn": Part(tables={"algorithm": {"feddyn": 0.1}}),
    "FedProx": Part(tables={"training": {"proximal": 0.1}}),
    "robust rule": Part(tables={"algorithm": {"combine": "geometric_median"}}),
    "Adam on clients": Part(tables={"training": {"optimiser": "adam"}}),
    "own loop": Part(objects=lambda: {"train": own_loop, "evaluate": own_evaluation}, own_loop=True),
    "batch_loss": Part(objects=lambda: {"batch_loss": own_loss}),
    "metrics on clients": Part(tables={"training": {"evaluate_clients": True}}),
    "averaged buffers": Part(tables={"model": {"buffers": "average"}}, objects=lambda: _NORMED),
    "local buffers": Part(tables={"model": {"buffers": "local"}}, objects=lambda: _NORMED),
    "personal layers": Part(tables={"model": {"personal": ["head.*"]}}),
    "noise in steps": _private(unit="example", placement="steps"),
    "noise on clients": _private(unit="client"),
    "noise on examples": _private(unit="example", steps=1),
    "noise on passes": _private(unit="example", batches="passes", steps=None),
    "central noise": _private(unit="client", observer="public"),
    "hidden cohorts": Part(
        tables={
            "privacy": {**NOISE, "unit": "client", "observer": "public", "hidden_cohorts": True},
            "algorithm": {"participation": 0.75},
        }
    ),
    "secure sums": Part(tables={"secure": {"clip": 10.0}}),
}
"""What can be chosen besides the algorithm and the codec."""

_COMPLETE: Tables = {"graph": {"name": "complete"}}
GRAPH: Mapping[str, Part] = {"graph": Part(tables=_COMPLETE)}
"""No server. What this goes with depends on the algorithm alone, so it is tried with all algorithms, and not with features."""

_OPTIONS: Mapping[str, Tables] = {
    "dome": {"subspace": {"size": 8}},
    "fetchsgd": {"sketch": {"ratio": 0.5}},
    "gossip": _COMPLETE,
    "gossip_tracking": _COMPLETE,
    "gossip_models": _COMPLETE,
    "gossip_exact": _COMPLETE,
}


def algorithm_parts() -> dict[str, Part]:
    """All algorithms, each with the noise or the graph that it needs. `gossip_exact` has a graph, although it needs none."""
    found = {}
    for name, kind in ALGORITHMS.built_in.items():
        needed = getattr(kind, "noise_defaults", None)
        own: dict[str, Any] = {} if needed is None else {"privacy": {**NOISE, **needed["gaussian"]}}
        found[name] = Part(tables={"algorithm": {"name": name}, **own, **_OPTIONS.get(name, {})})
    return found


def codecs() -> dict[str, Part]:
    """All codecs, under FedAvg."""
    return {name: Part(tables={"algorithm": {"name": "fedavg"}, "codec": {"name": name}}) for name in CODECS.built_in}


def rules() -> dict[str, Part]:
    """All combine rules but the mean."""
    options: Mapping[str, Tables] = {"trimmed_mean": {"combine": {"byzantine": 0.25}}}
    names = [name for name in COMBINE_RULES.built_in if name != "mean"]
    return {name: Part(tables={"algorithm": {"combine": name}, **options.get(name, {})}) for name in names}


_WITH_CODECS = (
    "server momentum", "FedAdam", "weights by examples", "SCAFFOLD", "FedDyn", "robust rule", "own loop", "averaged buffers",
    "noise in steps", "noise on clients", "noise on examples", "central noise", "secure sums",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table: each row with each column, upon a base that both may change."""

    rows: Mapping[str, Part]
    columns: Mapping[str, Part]
    base: Part = field(default_factory=Part)
    changed: bool = False
    """Whether columns may change what rows say."""

    def cells(self) -> Iterator[tuple[str, str]]:
        """All pairs of a row and a column. Pairs of the same things are tried once."""
        same = self.rows.keys() == self.columns.keys()
        names = list(self.columns)
        for row in self.rows:
            for column in names[names.index(row) + 1 :] if same else names:
                yield row, column

    def tried(self, row: str, column: str) -> str | None:
        """What comes of a pair, as `outcome` says it."""
        if self.changed:
            return outcome(self.rows[row], self.columns[column])
        return outcome(self.base, self.rows[row], self.columns[column])


@cache
def grids() -> dict[str, Grid]:
    """All tables by name."""
    iterative = Part(tables={"algorithm": {"name": "iterative"}, "sketch": {"ratio": 0.5}})
    return {
        "algorithms": Grid(rows=algorithm_parts(), columns={**FEATURES, **GRAPH}, changed=True),
        "codecs": Grid(rows={**codecs(), **_with_error_feedback()}, columns={name: FEATURES[name] for name in _WITH_CODECS}),
        "features": Grid(rows=FEATURES, columns=FEATURES, base=iterative),
        "rules": Grid(rows=rules(), columns=algorithm_parts()),
    }


def _with_error_feedback() -> dict[str, Part]:
    tables: Tables = {"algorithm": {"name": "fedavg", "error_feedback": True}, "codec": {"name": "top_k"}}
    return {"top_k, error feedback": Part(tables=tables)}


def outcome(base: Part, *parts: Part) -> str | None:
    """The reason if these parts are refused together, and "" if they work. None if they are two values of one setting.

    A run that is refused is refused before its first round. A run that works goes through its rounds, and its weights change
    and stay finite. Everything else is an error. Under secure sums, noise is `discrete_gaussian`, unless it is in local steps.
    """
    joined = _joined(parts)
    if joined is None:
        return None
    tables = _merged({"algorithm": WORK}, base.tables, joined)
    if any(part.own_loop for part in (base, *parts)):
        tables["algorithm"] = {key: value for key, value in tables["algorithm"].items() if key not in _OF_THE_BUILT_IN_LOOP}
    if "secure" in tables and tables.get("privacy", {}).get("placement") != "steps" and "privacy" in tables:
        tables["privacy"]["name"], tables["secure"] = "discrete_gaussian", {}
    objects: dict[str, Any] = {"model": _module(), "clients": _clients(), "test": _pair(20)}
    for part in (base, *parts):
        objects |= part.objects()
    asked: list[Any] = []
    try:
        with _quiet():
            result = run(tables, **objects, on_exchange=asked.append)
    except InputError as error:
        if asked:
            raise AssertionError(f"{tables} is refused after clients were asked, and not before: {error}") from error
        return str(error)
    begun, ended = flatten(objects["model"]), flatten(result.module)
    if len(result.metrics) != ROUNDS or not bool(torch.isfinite(ended).all()) or torch.equal(begun, ended):
        raise AssertionError(f"{tables} is accepted, and its weights do not change, or are not finite")
    return ""


def _clients() -> list[tuple[Tensor, Tensor]]:
    return [(part.x, part.y) for part in data_of(CLIENTS, loss="cross_entropy")]


def _pair(count: int) -> tuple[Tensor, Tensor]:
    part = examples(count)
    return part.x, part.y


def _joined(parts: tuple[Part, ...]) -> Tables | None:
    """The tables of all parts. None if two of them say different things of one setting."""
    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        for name, table in part.tables.items():
            known = found.setdefault(name, {})
            if any(key in known and known[key] != value and key != "local_steps" for key, value in table.items()):
                return None
            known.update(table)
    return found


def _merged(*layers: Tables) -> dict[str, dict[str, Any]]:
    """Tables over tables. A table [privacy] replaces what is below it. None removes a key."""
    merged: dict[str, dict[str, Any]] = {}
    for tables in layers:
        for name, table in tables.items():
            under = {} if name == "privacy" else merged.get(name, {})
            merged[name] = {**under, **table}
    return {name: {key: value for key, value in table.items() if value is not None} for name, table in merged.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings, such as those of clip norms that suit larger problems."""
    logger = logging.getLogger("sketchfed")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
