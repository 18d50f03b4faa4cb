"""Federated learning in which clients speak in sketches.

Importing this package is cheap: torch and numba load when a module that needs them is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from sketchfed.version import __version__

if TYPE_CHECKING:
    from sketchfed.audits import audit
    from sketchfed.runs import Run, resume, run
    from sketchfed.seeds import PublicSeed, SecretSeed

__all__ = ["PublicSeed", "Run", "SecretSeed", "__version__", "audit", "resume", "run"]

_HOMES = {
    "PublicSeed": "sketchfed.seeds",
    "Run": "sketchfed.runs",
    "SecretSeed": "sketchfed.seeds",
    "audit": "sketchfed.audits",
    "resume": "sketchfed.runs",
    "run": "sketchfed.runs",
}
_MODULES = (
    *(
        "algorithms",
        "attacks",
        "audits",
        "caches",
        "codecs",
        "config",
        "data",
        "draws",
        "errors",
        "flower",
        "kernels",
        "models",
    ),
    *("parts", "planner", "report", "rounds", "runs", "seeds", "sketches", "training", "vectors", "wire"),
)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _MODULES:
        return import_module(f"sketchfed.{name}")
    raise AttributeError(f"module 'sketchfed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
