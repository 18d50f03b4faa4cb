"""Tables and figures of the papers, measured anew.

An experiment is a module with a one-line docstring, a frozen dataclass `Settings` and `run(settings, folder)`, which
writes what it measured into the folder and prints it. Its recorded settings are `experiments/<name>/experiment.toml`.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from sketchfed.errors import InputError, UnknownNameError
from sketchfed.shipped import purpose, shipped

EXPERIMENTS = {
    "table-1": "sketchfed.experiments.table_1",
    "theory": "sketchfed.experiments.theory",
    "bytes-to-accuracy": "sketchfed.experiments.bytes_to_accuracy",
    "bytes-to-accuracy-cifar": "sketchfed.experiments.bytes_to_accuracy",
    "sketch-families": "sketchfed.experiments.sketch_families",
    "codecs-at-equal-bytes": "sketchfed.experiments.codecs_at_equal_bytes",
    "private-accuracy": "sketchfed.experiments.private_accuracy",
    "private-accuracy-clients": "sketchfed.experiments.private_accuracy",
    "private-accuracy-clients-secure": "sketchfed.experiments.private_accuracy",
    "privacy-audit": "sketchfed.experiments.privacy_audit",
    "audit-reconstruction": "sketchfed.experiments.audit_reconstruction",
    "audit-property": "sketchfed.experiments.audit_property",
    "audit-membership": "sketchfed.experiments.audit_membership",
    "dbcl-table-1": "sketchfed.experiments.dbcl_training",
    "dbcl-table-1-cnn": "sketchfed.experiments.dbcl_training",
    "dbcl-figure-1": "sketchfed.experiments.dbcl_training",
    "dbcl-figure-2": "sketchfed.experiments.dbcl_roc",
    "dbcl-figure-3": "sketchfed.experiments.dbcl_estimates",
    "audit-dbcl": "sketchfed.experiments.audit_dbcl",
    "dome-accuracy": "sketchfed.experiments.dome_accuracy",
    "dome-energy": "sketchfed.experiments.dome_energy",
    "dome-lemmas": "sketchfed.experiments.dome_lemmas",
    "global-rate": "sketchfed.experiments.global_rate",
    "rand-proj-figure-2": "sketchfed.experiments.rand_proj_identical",
    "rand-proj-figure-3": "sketchfed.experiments.rand_proj_correlation",
    "rand-proj-figure-6": "sketchfed.experiments.rand_proj_correlation",
    "rand-proj-figure-7": "sketchfed.experiments.rand_proj_rank",
    "rand-proj-closed-form": "sketchfed.experiments.rand_proj_closed_form",
    "power-iteration": "sketchfed.experiments.power_iteration",
    "k-means": "sketchfed.experiments.k_means",
    "linear-regression": "sketchfed.experiments.linear_regression",
    "flower-soak": "sketchfed.experiments.flower_soak",
}


def purposes() -> dict[str, str]:
    """What each experiment measures, in a line."""
    return {name: purpose(Path(str(find_spec(module).origin))) for name, module in EXPERIMENTS.items()}  # type: ignore[union-attr]


def find(name: str) -> ModuleType:
    """The module of an experiment."""
    if name not in EXPERIMENTS:
        raise UnknownNameError("experiment", name, EXPERIMENTS)
    return import_module(EXPERIMENTS[name])


def recorded_settings(name: str) -> dict[str, Any]:
    """The settings under which the recorded results of an experiment were measured."""
    return tomllib.loads((shipped("experiments") / name / "experiment.toml").read_text())


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


_KINDS: dict[Any, tuple[Callable[[object], bool], str]] = {
    int: (_is_whole, "a positive integer"),
    float: (_is_number, "a number that is not negative"),
    str: (_is_text, "a text in quotes"),
    list[int]: (_all(_is_whole), "a list of positive integers such as [64, 256]"),
    list[float]: (_all(_is_number), "a list of numbers such as [0.1, 1]"),
    list[str]: (_all(_is_text), 'a list of texts such as ["srht", "count"]'),
}
