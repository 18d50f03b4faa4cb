"""Reads a configuration from a TOML file, or from plain tables. Settings that cannot work are refused before round 1."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from sketchfed.algorithms import (
    ALGORITHMS,
    Algorithm,
    CodecSettings,
    FedAvg,
    SketchSettings,
    SubspaceSettings,
)
from sketchfed.algorithms.chosen import ChosenPart
from sketchfed.config.settings import DataSettings, EngineSettings, ModelSettings
from sketchfed.config.whole import CHOSEN, Config
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.graphs import GraphSettings
from sketchfed.protection import PrivacySettings, SecureSettings
from sketchfed.rounds import AsynchronousSettings
from sketchfed.tables import (
    Table,
    change,
    check_keys,
    copied,
    keys_of,
    read_toml,
    to_struct,
    with_options,
)
from sketchfed.training import TrainingSettings

TABLES = (
    "data",
    "model",
    "training",
    "algorithm",
    "sketch",
    "codec",
    "subspace",
    "combine",
    "server",
    "privacy",
    "secure",
    "asynchronous",
    "graph",
    "engine",
)
_INNER: dict[str, type] = {"sketch": SketchSettings, "codec": CodecSettings, "subspace": SubspaceSettings}
_KEYS: dict[str, type] = {"name": str, "seed": int, "joint": str}
"""The keys outside of all tables."""


def load_config(source: "Config | Mapping[str, Any] | str | Path", changes: Sequence[str] = ()) -> Config:
    """Load a configuration from a TOML file or from plain tables, and apply changes such as `algorithm.rounds=20`.

    >>> config = load_config({"algorithm": {"name": "iterative", "rounds": 5}, "sketch": {"ratio": 0.01}}, ["sketch.bits=4"])
    >>> config.label
    'iterative srht 1/100 4 bits'
    """
    if isinstance(source, Config):
        source = source.to_tables()
    tables: Table = read_toml(source) if isinstance(source, str | Path) else copied(source)
    for text in changes:
        change(tables, text)
    for key in tables:
        if key not in (*_KEYS, *TABLES):
            raise UnknownNameError("table or key", key, [*_KEYS, *TABLES])
    for key in TABLES:
        if not isinstance(tables.get(key, {}), dict):
            raise InputError(f"[{key}] must be a table, got {key} = {tables[key]!r}. Write it as [{key}] with its keys below.")
    for key, kind in _KEYS.items():
        if type(tables.get(key, kind())) is not kind:
            raise InputError(f"{key} must be {'text' if kind is str else 'an integer'}, got {tables[key]!r}.")
    plain: dict[str, type] = {"privacy": PrivacySettings, "secure": SecureSettings, "asynchronous": AsynchronousSettings}
    for key, settings in plain.items():
        check_keys(key, tables.get(key, {}), keys_of(settings))
    algorithm, asynchronous, graph = _algorithm(tables), tables.get("asynchronous"), tables.get("graph")
    return Config(
        **{key: tables[key] for key in _KEYS if key in tables},
        data=to_struct(with_options(tables.get("data", {}), DataSettings), DataSettings, "data"),
        model=to_struct(with_options(tables.get("model", {}), ModelSettings), ModelSettings, "model"),
        training=to_struct(with_options(tables.get("training", {}), TrainingSettings), TrainingSettings, "training"),
        algorithm=algorithm,
        privacy=_privacy(tables, algorithm),
        secure=to_struct(tables["secure"], SecureSettings, "secure") if "secure" in tables else None,
        asynchronous=None if asynchronous is None else to_struct(asynchronous, AsynchronousSettings, "asynchronous"),
        graph=None if graph is None else to_struct(with_options(graph, GraphSettings), GraphSettings, "graph"),
        engine=to_struct(with_options(tables.get("engine", {}), EngineSettings), EngineSettings, "engine"),
    )


def _algorithm(tables: Table) -> Algorithm:
    table = dict(tables.get("algorithm", {}))
    name = table.pop("name", FedAvg.name)
    kind = ALGORITHMS[name]
    for inner in _INNER:
        if inner in table:
            raise InputError(f"write [{inner}] as a table of its own, not inside [algorithm].")
        if inner in tables and inner not in keys_of(kind):
            raise InputError(f"algorithm '{name}' does not use [{inner}]. Remove that table, or choose another algorithm.")
    renamed = {name: key for key, (name, _) in CHOSEN.items()}
    check_keys("algorithm", table, ["name", *(renamed.get(key, key) for key in keys_of(kind) if key not in _INNER)])
    given = {inner: tables[inner] for inner in _INNER if inner in tables}
    for inner, own in given.items():
        default = _usual(kind, inner)
        usual = {} if {"ratio", "size"} & own.keys() or default.ratio is None else {"ratio": default.ratio}
        table[inner] = with_options({"name": default.name} | usual | own, _INNER[inner])
    for key, (name, settings) in CHOSEN.items():
        table[name] = _chosen_part(settings, table.pop(key, settings.default), tables.get(key, {}))
    return to_struct(table, kind, "algorithm")


def _usual(kind: type[Algorithm], inner: str) -> Any:
    """The settings of a table that an algorithm uses if the table is absent. The algorithm's other fields may be required."""
    (setting,) = (each for each in fields(kind) if each.name == inner)
    if setting.default_factory is not MISSING:
        return setting.default_factory()
    return _INNER[inner]() if setting.default in (MISSING, None) else setting.default


def _chosen_part(kind: type[ChosenPart], name: Any, options: Table) -> Table:
    """The part that [algorithm] names, with its options from the table of the same key."""
    key, what = kind.key, kind.registry.kind
    if not isinstance(name, str):
        raise InputError(f"algorithm.{key} must be the name of a {what} in quotes, got {name!r}. Its options go to [{key}].")
    if "name" in options:
        raise InputError(f"[{key}] holds options only. Name the {what} in [algorithm]: {key} = {options['name']!r}.")
    return {"name": name, "options": options}


def _privacy(tables: Table, algorithm: Algorithm) -> PrivacySettings | None:
    """Read the table [privacy]. By default, a private algorithm adds noise as its paper does."""
    if "privacy" not in tables:
        if algorithm.noise_defaults is not None:
            raise InputError(
                f"algorithm '{algorithm.name}' runs only with noise. Add [privacy] with epsilon, or choose 'iterative'."
            )
        return None
    private = to_struct(tables["privacy"], PrivacySettings, "privacy")
    own = (algorithm.noise_defaults or {}).get("discrete_gaussian" if private.discrete else "gaussian", {})
    return replace(private, **{key: value for key, value in own.items() if key not in tables["privacy"]})
