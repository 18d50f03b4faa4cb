"""The defences that are audited by default, and the undefended run to which a given configuration is compared."""

from dataclasses import fields, replace
from typing import Any

from sketchfed.algorithms import Algorithm, FedAvg
from sketchfed.algorithms.gossip import Gossip
from sketchfed.algorithms.settings import CodecSettings
from sketchfed.config import Config, load_config

UNDEFENDED = "undefended"

_EMBEDDED: dict[str, Any] = {
    "data": {"name": "digits", "clients": 10},
    "model": {"name": "mlp", "hidden": [32]},
    "engine": {"evaluate_every": 100, "workers": 1},
    "algorithm": {
        "rounds": 300,
        "participation": 0.5,
        "local_steps": 1,
        "batch": 1,
        "local_rate": 0.1,
        "screening": 0.0,
    },
}
"""Handwritten digits and ten clients. Five of them do one step on one example in each round: the worst case for privacy.

Without noise, the rate is the best or nearly the best on a validation split, of 0.03, 0.1, 0.2 and 0.4. With noise, it is half
of that, of 0.05 and 0.1. The clip is the median length of what is clipped. Replies of single examples differ in length by more
than any screening allows.
"""
_NOISE = {"unit": "example", "epsilon": 8.0, "delta": 1e-4, "clip": 2.3}
_SKETCHES = {"count 1/10": ("count", 0.1), "srht 1/2": ("srht", 0.5), "srht 1/10": ("srht", 0.1), "srht 1/50": ("srht", 0.02)}


def embedded(seed: int) -> dict[str, Config]:
    """The default audit: whole updates, other codecs, sketches of several sizes, sketched weights, noise, and secure sums."""
    iterative = {"name": "iterative"}
    noisy = {"algorithm": iterative | {"local_rate": 0.05}, "sketch": {"name": "srht", "ratio": 0.1}}
    tables: dict[str, dict[str, Any]] = {
        UNDEFENDED: {},
        "top-k 1/10": {"codec": {"name": "top_k", "ratio": 0.1}},
        "eden 1 bit": {"codec": {"name": "eden", "bits": 1}},
        **{
            name: {"algorithm": iterative, "sketch": {"name": family, "ratio": ratio}}
            for name, (family, ratio) in _SKETCHES.items()
        },
        "dbcl 1/2": {"algorithm": {"name": "dbcl"}},
        "srht 1/10 + noise": noisy | {"privacy": _NOISE | {"observer": "server"}},
        "srht 1/10 + noise + secure sums": noisy
        | {"privacy": _NOISE | {"name": "discrete_gaussian"}, "secure": {"survivors": 0.8}},
    }
    return {name: load_config(_merged(own) | {"name": "", "seed": seed}) for name, own in tables.items()}


def undefended(config: Config) -> Config:
    """The same work on the same data, with whole updates in the clear. On a graph, neighbours exchange whole models."""
    shared = {field.name: getattr(config.algorithm, field.name) for field in fields(Algorithm)}
    if config.graph is not None:
        own = {"global_rate": None, "participation": 1.0, "global_momentum": 0.0}
        return replace(config, algorithm=Gossip(**shared | own), privacy=None, secure=None)
    return replace(config, algorithm=FedAvg(**shared | {"global_rate": None}), privacy=None, secure=None)


def is_undefended(config: Config) -> bool:
    """Whether whole updates travel in the clear."""
    algorithm = config.algorithm
    return (
        isinstance(algorithm, FedAvg)
        and replace(algorithm.codec, options={}) == CodecSettings()
        and config.privacy is None
        and (config.secure is None or not config.secure.aggregation)
    )


def _merged(own: dict[str, Any]) -> dict[str, Any]:
    return {table: _EMBEDDED.get(table, {}) | own.get(table, {}) for table in _EMBEDDED.keys() | own.keys()}
