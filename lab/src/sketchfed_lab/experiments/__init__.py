"""Tables and figures of the papers, measured anew.

An experiment is a module with a one-line docstring, a frozen dataclass `Settings` and `run(settings, folder)`, which
writes what it measured into the folder and prints it. Its recorded settings are `lab/experiments/<name>/experiment.toml`.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from sketchfed.errors import InputError, UnknownNameError

EXPERIMENTS = {
    "table-1": "sketchfed_lab.experiments.table_1",
    "theory": "sketchfed_lab.experiments.theory",
    "bytes-to-accuracy": "sketchfed_lab.experiments.bytes_to_accuracy",
    "bytes-to-accuracy-cifar": "sketchfed_lab.experiments.bytes_to_accuracy",
    "sketch-families": "sketchfed_lab.experiments.sketch_families",
    "batch-norm": "sketchfed_lab.experiments.batch_norm",
    "shakespeare": "sketchfed_lab.experiments.shakespeare",
    "codecs-at-equal-bytes": "sketchfed_lab.experiments.codecs_at_equal_bytes",
    "private-accuracy": "sketchfed_lab.experiments.private_accuracy",
    "private-accuracy-clients": "sketchfed_lab.experiments.private_accuracy",
    "private-accuracy-clients-secure": "sketchfed_lab.experiments.private_accuracy",
    "privacy-audit": "sketchfed_lab.experiments.privacy_audit",
    "audit-reconstruction": "sketchfed_lab.experiments.audit_reconstruction",
    "audit-property": "sketchfed_lab.experiments.audit_property",
    "audit-membership": "sketchfed_lab.experiments.audit_membership",
    "dbcl-table-1": "sketchfed_lab.experiments.dbcl_training",
    "dbcl-table-1-cnn": "sketchfed_lab.experiments.dbcl_training",
    "dbcl-figure-1": "sketchfed_lab.experiments.dbcl_training",
    "dbcl-figure-2": "sketchfed_lab.experiments.dbcl_roc",
    "dbcl-figure-3": "sketchfed_lab.experiments.dbcl_estimates",
    "audit-dbcl": "sketchfed_lab.experiments.audit_dbcl",
    "audit-neighbours": "sketchfed_lab.experiments.audit_neighbours",
    "dome-accuracy": "sketchfed_lab.experiments.dome_accuracy",
    "dome-energy": "sketchfed_lab.experiments.dome_energy",
    "dome-lemmas": "sketchfed_lab.experiments.dome_lemmas",
    "global-rate": "sketchfed_lab.experiments.global_rate",
    "layers-at-equal-bytes": "sketchfed_lab.experiments.layers_at_equal_bytes",
    "local-drift": "sketchfed_lab.experiments.local_drift",
    "quantity-skew": "sketchfed_lab.experiments.quantity_skew",
    "decentralised": "sketchfed_lab.experiments.decentralised",
    "gossip-rate": "sketchfed_lab.experiments.gossip_rate",
    "diameter": "sketchfed_lab.experiments.diameter",
    "rand-proj-figure-2": "sketchfed_lab.experiments.rand_proj_identical",
    "rand-proj-figure-3": "sketchfed_lab.experiments.rand_proj_correlation",
    "rand-proj-figure-6": "sketchfed_lab.experiments.rand_proj_correlation",
    "rand-proj-figure-7": "sketchfed_lab.experiments.rand_proj_rank",
    "rand-proj-closed-form": "sketchfed_lab.experiments.rand_proj_closed_form",
    "power-iteration": "sketchfed_lab.experiments.power_iteration",
    "k-means": "sketchfed_lab.experiments.k_means",
    "linear-regression": "sketchfed_lab.experiments.linear_regression",
    "robust-rules": "sketchfed_lab.experiments.robust_rules",
    "flower-soak": "sketchfed_lab.experiments.flower_soak",
}

_PACKAGE = Path(__file__).parents[1]
_RECORDED = (_PACKAGE / "recorded", _PACKAGE.parents[1] / "experiments")
"""Where recorded settings lie: inside an installed package, or beside `src/` in a checkout."""


def find(name: str) -> ModuleType:
    """The module of an experiment."""
    if name not in EXPERIMENTS:
        raise UnknownNameError("experiment", name, EXPERIMENTS)
    return import_module(EXPERIMENTS[name])


def recorded_settings(name: str) -> dict[str, Any]:
    """The settings under which the recorded results of an experiment were measured."""
    for folder in _RECORDED:
        if (file := folder / name / "experiment.toml").exists():
            return tomllib.loads(file.read_text())
    raise InputError(f"this copy of sketchfed-lab lacks the settings of '{name}'. Install it from a wheel or a checkout.")


def make_settings(module: ModuleType, values: Mapping[str, Any]) -> Any:
    """An experiment's settings from plain values; unknown names and wrong types are refused."""
    known = {field.name: field.type for field in fields(module.Settings)}
    for key, value in values.items():
        if key not in known:
            raise UnknownNameError("setting", key, known)
        fits, wanted = _KINDS.get(known[key], (_anything, ""))
        if not fits(value) or (type(value) is int and value < 1 and not key.startswith("seed")):
            raise InputError(f"setting '{key}' must be {wanted}, got {value!r}.")
    return module.Settings(**values)


def _anything(_: object) -> bool:
    return True


def _is_whole(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and value >= 0  # type: ignore[operator]


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _all(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and bool(value) and all(map(fits, value))


def _named(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, dict) and bool(value) and all(map(fits, value.values()))


_KINDS: dict[Any, tuple[Callable[[object], bool], str]] = {
    int: (_is_whole, "a positive integer"),
    float: (_is_number, "a number that is not negative"),
    str: (_is_text, "a text in quotes"),
    list[int]: (_all(_is_whole), "a list of positive integers such as [64, 256]"),
    list[float]: (_all(_is_number), "a list of numbers such as [0.1, 1]"),
    list[str]: (_all(_is_text), 'a list of texts such as ["srht", "count"]'),
    dict[str, list[int]]: (_named(_all(_is_whole)), "a table of lists of positive integers such as {clear = [1, 2]}"),
    dict[str, list[float]]: (_named(_all(_is_number)), "a table of lists of numbers such as {clear = [0.1, 0.4]}"),
}
