"""Sketchfed on Flower: the same rounds between real machines. Needs `pip install sketchfed[flower]`.

`Sketched` and `sketchfed_mod` add sketches, noise and secure sums to an app that exists already; everything else is behind
`[engine] name = "flower"`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sketchfed.flower.mod import sketchfed_mod
    from sketchfed.flower.strategy import Sketched

__all__ = ["Sketched", "sketchfed_mod"]

_HOMES = {"Sketched": "strategy", "sketchfed_mod": "mod"}


def __getattr__(name: str) -> object:
    if name in _HOMES:  # a client needs no strategy, and a worker neither
        return getattr(import_module(f"sketchfed.flower.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'sketchfed.flower' has no attribute {name!r}")
