"""Federated learning in which clients speak in sketches.

Importing this package is cheap: torch and numba load when a module that needs them is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sketchfed.audits import audit
    from sketchfed.runs import Run, resume, run
    from sketchfed.seeds import PublicSeed, SecretSeed

__version__ = "0.1.0"
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
    *("algorithms", "attacks", "audits", "codecs", "config", "data", "engines", "errors", "flower", "kernels", "models"),
    *("planner", "plugins", "report", "runs", "seeds", "server", "sketches", "training", "vectors", "wire", "workload"),
)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _MODULES:
        return import_module(f"sketchfed.{name}")
    raise AttributeError(f"module 'sketchfed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
