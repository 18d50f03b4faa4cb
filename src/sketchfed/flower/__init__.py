"""Sketchfed on Flower: the same rounds between real machines. Needs `pip install sketchfed[flower]`.

`Sketched` and `sketchfed_mod` add sketches, noise and secure sums to an app that exists already; for everything else
`[engine] name = "flower"` is enough. The rest is for those who rehearse, watch or extend a federation.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sketchfed.flower.client_app import make_client_app
    from sketchfed.flower.connection import app_with, submitting
    from sketchfed.flower.engine import FlowerEngine
    from sketchfed.flower.federation import TRAFFIC
    from sketchfed.flower.link import SuperLink
    from sketchfed.flower.loopback import Loopback
    from sketchfed.flower.messages import Reply, Request
    from sketchfed.flower.mod import sketchfed_mod
    from sketchfed.flower.strategy import Sketched

__all__ = [
    "TRAFFIC",
    "FlowerEngine",
    "Loopback",
    "Reply",
    "Request",
    "Sketched",
    "SuperLink",
    "app_with",
    "make_client_app",
    "sketchfed_mod",
    "submitting",
]

_HOMES = {
    "TRAFFIC": "federation",
    "FlowerEngine": "engine",
    "Loopback": "loopback",
    "Reply": "messages",
    "Request": "messages",
    "Sketched": "strategy",
    "SuperLink": "link",
    "app_with": "connection",
    "make_client_app": "client_app",
    "sketchfed_mod": "mod",
    "submitting": "connection",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:  # a client needs no strategy, and a worker neither
        return getattr(import_module(f"sketchfed.flower.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'sketchfed.flower' has no attribute {name!r}")
