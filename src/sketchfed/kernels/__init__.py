"""Hot loops: numba on the CPU, a torch twin on every other device, the same integers in both."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sketchfed.kernels.fwht import hadamard_, transform

__all__ = ["hadamard_", "transform"]


def __getattr__(name: str) -> object:
    if name in __all__:  # other kernels do without it
        return getattr(import_module("sketchfed.kernels.fwht"), name)
    raise AttributeError(f"module 'sketchfed.kernels' has no attribute {name!r}")
