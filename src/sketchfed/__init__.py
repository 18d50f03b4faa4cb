"""Federated learning in which clients speak in sketches.

Importing this package is cheap: torch and numba load when a module that needs them is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sketchfed.seeds import PublicSeed, SecretSeed

__version__ = "0.1.0"
__all__ = ["PublicSeed", "SecretSeed", "__version__"]

_HOMES = {"PublicSeed": "sketchfed.seeds", "SecretSeed": "sketchfed.seeds"}
_MODULES = ("errors", "kernels", "seeds", "sketches", "wire")


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _MODULES:
        return import_module(f"sketchfed.{name}")
    raise AttributeError(f"module 'sketchfed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
