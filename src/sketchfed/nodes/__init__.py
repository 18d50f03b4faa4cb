"""The node's own side: a store of what must happen once or never be forgotten, and a policy of what its owner allows."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sketchfed.nodes.policy import Policy
    from sketchfed.nodes.rules import Offer, Verdict, check, verdicts
    from sketchfed.nodes.spending import Limit, Release
    from sketchfed.nodes.store import Key, NodeStore, StageClaim

__all__ = ["Key", "Limit", "NodeStore", "Offer", "Policy", "Release", "StageClaim", "Verdict", "check", "verdicts"]

_HOMES = {
    "StageClaim": "store",
    "Key": "store",
    "Limit": "spending",
    "NodeStore": "store",
    "Offer": "rules",
    "Policy": "policy",
    "Release": "spending",
    "Verdict": "rules",
    "check": "rules",
    "verdicts": "rules",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:  # the store alone starts without torch
        return getattr(import_module(f"sketchfed.nodes.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'sketchfed.nodes' has no attribute {name!r}")
