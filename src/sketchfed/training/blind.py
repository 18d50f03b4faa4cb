"""The client form of a model, for clients that see only sketches of the weights. It is made once per round."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import nn

from sketchfed.nn.convert import blinded
from sketchfed.nn.model_sketch import ModelSketch

T = TypeVar("T")


def client_form(module: nn.Module, form: ModelSketch) -> nn.Module:
    """Copy a module. In the copy, sketched layers hold W̃ instead of W, and withheld parameters have their public values."""
    copy = blinded(module, form.layers, form.folded)
    parameters = dict(copy.named_parameters())
    for name, values in form.fixed().items():
        parameters[name].requires_grad_(False)
        with torch.no_grad():
            parameters[name].copy_(values)
    return copy


class Latest(Generic[T]):
    """A cache that keeps only the last object, and makes a new one when the key changes. Threads share the object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: tuple[object, T] | None = None

    def get(self, key: object, make: Callable[[], T]) -> T:
        with self._lock:
            if self._kept is None or self._kept[0] != key:
                self._kept = key, make()
            return self._kept[1]
