"""Hot loops: numba on the CPU, a torch twin on every other device, the same integers in both."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sketchfed.kernels.fwht import hadamard_, transform
    from sketchfed.kernels.jit import forced_twins

__all__ = ["forced_twins", "hadamard_", "transform"]

_HOMES = {"forced_twins": "jit", "hadamard_": "fwht", "transform": "fwht"}


def __getattr__(name: str) -> object:
    if name in _HOMES:  # other kernels do without them
        return getattr(import_module(f"sketchfed.kernels.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'sketchfed.kernels' has no attribute {name!r}")
