"""Tables and figures of the papers, measured anew.

An experiment is a module with a one-line docstring, a frozen dataclass `Settings` and `run(settings, folder)`, which
writes what it measured into the folder and prints it. Its recorded settings are `experiments/<name>/experiment.toml`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from sketchfed.errors import InputError, UnknownNameError
from sketchfed.shipped import purpose, shipped

EXPERIMENTS = {"table-1": "sketchfed.experiments.table_1"}


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
        wanted = known[key]
        if wanted is int and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InputError(f"setting '{key}' must be a positive integer, got {value!r}.")
        if wanted == list[int] and not (isinstance(value, list) and value and all(type(v) is int and v > 0 for v in value)):
            raise InputError(f"setting '{key}' must be a list of positive integers such as [64, 256], got {value!r}.")
    return module.Settings(**values)
