"""Policies as text: the defaults with comments, and one that allows what some configurations name."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import tomli_w

from sketchfed.nodes.policy import BUILT_IN, DELTA, KEYS, Kind
from sketchfed.nodes.rules import named_parts

_HEAD = """\
# What runs this node takes part in. Start its SuperNode with --node-config 'policy="THIS FILE"'.
# Every refusal names the line of this file that refused. Lines that begin with # are the defaults.
# `sketchfed policy check THIS_FILE CONFIG` says what the file thinks of a configuration.
"""
_ABOUT = {
    "allow": f"""\
# Parts that a run may name. "{BUILT_IN}" stands for those that sketchfed brings. Add the names of entry points, or
# package.module:Thing, of code that you have read: it runs on this machine, with options that the server chooses.""",
    "demand": """\
# What every run must offer.""",
    "limits": """\
# The largest run that this node takes part in, from the numbers in its settings.""",
}
_TAIL = """
# What a data set may spend over all runs, servers and sessions. The node's data is the data set that its setting `dataset`
# names (--node-config 'dataset="ward-7"'), else partition-N, else data. [data."*"] is about all others.
# [data.ward-7]
# lifetime_epsilon = 8.0
# lifetime_delta = 1e-5
"""
_EXAMPLES = {
    "demand.epsilon": "3.0",
    "demand.noise_multiplier": "0.5",
    "demand.delta": str(DELTA),
    "demand.observers": '["server"]',
    "allow.plain": "false",
}


def commented() -> str:
    """A policy file in which every rule stands with its default, as a comment."""
    lines, table = [_HEAD], ""
    for key, kind in KEYS.items():
        own, _, name = key.partition(".")
        if own != table:
            table = own
            lines += [f"{_ABOUT[own]}\n[{own}]"]
        lines.append(f"# {name} = {_EXAMPLES.get(key) or _written(kind)}  # {kind.about}{_otherwise(key, kind)}")
        if name in ("plain", "identities"):
            lines.append("")
    return "\n".join(lines) + "\n" + _TAIL


def allowing(configurations: Iterable[Mapping[str, Any]]) -> str:
    """A policy that allows what these configurations name, and is otherwise the default: for rehearsals of one's own runs."""
    allowed: dict[str, list[str]] = {}
    for tables in configurations:
        for kind, name in named_parts(tables):
            names = allowed.setdefault(kind, [BUILT_IN])
            if name not in names:
                names.append(name)
    return tomli_w.dumps({"allow": allowed})


def _written(kind: Kind) -> str:
    return json.dumps(kind.default)  # TOML writes lists, texts, numbers and truth as JSON does


def _otherwise(key: str, kind: Kind) -> str:
    return {
        "demand.epsilon": "; not limited unless you say so",
        "demand.noise_multiplier": "; not limited unless you say so",
        "demand.delta": "; limited where an ε is",
        "demand.observers": '; ["server", "public"] where no ε is limited',
        "allow.plain": "; true where nothing is demanded",
    }.get(key, "")
